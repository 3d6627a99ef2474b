"""Divergences between the old and the current policy at one token, and the loss bounded by them.

Legend for shapes: T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import clamped_log_ratio, policy_metrics
from rledger.algo.segments import masked

__all__ = ["binary_kl", "masked_policy_gradient"]

SMALLEST_REST = 1e-8  # a token of probability 1 in float32 leaves no rest to take the logarithm of


def binary_kl(old_logprobs: Tensor, logprobs: Tensor) -> Tensor:
    """[T] p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)), p = exp(logprob).

    1 - p is computed as -expm1(logprob), which keeps its digits near p = 1, and is at least 1e-8.
    """
    rest, old_rest = (-torch.expm1(x).clamp(max=-SMALLEST_REST) for x in (logprobs, old_logprobs))
    return old_logprobs.exp() * (old_logprobs - logprobs) + old_rest * (old_rest / rest).log()


def masked_policy_gradient(inputs: LossInputs, within: Tensor, ratio_cap: float) -> LossOutputs:
    """-A min(r, cap) logprob [T] with constant r for the tokens within a bound [T] bool, else 0."""
    ratio = clamped_log_ratio(inputs).detach().exp()
    losses = -inputs.advantages * ratio.clamp(max=ratio_cap) * inputs.logprobs
    metrics = policy_metrics(inputs, clipped=~within, clipped_lower=within & (ratio > ratio_cap))
    return LossOutputs(token_losses=masked(losses, within), metrics=metrics)
