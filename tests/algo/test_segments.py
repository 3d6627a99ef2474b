"""Segment reductions and scans equal plain loops."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rledger.algo.groups import place_rewards
from rledger.algo.segments import (
    next_in_segment,
    reverse_discounted_scan,
    segment_count,
    segment_max,
    segment_mean,
    segment_min,
    segment_std,
    segment_sum,
    whiten,
)

FLOATS = st.floats(-5, 5, width=32)
SEGMENTS = st.lists(st.lists(st.tuples(FLOATS, st.booleans()), max_size=6), min_size=1, max_size=5)


def unpack(segments):
    values = torch.tensor([v for s in segments for v, _ in s], dtype=torch.float32)
    mask = torch.tensor([m for s in segments for _, m in s], dtype=torch.bool)
    ids = torch.tensor([i for i, s in enumerate(segments) for _ in s], dtype=torch.int64)
    kept = [[v for v, m in s if m] for s in segments]
    return values, mask, ids, kept


@settings(deadline=None)
@given(SEGMENTS)
def test_reductions_equal_loops(segments):
    values, mask, ids, kept = unpack(segments)
    n = len(segments)
    close = lambda a, b: torch.testing.assert_close(  # noqa: E731
        a.to(torch.float64), torch.tensor(b, dtype=torch.float64)
    )
    close(segment_sum(values, ids, n, mask), [math.fsum(s) for s in kept])
    close(segment_count(ids, n, mask), [float(len(s)) for s in kept])
    close(segment_mean(values, ids, n, mask), [math.fsum(s) / max(len(s), 1) for s in kept])
    close(
        segment_std(values, ids, n, mask),
        [statistics.stdev(s) if len(s) > 1 else 0.0 for s in kept],
    )
    close(segment_max(values, ids, n, mask), [max(s, default=-math.inf) for s in kept])
    close(segment_min(values, ids, n, mask), [min(s, default=math.inf) for s in kept])


@settings(deadline=None)
@given(SEGMENTS, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_scan_and_shift_equal_loops(segments, discount):
    values, _, ids, _ = unpack(segments)
    scanned, following = [], []
    for segment in segments:
        y, back = 0.0, []
        for v, _ in reversed(segment):
            y = v + discount * y
            back.append(y)
        scanned += back[::-1]
        following += [v for v, _ in segment[1:]] + [0.0] * bool(segment)
    expected = torch.tensor(scanned, dtype=torch.float64)
    torch.testing.assert_close(reverse_discounted_scan(values, ids, discount), expected)
    assert next_in_segment(values, ids).tolist() == following


@pytest.mark.parametrize("length", [1, 2, 3, 127, 128, 129, 4097])
def test_scan_of_long_rows_next_to_short_ones(length):
    ids = torch.tensor([2] * length + [0] + [1] * 3)
    scanned = reverse_discounted_scan(torch.ones(length + 4), ids, 1.0)
    assert scanned.tolist() == [*range(length, 0, -1), 1, 3, 2, 1]


def test_whitened_loss_tokens_have_mean_0_and_variance_1():
    values = torch.tensor([1.0, 2.0, 4.0, 100.0, 7.0])
    mask = torch.tensor([True, True, True, False, True])
    result = whiten(values, mask)
    assert result[3] == 0
    torch.testing.assert_close(result[mask].mean().item(), 0.0, atol=1e-7, rtol=0)
    torch.testing.assert_close(result[mask].var().item(), 1.0, atol=1e-6, rtol=0)


def test_whitening_nothing_one_and_equal_values_gives_0():
    values = torch.tensor([3.0, 3.0])
    for mask in ([False, False], [True, False], [True, True]):
        assert whiten(values, torch.tensor(mask)).tolist() == [0.0, 0.0]


def test_rewards_stand_on_the_last_loss_token_of_each_row():
    rows = torch.tensor([1, 1, 1, 0, 0, 2])
    mask = torch.tensor([True, True, False, False, True, False])
    placed = place_rewards(torch.tensor([5.0, 7.0, 9.0]), mask, rows)
    assert placed.tolist() == [0.0, 7.0, 0.0, 0.0, 5.0, 0.0]
