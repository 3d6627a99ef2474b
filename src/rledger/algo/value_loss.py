"""The critic's loss, https://arxiv.org/abs/1707.06347 with the clipping of its public code.

Legend for shapes: T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rledger.algo.contract import LossOutputs
from rledger.algo.ratio import mean_over_tokens
from rledger.algo.segments import masked

__all__ = ["value_loss"]


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, loss_mask: Tensor, clip: float | None
) -> LossOutputs:
    """max((v - R)^2, (clip(v, old - clip, old + clip) - R)^2) / 2 of each token [T].

    `values` [T] carry the gradient, `old_values` and `returns` [T] come with the batch; clip None
    is the plain squared error. `critic/vf_clipfrac` is the share of tokens where the clipped error
    is the larger one, so that no gradient flows.
    """
    values = masked(values, loss_mask)
    old_values, returns = (masked(x.detach(), loss_mask) for x in (old_values, returns))
    errors = (values - returns).square()
    is_clipped = torch.zeros_like(loss_mask)
    if clip is not None:
        # minimum and maximum, since clamp takes no pair of tensors and numbers
        near = torch.minimum(torch.maximum(values, old_values - clip), old_values + clip)
        clipped_errors = (near - returns).square()
        is_clipped = clipped_errors > errors
        errors = torch.maximum(errors, clipped_errors)
    return LossOutputs(
        token_losses=0.5 * masked(errors, loss_mask),
        metrics={
            "critic/vf_clipfrac": mean_over_tokens(is_clipped, loss_mask),
            "critic/vpred_mean": mean_over_tokens(values, loss_mask),
        },
    )
