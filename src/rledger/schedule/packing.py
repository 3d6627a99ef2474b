"""What is computed together: updates of whole groups, micro-batches of packed rows, shares of ranks.

Legend for shapes: B rows of a batch, T tokens of the batch, S tokens of a micro-batch, N its loss
tokens.

A micro-batch lays the prompt of a group down once and its completions behind it:

    [prompt of a] [row 0] [row 1] [row 2] [prompt of b] [row 3] ...

Completions attend to their prompt and to themselves. A row is computed up to the token that
predicts its last loss token; what stands behind that has no say in the loss.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from rledger.errors import DataError
from rledger.types import Batch

__all__ = [
    "PackedRows",
    "Piece",
    "balance",
    "pack",
    "plan_micro_batches",
    "select_rows",
    "split_updates",
]

I64 = npt.NDArray[np.int64]
_TOKEN_COLUMNS = (
    "token_ids",
    "loss_mask",
    "policy_versions",
    "generator_logprobs",
    "old_logprobs",
    "ref_logprobs",
    "values",
    "token_rewards",
    "advantages",
    "returns",
)
_ROW_COLUMNS = ("prompt_lengths", "rewards", "truncated", "baseline_rewards")


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens start <= i < start + length of a micro-batch, which see the prefix and, causally,
    themselves; a prompt and a row that shares nothing have a prefix of length 0."""

    start: int
    length: int
    prefix_start: int
    prefix_length: int


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A micro-batch of `rows` of a batch, laid end to end."""

    rows: tuple[int, ...]  # indices into the batch, in the order of the batch
    token_ids: I64  # [S]
    positions: I64  # [S] place of the token within its row
    pieces: tuple[Piece, ...]
    sources: I64  # [N] token of the micro-batch that predicts the loss token
    targets: I64  # [N] id of the loss token
    columns: I64  # [N] the loss token's index in the batch's token columns
    row_numbers: I64  # [N] place of the loss token's row in `rows`

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_loss_tokens(self) -> int:
        return len(self.sources)

    @property
    def num_pairs(self) -> int:
        """Query-key pairs that the causal masks let through."""
        return sum(
            piece.length * piece.prefix_length + piece.length * (piece.length + 1) // 2
            for piece in self.pieces
        )


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Rows that are computed together: one row, or rows of a group that share their prompt."""

    rows: tuple[int, ...]
    shared: int  # tokens of the prompt that is computed once
    num_tokens: int


def plan_micro_batches(
    batch: Batch, budget_tokens: int, groups: Sequence[int] | None = None
) -> list[PackedRows]:
    """Micro-batches of at most `budget_tokens` computed tokens that hold every row with a loss token,
    of all groups or of the given ones.

    As few as first-fit decreasing finds, then evened out (longest first onto the emptiest), without
    randomness. Rows of a group whose prompts are equal stay together where they fit the budget; else
    the group is cut, and each part computes the prompt again. A row longer than the budget gets a
    micro-batch of its own: one long answer must not end a run, and the budget bounds memory only
    as far as single rows allow. Raises DataError where a row's first token carries loss: nothing
    predicts it.
    """
    chosen = range(batch.num_groups) if groups is None else groups
    bundles = _bundles(batch, _computed_lengths(batch), budget_tokens, chosen)
    sizes = [bundle.num_tokens for bundle in bundles]
    bins = _first_fit_decreasing(sizes, budget_tokens)
    even = balance(sizes, len(bins)) if bins else []
    if all(sum(sizes[i] for i in part) <= budget_tokens for part in even):
        bins = even
    return [pack(batch, [bundles[i] for i in sorted(part)]) for part in sorted(map(sorted, bins))]


def balance(costs: Sequence[float], num_parts: int) -> list[list[int]]:
    """Indices of `costs` in `num_parts` parts of nearly equal sums; the largest goes first, each
    onto the part that is least loaded. Ties go to the lower index, so the outcome is fixed."""
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    loads = [(0.0, part) for part in range(num_parts)]
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, part = heapq.heappop(loads)
        parts[part].append(index)
        heapq.heappush(loads, (load + costs[index], part))
    return [sorted(part) for part in parts]


def split_updates(batch: Batch, num_updates: int) -> list[Batch]:
    """The batch in `num_updates` parts of whole groups, in order, as equal in groups as can be.

    Raises DataError where there are fewer groups than updates.
    """
    if num_updates == 1:
        return [batch]
    if batch.num_groups < num_updates:
        raise DataError(
            f"trainer.num_updates_per_step = {num_updates}, but only {batch.num_groups} groups of"
            " this step survived: an update would have nothing to learn from; lower"
            " num_updates_per_step or raise run.num_prompts_per_step"
        )
    parts = np.array_split(np.arange(batch.num_groups), num_updates)
    return [select_rows(batch, np.flatnonzero(np.isin(batch.groups, part))) for part in parts]


def select_rows(batch: Batch, rows: Sequence[int] | I64) -> Batch:
    """The batch of these rows, in this order; rows of a group must stay together."""
    indices = np.asarray(rows, dtype=np.int64)
    lengths = batch.lengths[indices]
    tokens = _ranges(batch.offsets[indices], lengths)
    old_groups = batch.groups[indices]
    starts = np.r_[True, old_groups[1:] != old_groups[:-1]][: len(indices)]
    columns: dict[str, object] = {}
    for names, index in ((_TOKEN_COLUMNS, tokens), (_ROW_COLUMNS, indices)):
        for name in names:
            column = getattr(batch, name)
            columns[name] = None if column is None else column[index]
    return replace(
        batch,
        ids=tuple(batch.ids[i] for i in indices),
        group_ids=tuple(batch.group_ids[i] for i in indices),
        groups=(np.cumsum(starts) - 1).astype(np.int32),
        offsets=np.r_[0, np.cumsum(lengths)].astype(np.int64),
        reward_components={name: c[indices] for name, c in batch.reward_components.items()},
        **columns,  # type: ignore[arg-type]
    )


