"""What a take says about itself: lengths, ages, signal. Pure functions of a Batch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rledger.errors import StaleDataError
from rledger.types import Batch

__all__ = ["batch_metrics", "check_age"]


def check_age(batch: Batch, policy_version: int, *, max_policy_age: int) -> None:
    """Raise StaleDataError when a token to be trained on is older than the bound at the take."""
    ages = _ages(batch, policy_version)
    if ages.size and int(ages.max()) > max_policy_age:
        row = (
            int(
                np.searchsorted(
                    batch.offsets, int(np.argmax(_all_ages(batch, policy_version))), "right"
                )
            )
            - 1
        )
        raise StaleDataError(
            f"trajectory {batch.ids[row]} has a token of age {int(ages.max())} at the take of version"
            f" {policy_version}; max_policy_age is {max_policy_age}"
        )


def batch_metrics(
    batch: Batch, policy_version: int, max_prompt_tokens: int, group_size: int
) -> dict[str, float]:
    """Length, age and signal metrics under their registered names."""
    prompts = batch.prompt_lengths
    responses = batch.lengths - prompts
    truncated = (
        batch.truncated if batch.truncated is not None else np.zeros(batch.num_rows, np.bool_)
    )
    first_rows = np.unique(batch.groups, return_index=True)[1]
    highest = np.maximum.reduceat(batch.rewards, first_rows)
    lowest = np.minimum.reduceat(batch.rewards, first_rows)
    return {
        **_spread("response_length", responses),
        "response_length/clip_ratio": float(truncated.mean()),
        **_spread("prompt_length", prompts),
        "prompt_length/clip_ratio": float((prompts >= max_prompt_tokens).mean()),
        **_spread("training/off_policy/policy_age", _ages(batch, policy_version)),
        "data/unique_prompt_tokens": float(prompts[first_rows].sum()),
        "data/zero_signal_group_frac": float((highest == lowest).mean()),
        "data/num_failed_trajectories": float(batch.num_groups * group_size - batch.num_rows),
    }


def _ages(batch: Batch, policy_version: int) -> npt.NDArray[np.int32]:
    ages: npt.NDArray[np.int32] = _all_ages(batch, policy_version)[batch.loss_mask]
    return ages


def _all_ages(batch: Batch, policy_version: int) -> npt.NDArray[np.int32]:
    """[T] age of each token; -1 where no token is trained on."""
    ages = np.maximum(0, policy_version - batch.policy_versions)
    return np.where(batch.loss_mask, ages, -1).astype(np.int32)


def _spread(prefix: str, values: npt.NDArray[np.generic]) -> dict[str, float]:
    if not values.size:
        return {}
    numbers = values.astype(np.float64)
    return {
        f"{prefix}/mean": float(numbers.mean()),
        f"{prefix}/max": float(numbers.max()),
        f"{prefix}/min": float(numbers.min()),
    }
