"""From scored groups to the ragged columns that a trainer takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rledger.errors import NonFiniteError
from rledger.types import Batch, Group, Score, Trajectory

__all__ = ["build_batch", "survivors"]


def survivors(group: Group) -> tuple[Trajectory, ...]:
    """The trajectories with a reward; a failed one is in no statistics and in no loss."""
    return tuple(t for t in group.trajectories if isinstance(t.outcome, Score))


def build_batch(groups: Sequence[Group], baseline_rewards: Sequence[float] | None = None) -> Batch:
    """All surviving trajectories of `groups`, in order, as one Batch.

    `baseline_rewards` is one greedy reward per group (ReMax). Raises ValueError on an empty take.
    """
    rows = [
        (index, group, trajectory)
        for index, group in enumerate(groups)
        for trajectory in survivors(group)
    ]
    if not rows:
        raise ValueError("a take without a single surviving trajectory cannot be trained on")
    prompt_lengths = np.array([len(group.prompt.token_ids) for _, group, _ in rows], np.int32)
    lengths = prompt_lengths + np.array([t.num_tokens for _, _, t in rows], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    total = int(offsets[-1])
    token_ids = np.zeros(total, np.int32)
    loss_mask = np.zeros(total, np.bool_)
    policy_versions = np.full(total, -1, np.int32)
    generator_logprobs = np.zeros(total, np.float32)
    for row, (_, group, trajectory) in enumerate(rows):
        start = int(offsets[row])
        first = start + int(prompt_lengths[row])
        stop = int(offsets[row + 1])
        (completion,) = trajectory.completions
        token_ids[start:first] = group.prompt.token_ids
        token_ids[first:stop] = completion.token_ids
        loss_mask[first:stop] = True
        generator_logprobs[first:stop] = completion.generator_logprobs
        for span in completion.version_spans:
            policy_versions[first + span.start : first + span.stop] = span.policy_version
    scores = [t.outcome for _, _, t in rows if isinstance(t.outcome, Score)]
    _check_range([(t.id, score) for (_, _, t), score in zip(rows, scores, strict=True)])
    # A component counts only where every row has it; one that some rewards omit cannot be normalised.
    names = set.intersection(*(set(score.components) for score in scores))
    return Batch(
        ids=tuple(t.id for _, _, t in rows),
        group_ids=tuple(group.id for _, group, _ in rows),
        groups=np.array([index for index, _, _ in rows], np.int32),
        offsets=offsets,
        prompt_lengths=prompt_lengths,
        token_ids=token_ids,
        loss_mask=loss_mask,
        policy_versions=policy_versions,
        generator_logprobs=generator_logprobs,
        rewards=np.array([score.value for score in scores], np.float32),
        reward_components={
            name: np.array([score.components[name] for score in scores], np.float32)
            for name in sorted(names)
        },
        truncated=np.array(
            [t.completions[-1].finish_reason == "length" for _, _, t in rows], np.bool_
        ),
        baseline_rewards=None
        if baseline_rewards is None
        else np.array([baseline_rewards[index] for index, _, _ in rows], np.float32),
    )


def _check_range(scores: Sequence[tuple[str, Score]]) -> None:
    """Rewards become float32: what overflows it would be infinite in the loss."""
    largest = float(np.finfo(np.float32).max)
    for name, score in scores:
        for part, value in {"reward": score.value, **score.components}.items():
            if abs(value) > largest:
                raise NonFiniteError(
                    f"trajectory {name}: its {part} is {value:g}, beyond the range of float32 (3.4e38);"
                    " scale the reward down"
                )
