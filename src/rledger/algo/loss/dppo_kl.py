"""Divergence PPO with binary KL (DPPO-Binary-KL), https://arxiv.org/abs/2602.04879."""

from __future__ import annotations

import torch

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.divergence import binary_kl, masked_policy_gradient
from rledger.config.policy_loss import DppoKlLoss

__all__ = ["loss"]


def loss(config: DppoKlLoss, inputs: LossInputs) -> LossOutputs:
    """-A min(r, cap) logprob with constant r, for tokens within the bound; 0 for the others.

    D is the KL divergence of "this token or another" from the old policy to the current one. Out of
    bounds: D > high and p > p_old where A > 0, D > low and p < p_old elsewhere; a token that moves
    against its advantage is never dropped. Metrics as for dppo_tv.
    """
    logprobs, old_logprobs = inputs.logprobs.detach(), inputs.old_logprobs
    divergence = binary_kl(old_logprobs, logprobs)
    within = torch.where(
        inputs.advantages > 0,
        (divergence <= config.divergence_high) | (logprobs <= old_logprobs),
        (divergence <= config.divergence_low) | (logprobs >= old_logprobs),
    )
    return masked_policy_gradient(inputs, within, config.ratio_cap)
