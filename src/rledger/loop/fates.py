"""What became of every trajectory and group, as the books' data account wants to hear it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rledger.books import DropReason, GroupEnded, TrajectoryEnded
from rledger.loop.context import LoopContext
from rledger.types import Batch, Failure, Group, Prompt, Score, Trajectory

__all__ = ["book_dropped", "book_trained", "book_trajectory"]


def book_trajectory(context: LoopContext, prompt: Prompt, trajectory: Trajectory) -> None:
    """A trajectory has its tokens and its outcome."""
    completion = trajectory.completions[-1]
    outcome = trajectory.outcome
    versions = [span.policy_version for c in trajectory.completions for span in c.version_spans]
    context.counters.generated_tokens += trajectory.num_tokens
    context.books.book(
        TrajectoryEnded(
            trajectory_id=trajectory.id,
            group_id=trajectory.group_id,
            step=context.counters.step,
            policy_version=min(versions, default=context.roles.generator.policy_version),
            prompt_tokens=len(prompt.token_ids),
            generated_tokens=trajectory.num_tokens,
            finish_reason=completion.finish_reason,
            failure=DropReason(outcome.reason) if isinstance(outcome, Failure) else None,
            reward=outcome.value if isinstance(outcome, Score) else None,
        )
    )


def book_dropped(
    context: LoopContext, group: Group, extra: Sequence[Trajectory], reason: DropReason
) -> None:
    """A whole group is not trained on; its failed members keep their own reason."""
    trajectories, tokens = _dropped((*group.trajectories, *extra), reason)
    context.books.book(
        GroupEnded(
            group_id=group.id,
            fate="dropped",
            reason=reason,
            step=context.counters.step,
            policy_version=context.roles.trainer.policy_version,
            dropped_trajectories=trajectories,
            dropped_tokens=tokens,
        )
    )


def book_trained(
    context: LoopContext,
    groups: Sequence[Group],
    extras: Sequence[Sequence[Trajectory]],
    batch: Batch,
    consumed_rows: Sequence[str],
) -> None:
    """The groups of a committed step. Call it after the commit.

    `consumed_rows` are the ids that the trainer reports from inside its micro-batches: what is booked as
    trained is what it consumed, and a row that it never saw (or saw twice) breaks the balance.
    """
    seen = Counter(consumed_rows)
    rows_of: dict[str, list[int]] = {group.id: [] for group in groups}
    for row, trajectory_id in enumerate(batch.ids):
        rows_of[batch.group_ids[row]].extend([row] * seen[trajectory_id])
    trained, useful = _tokens_per_row(batch)
    for group, extra in zip(groups, extras, strict=True):
        rows = rows_of[group.id]
        failed = [t for t in group.trajectories if isinstance(t.outcome, Failure)]
        trajectories, tokens = _dropped((*failed, *extra), DropReason.BASELINE)
        context.counters.trained_tokens += int(trained[rows].sum())
        context.counters.useful_tokens += int(useful[rows].sum())
        context.books.book(
            GroupEnded(
                group_id=group.id,
                fate="trained",
                step=context.counters.step,
                policy_version=context.roles.trainer.policy_version,
                num_trained_trajectories=len(rows),
                trained_tokens=int(trained[rows].sum()),
                useful_tokens=int(useful[rows].sum()),
                dropped_trajectories=trajectories,
                dropped_tokens=tokens,
            )
        )


def _tokens_per_row(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """[B] tokens trained on, and those of them whose advantage is not zero."""
    starts = batch.offsets[:-1]
    trained = np.add.reduceat(batch.loss_mask.astype(np.int64), starts)
    if batch.advantages is None:
        return trained, trained
    useful = np.add.reduceat((batch.loss_mask & (batch.advantages != 0)).astype(np.int64), starts)
    return trained, useful


def _dropped(
    trajectories: Sequence[Trajectory], reason: DropReason
) -> tuple[dict[DropReason, int], dict[DropReason, int]]:
    counts: Counter[DropReason] = Counter()
    tokens: Counter[DropReason] = Counter()
    for trajectory in trajectories:
        own = trajectory.outcome
        why = DropReason(own.reason) if isinstance(own, Failure) else reason
        counts[why] += 1
        tokens[why] += trajectory.num_tokens
    return dict(counts), dict(tokens)
