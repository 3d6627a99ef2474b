"""Micro-batches, updates and balance, against what a batch says about itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rledger.errors import DataError
from rledger.schedule.packing import (
    PackedRows,
    balance,
    plan_micro_batches,
    select_rows,
    split_updates,
)
from rledger.types import Batch


def make_batch(groups: list[tuple[int, list[int]]], seed: int = 0) -> Batch:
    """Groups as (prompt tokens, tokens of each completion)."""
    rng = np.random.default_rng(seed)
    rows, prompts, members = [], [], []
    for number, (prompt_tokens, completions) in enumerate(groups):
        prompt = rng.integers(0, 50, prompt_tokens)
        for length in completions:
            rows.append(np.r_[prompt, rng.integers(0, 50, length)])
            prompts.append(prompt_tokens)
            members.append(number)
    lengths = np.array([len(row) for row in rows])
    mask = np.concatenate([np.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)])
    total = int(lengths.sum())
    return Batch(
        ids=tuple(f"r{i}" for i in range(len(rows))),
        group_ids=tuple(f"g{g}" for g in members),
        groups=np.array(members, np.int32),
        offsets=np.r_[0, np.cumsum(lengths)].astype(np.int64),
        prompt_lengths=np.array(prompts, np.int32),
        token_ids=np.concatenate(rows).astype(np.int32),
        loss_mask=mask,
        policy_versions=np.zeros(total, np.int32),
        generator_logprobs=np.arange(total, dtype=np.float32),
        rewards=np.arange(len(rows), dtype=np.float32),
    )


def contexts(packed: PackedRows) -> list[list[int]]:
    """For each loss token: its id after the ids of all that its prediction sees, in order."""
    found = []
    for source, target in zip(packed.sources, packed.targets, strict=True):
        (piece,) = [p for p in packed.pieces if p.start <= source < p.start + p.length]
        seen = [*range(piece.prefix_start, piece.prefix_start + piece.prefix_length)]
        seen += range(piece.start, int(source) + 1)
        assert packed.positions[seen].tolist() == list(range(len(seen)))
        found.append([*packed.token_ids[seen].tolist(), int(target)])
    return found


group = st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=4))
batches = st.lists(group, min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(groups=batches, budget=st.integers(1, 80))
def test_every_loss_token_is_predicted_once_from_its_own_row_whatever_the_budget(
    groups: list[tuple[int, list[int]]], budget: int
) -> None:
    batch = make_batch(groups)
    seen = []
    for packed in plan_micro_batches(batch, budget):
        for column, context in zip(packed.columns, contexts(packed), strict=True):
            row = int(np.searchsorted(batch.offsets, column, "right")) - 1
            expected = batch.token_ids[batch.offsets[row] : column + 1].tolist()
            assert context == expected
            seen.append(int(column))
        numbers = np.searchsorted(batch.offsets, packed.columns, "right") - 1
        assert [packed.rows[i] for i in packed.row_numbers] == numbers.tolist()
    assert sorted(seen) == np.flatnonzero(batch.loss_mask).tolist()


@settings(max_examples=80, deadline=None)
@given(groups=batches, budget=st.integers(1, 80))
def test_a_micro_batch_keeps_its_budget_unless_it_is_one_row(
    groups: list[tuple[int, list[int]]], budget: int
) -> None:
    batch = make_batch(groups)
    for packed in plan_micro_batches(batch, budget):
        assert packed.num_tokens <= budget or len(packed.rows) == 1


def test_a_shared_prompt_is_computed_once_and_last_tokens_not_at_all() -> None:
    batch = make_batch([(5, [4, 3, 1])])
    (packed,) = plan_micro_batches(batch, 100)
    assert packed.num_tokens == 5 + 3 + 2 + 0
    assert packed.num_loss_tokens == 8
    assert packed.num_pairs == 15 + (5 * 3 + 6) + (5 * 2 + 3)


def test_unequal_prompts_of_a_group_are_not_shared() -> None:
    batch = make_batch([(5, [4, 3])])
    tokens = batch.token_ids.copy()
    tokens[0] += 1
    (packed,) = plan_micro_batches(replace(batch, token_ids=tokens), 100)
    assert packed.num_tokens == 8 + 7
    assert [piece.prefix_length for piece in packed.pieces] == [0, 0]


def test_a_group_larger_than_the_budget_is_cut_and_its_prompt_repeated() -> None:
    batch = make_batch([(4, [7, 7, 7, 7])])
    plans = plan_micro_batches(batch, 16)
    assert [packed.rows for packed in plans] == [(0, 1), (2, 3)]
    assert [packed.num_tokens for packed in plans] == [16, 16]


def test_micro_batches_are_few_and_even() -> None:
    batch = make_batch([(10, [11] * 4)] * 8)  # bundles of 50 tokens
    plans = plan_micro_batches(batch, 160)
    assert [len(packed.rows) // 4 for packed in plans] == [3, 3, 2]


def test_rows_without_a_loss_token_are_left_out() -> None:
    batch = make_batch([(3, [2, 0]), (2, [0])])
    (packed,) = plan_micro_batches(batch, 100)
    assert packed.rows == (0,)
    assert plan_micro_batches(make_batch([(3, [0])]), 100) == []


def test_a_first_token_with_loss_is_refused() -> None:
    batch = make_batch([(3, [2])])
    with pytest.raises(DataError, match="trajectory r0"):
        plan_micro_batches(replace(batch, loss_mask=np.ones(5, np.bool_)), 100)


@settings(max_examples=60, deadline=None)
@given(groups=batches, num_updates=st.integers(1, 5))
def test_updates_divide_the_groups_in_order(
    groups: list[tuple[int, list[int]]], num_updates: int
) -> None:
    batch = make_batch(groups)
    if num_updates > len(groups):
        with pytest.raises(DataError, match="num_updates_per_step"):
            split_updates(batch, num_updates)
        return
    parts = split_updates(batch, num_updates)
    assert [i for part in parts for i in part.ids] == list(batch.ids)
    assert np.concatenate([part.token_ids for part in parts]).tolist() == batch.token_ids.tolist()
    sizes = [part.num_groups for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        assert part.groups[0] == 0
        assert int(part.offsets[-1]) == len(part.token_ids) == len(part.loss_mask)


def test_selected_rows_bring_all_their_columns() -> None:
    batch = make_batch([(2, [3, 1]), (1, [2])])
    batch = replace(
        batch,
        advantages=np.arange(len(batch.token_ids), dtype=np.float32),
        reward_components={"format": np.array([0.0, 1.0, 2.0], np.float32)},
        truncated=np.array([True, False, True]),
    )
    chosen = select_rows(batch, [1, 2])
    assert chosen.ids == ("r1", "r2")
    assert chosen.offsets.tolist() == [0, 3, 6]
    assert chosen.groups.tolist() == [0, 1]
    assert chosen.advantages is not None and chosen.advantages.tolist() == [5, 6, 7, 8, 9, 10]
    assert chosen.reward_components["format"].tolist() == [1.0, 2.0]
    assert chosen.truncated is not None and chosen.truncated.tolist() == [False, True]
    assert chosen.values is None


@settings(max_examples=60)
@given(costs=st.lists(st.integers(1, 100), min_size=1, max_size=20), parts=st.integers(1, 4))
def test_balanced_parts_differ_by_less_than_the_largest_cost(costs: list[int], parts: int) -> None:
    shares = balance(costs, parts)
    assert sorted(i for share in shares for i in share) == list(range(len(costs)))
    loads = [sum(costs[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(costs)
