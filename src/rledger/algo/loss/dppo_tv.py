"""Divergence PPO with total variation (DPPO-Binary-TV), https://arxiv.org/abs/2602.04879."""

from __future__ import annotations

import torch

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.divergence import masked_policy_gradient
from rledger.config.policy_loss import DppoTvLoss

__all__ = ["loss"]


def loss(config: DppoTvLoss, inputs: LossInputs) -> LossOutputs:
    """-A min(r, cap) logprob with constant r, for tokens within the bound; 0 for the others.

    p = exp(logprob). Within the bound: p - p_old <= high where A > 0, p_old - p <= low elsewhere.
    `pg_clipfrac` is the share of tokens out of bounds, `pg_clipfrac_lower` that of tokens within it
    whose ratio is capped.
    """
    change = inputs.logprobs.detach().exp() - inputs.old_logprobs.exp()
    within = torch.where(
        inputs.advantages > 0, change <= config.divergence_high, change >= -config.divergence_low
    )
    return masked_policy_gradient(inputs, within, config.ratio_cap)