def _ranges(starts: I64, lengths: I64) -> I64:
    """start, start + 1, ... for each start, laid end to end."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: I64 = np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)
    return places


def _computed_lengths(batch: Batch) -> I64:
    """[B] tokens of each row that are computed: all before its last loss token; 0 without one."""
    where = np.flatnonzero(batch.loss_mask)
    rows = np.searchsorted(batch.offsets, where, "right") - 1
    places = where - batch.offsets[rows]
    if (places == 0).any():
        row = int(rows[np.argmin(places)])
        raise DataError(
            f"trajectory {batch.ids[row]}: its first token is trained on, but nothing predicts it;"
            " a prompt needs at least one token (a beginning-of-text token will do)"
        )
    lengths = np.zeros(batch.num_rows, np.int64)
    np.maximum.at(lengths, rows, places)
    return lengths


def _bundles(
    batch: Batch, lengths: I64, budget_tokens: int, groups: Sequence[int]
) -> list[_Bundle]:
    bundles = []
    for group in groups:
        members = [int(r) for r in np.flatnonzero(batch.groups == group) if lengths[r] > 0]
        for rows in _same_prompt(batch, members):
            bundles += _cut(rows, int(batch.prompt_lengths[rows[0]]), lengths, budget_tokens)
    return bundles


def _same_prompt(batch: Batch, rows: Sequence[int]) -> list[list[int]]:
    """The rows of a group, those with equal prompts together."""
    by_prompt: dict[bytes, list[int]] = {}
    for row in rows:
        start = int(batch.offsets[row])
        prompt = batch.token_ids[start : start + int(batch.prompt_lengths[row])]
        by_prompt.setdefault(prompt.tobytes(), []).append(row)
    return list(by_prompt.values())


def _cut(rows: Sequence[int], prompt: int, lengths: I64, budget_tokens: int) -> list[_Bundle]:
    """Rows of one prompt in bundles that fit the budget, filled in order."""
    bundles: list[_Bundle] = []
    current: list[int] = []
    used = prompt
    for row in rows:
        own = max(int(lengths[row]) - prompt, 0)
        if current and used + own > budget_tokens:
            bundles.append(_Bundle(tuple(current), prompt, used))
            current, used = [], prompt
        current.append(row)
        used += own
    bundles.append(_Bundle(tuple(current), prompt, used))
    return bundles


def _first_fit_decreasing(sizes: Sequence[int], budget: int) -> list[list[int]]:
    bins: list[list[int]] = []
    loads: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        for number, load in enumerate(loads):
            if load + sizes[index] <= budget:
                bins[number].append(index)
                loads[number] += sizes[index]
                break
        else:
            bins.append([index])
            loads.append(sizes[index])
    return bins


def pack(batch: Batch, bundles: Sequence[_Bundle]) -> PackedRows:
    """Lay bundles end to end."""
    lengths = _computed_lengths(batch)
    rows: list[int] = []
    pieces: list[Piece] = []
    taken: list[tuple[int, int]] = []  # ranges of the batch's tokens, in the order of the pieces
    places: list[int] = []  # first position of each range
    before: list[tuple[int, int, int]] = []  # of each row: start, prompt's start, prompt's length
    cursor = 0
    for bundle in bundles:
        first = int(batch.offsets[bundle.rows[0]])
        prefix_start, prefix = 0, 0
        if len(bundle.rows) > 1:
            prefix_start, prefix = cursor, bundle.shared
            pieces.append(Piece(cursor, prefix, 0, 0))
            taken.append((first, prefix))
            places.append(0)
            cursor += prefix
        for row in bundle.rows:
            own = int(lengths[row]) - prefix
            before.append((cursor, prefix_start, prefix))
            rows.append(row)
            if own > 0:
                pieces.append(Piece(cursor, own, prefix_start, prefix))
                taken.append((int(batch.offsets[row]) + prefix, own))
                places.append(prefix)
                cursor += own
    starts, sizes = (np.array(column, np.int64) for column in zip(*taken, strict=True))
    return PackedRows(
        rows=tuple(rows),
        token_ids=batch.token_ids[_ranges(starts, sizes)].astype(np.int64),
        positions=_ranges(np.array(places, np.int64), sizes),
        pieces=tuple(pieces),
        **_loss_tokens(batch, rows, before),
    )


def _loss_tokens(
    batch: Batch, rows: Sequence[int], before: Sequence[tuple[int, int, int]]
) -> dict[str, I64]:
    """sources, targets, columns and row_numbers of the loss tokens of the packed rows."""
    sources, columns, numbers = [], [], []
    for number, (row, (start, prefix_start, prefix)) in enumerate(zip(rows, before, strict=True)):
        offset = int(batch.offsets[row])
        place = np.flatnonzero(batch.loss_mask[offset : int(batch.offsets[row + 1])])
        predictor = place - 1
        sources.append(
            np.where(predictor < prefix, prefix_start + predictor, start + predictor - prefix)
        )
        columns.append(offset + place)
        numbers.append(np.full(len(place), number, np.int64))
    where = np.concatenate(columns)
    return {
        "sources": np.concatenate(sources),
        "targets": batch.token_ids[where].astype(np.int64),
        "columns": where,
        "row_numbers": np.concatenate(numbers),
    }


assert {*_TOKEN_COLUMNS, *_ROW_COLUMNS} < {field.name for field in fields(Batch)}
