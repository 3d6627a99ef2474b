"""Which groups are trained on, and the penalty for running long (DAPO).

Both from https://arxiv.org/abs/2503.14476.

Legend for shapes: B trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from rledger.config.algorithm import AlgorithmConfig, DynamicSampling, OverlongShaping
from rledger.errors import DataError
from rledger.types import Group, Score

__all__ = ["GroupDropReason", "drop_reason", "group_metric", "has_signal", "overlong_penalties"]

GroupDropReason = Literal["too_few_survivors", "no_signal"]


def has_signal(values: Sequence[float]) -> bool:
    """Whether two members differ: equal ones, or a single one, give no group-relative gradient."""
    return len(values) > 0 and max(values) > min(values)


def group_metric(group: Group, metric: str) -> list[float]:
    """The metric of each trajectory that has a score: "reward", or a reward component by name.

    Raises DataError where a score lacks the component.
    """
    values = []
    for trajectory in group.trajectories:
        score = trajectory.outcome
        if not isinstance(score, Score):
            continue
        if metric == "reward":
            values.append(score.value)
        elif metric in score.components:
            values.append(score.components[metric])
        else:
            known = ", ".join(["reward", *sorted(score.components)])
            raise DataError(
                f"algorithm.dynamic_sampling.metric = {metric}, but the score of trajectory "
                f"{trajectory.id} has only {known}: name one of these"
            )
    return values


def drop_reason(group: Group, config: AlgorithmConfig) -> GroupDropReason | None:
    """Why a scored group is not trained on; None where it is.

    A group with too few scored members says nothing; with dynamic sampling, neither does one whose
    members all have the same metric.
    """
    survivors = sum(isinstance(t.outcome, Score) for t in group.trajectories)
    if survivors < config.effective_min_group_size:
        return "too_few_survivors"
    sampling: DynamicSampling = config.dynamic_sampling
    if sampling.enabled and not has_signal(group_metric(group, sampling.metric)):
        return "no_signal"
    return None


def overlong_penalties(
    lengths_tokens: npt.ArrayLike, max_new_tokens: int, config: OverlongShaping
) -> npt.NDArray[np.float32]:
    """[B] what to add to the rewards of completions of so many tokens: 0, then down to -penalty.

    0 up to max_new_tokens - buffer_tokens, from there linear to -penalty at max_new_tokens, and
    -penalty beyond it. Raises ValueError where the buffer is longer than the limit.
    """
    lengths = np.asarray(lengths_tokens, dtype=np.float64)
    if config.buffer_tokens > max_new_tokens:
        raise ValueError(
            f"buffer_tokens = {config.buffer_tokens} exceeds max_new_tokens = {max_new_tokens}"
        )
    if config.buffer_tokens == 0:
        return np.zeros(lengths.shape, dtype=np.float32)
    excess = (lengths - (max_new_tokens - config.buffer_tokens)) / config.buffer_tokens
    return (-config.penalty * np.clip(excess, 0.0, 1.0)).astype(np.float32)
