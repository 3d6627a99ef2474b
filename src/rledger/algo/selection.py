"""Choice of a few tokens of a micro-batch by covariance or by lot, without leaving the device.

Legend for shapes: T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rledger.algo.contract import LossInputs
from rledger.algo.segments import masked, masked_mean, wide

__all__ = ["covariances", "highest", "share_of_tokens", "uniform"]


def covariances(inputs: LossInputs) -> Tensor:
    """[T] (A - mean A)(logprob - mean logprob), means over the loss tokens given; no gradient."""
    centred = [
        wide(column) - masked_mean(column, inputs.loss_mask)
        for column in (inputs.advantages, inputs.logprobs.detach())
    ]
    return masked(centred[0] * centred[1], inputs.loss_mask)


def share_of_tokens(share: float, loss_mask: Tensor) -> Tensor:
    """[] number of tokens in a share of the loss tokens, rounded down, at least 1."""
    return (share * wide(loss_mask).sum()).floor().clamp(min=1)


def highest(values: Tensor, candidates: Tensor, count: Tensor) -> Tensor:
    """[T] bool, the `count` [] candidates of highest value, or all; the earlier wins a tie."""
    order = torch.where(candidates, values, -torch.inf).argsort(descending=True, stable=True)
    positions = torch.arange(order.shape[0], device=order.device)
    ranks = torch.empty_like(order).index_copy(0, order, positions)
    return candidates & (ranks < count)


def uniform(inputs: LossInputs) -> Tensor:
    """[T] uniform numbers in 0..1 that depend on the seed alone, the same on each device."""
    if inputs.seed is None:
        raise ValueError("this loss draws tokens at random: LossInputs.seed must be given")
    generator = torch.Generator(device="cpu").manual_seed(inputs.seed)
    drawn = torch.rand(inputs.rows.shape, generator=generator, dtype=torch.float64)
    return wide(drawn).to(inputs.rows.device)
