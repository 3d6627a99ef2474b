"""Outcomes of rows and their comparison within a group.

Legend for shapes: T tokens, B rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rledger.algo.contract import AdvantageInputs
from rledger.algo.segments import (
    masked,
    segment_count,
    segment_max,
    segment_mean,
    segment_min,
    segment_std,
    segment_sum,
    wide,
)

__all__ = ["centre", "has_spread", "normalise", "place_rewards", "row_scores", "to_tokens"]

STD_EPSILON = 1e-6


def place_rewards(rewards: Tensor, loss_mask: Tensor, rows: Tensor) -> Tensor:
    """[T] token rewards: each row's reward [B] on its last loss token, 0 elsewhere.

    A row without a loss token has no place for its reward.
    """
    positions = torch.arange(rows.shape[0], device=rows.device)
    last = segment_max(wide(positions), rows, rewards.shape[0], loss_mask)
    return masked(rewards[rows], loss_mask & (positions == last[rows]))


def row_scores(inputs: AdvantageInputs) -> Tensor:
    """[B] outcome of each row: the sum of its token rewards, or `rewards` without loss tokens."""
    num_tokens = segment_count(inputs.rows, inputs.num_rows, inputs.loss_mask)
    totals = segment_sum(inputs.token_rewards, inputs.rows, inputs.num_rows, inputs.loss_mask)
    return torch.where(num_tokens > 0, totals, wide(inputs.rewards))


def has_spread(scores: Tensor, inputs: AdvantageInputs) -> Tensor:
    """[B] whether the row's group holds two different scores; a single member never does."""
    highest = segment_max(scores, inputs.groups, inputs.num_groups)
    lowest = segment_min(scores, inputs.groups, inputs.num_groups)
    return (highest > lowest)[inputs.groups]


def centre(scores: Tensor, inputs: AdvantageInputs) -> Tensor:
    """[B] score minus the group's mean; exactly 0 in a group without spread.

    The mean of equal numbers may differ from them in the last bit, and dividing by a vanishing
    standard deviation would make a signal of that.
    """
    mean = segment_mean(scores, inputs.groups, inputs.num_groups)
    return masked(scores - mean[inputs.groups], has_spread(scores, inputs))


def normalise(scores: Tensor, inputs: AdvantageInputs) -> Tensor:
    """[B] score minus the group's mean, over the group's standard deviation (n - 1) plus 1e-6."""
    std = segment_std(scores, inputs.groups, inputs.num_groups)
    return centre(scores, inputs) / (std[inputs.groups] + STD_EPSILON)


def to_tokens(row_values: Tensor, inputs: AdvantageInputs) -> Tensor:
    """[T] each row's value [B] on its loss tokens, 0 elsewhere, in the token rewards' dtype."""
    return masked(row_values[inputs.rows], inputs.loss_mask).to(inputs.token_rewards.dtype)
