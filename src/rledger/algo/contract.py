"""What advantages and losses read and give. Frozen; nothing here is ever written to.

Legend for shapes: T tokens of all rows, B rows (trajectories).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["AdvantageInputs", "AdvantageOutputs", "LossInputs", "LossOutputs", "MetricSums"]

# name -> (numerator, denominator), both 0-d and detached. They add up over micro-batches and ranks;
# the metric is the quotient of the sums.
MetricSums = dict[str, tuple[Tensor, Tensor]]


def _check_lengths(length: int, columns: Mapping[str, Tensor | None], of: str) -> None:
    for name, column in columns.items():
        if column is not None and column.shape != (length,):
            raise ValueError(
                f"{name} has shape {tuple(column.shape)}, expected ({length},) as {of}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageInputs:
    """The rows of a step. Tokens of a row stand together and in order; rows stand in any order.

    Token rewards are read under the loss mask only. The outcome of a row is the sum of its token
    rewards there, so KL in the reward and shaping are part of it; a row without a loss token
    (nothing was generated) takes part in its group's statistics with `rewards`.
    """

    token_rewards: Tensor  # [T] float; the row's reward stands on its last loss token
    loss_mask: Tensor  # [T] bool
    rows: Tensor  # [T] int64, the token's row
    groups: Tensor  # [B] int64, the row's group
    num_groups: int
    rewards: Tensor  # [B] float
    values: Tensor | None = None  # [T] float, for advantages with needs_critic
    baseline_rewards: Tensor | None = None  # [B] float, for those with needs_greedy_baseline
    reward_components: Mapping[str, Tensor] = field(default_factory=dict)  # name -> [B] float

    def __post_init__(self) -> None:
        tokens = {"loss_mask": self.loss_mask, "rows": self.rows, "values": self.values}
        _check_lengths(self.token_rewards.shape[0], tokens, "token_rewards")
        rows = {"groups": self.groups, "baseline_rewards": self.baseline_rewards}
        _check_lengths(self.num_rows, {**rows, **self.reward_components}, "rewards")

    @property
    def num_rows(self) -> int:
        return self.rewards.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageOutputs:
    """Advantages, and what the critic learns; both 0 outside the loss mask."""

    advantages: Tensor  # [T]
    returns: Tensor | None = None  # [T]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The tokens of one micro-batch. A row lies wholly inside it; rows are numbered within it.

    What stands outside the loss mask is never read. Only `logprobs` carries a gradient.
    """

    logprobs: Tensor  # [T] float, current
    old_logprobs: Tensor  # [T] float, proximal; logprobs.detach() makes the ratio 1
    advantages: Tensor  # [T] float
    loss_mask: Tensor  # [T] bool
    rows: Tensor  # [T] int64
    num_rows: int
    weights: Tensor | None = None  # [T] float, importance weights that multiply the token losses
    seed: int | None = None  # for losses that draw at random; differs between updates

    def __post_init__(self) -> None:
        columns = {
            "old_logprobs": self.old_logprobs,
            "advantages": self.advantages,
            "loss_mask": self.loss_mask,
            "rows": self.rows,
            "weights": self.weights,
        }
        _check_lengths(self.logprobs.shape[0], columns, "logprobs")
        if self.loss_mask.dtype != torch.bool:
            raise ValueError(f"loss_mask has dtype {self.loss_mask.dtype}, expected torch.bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutputs:
    """Losses token by token, 0 outside the loss mask; `rledger.algo.aggregate` makes one number.

    A loss of a whole sequence stands on each of the sequence's tokens.
    """

    token_losses: Tensor  # [T]
    metrics: MetricSums = field(default_factory=dict)
