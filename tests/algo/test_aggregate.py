"""Aggregations equal loops, and do not depend on how an update is cut into micro-batches."""

from __future__ import annotations

from typing import get_args

import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import batches, column, loss_inputs, row_ids
from test_loss import CONFIGS, IDS

from rledger.algo.aggregate import Normaliser, aggregate, token_weights
from rledger.algo.loss import compute
from rledger.config.policy_loss import Aggregation

MODES = get_args(Aggregation)
SCALE = 16.0


def normaliser_of(rows):
    mask = column(rows, "mask", torch.bool)
    return Normaliser.of(mask, row_ids(rows), len(rows), SCALE)


def loss_of(config, rows, mode, normaliser):
    inputs = loss_inputs(rows)
    outputs = compute(config, inputs)
    args = (mode, inputs.loss_mask, inputs.rows, inputs.num_rows, normaliser)
    loss = aggregate(outputs.token_losses, *args)
    (gradient,) = torch.autograd.grad(loss, inputs.logprobs)
    return loss.detach(), gradient, outputs.metrics


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=50, deadline=None)
@given(rows=batches())
def test_equals_the_loop(mode, rows):
    losses = [[x if m else None for x, m in zip(r.advantages, r.mask, strict=True)] for r in rows]
    expected = naive.aggregate(losses, mode, SCALE)
    token_losses = column(rows, "advantages")  # NaN outside the mask
    args = (column(rows, "mask", torch.bool), row_ids(rows), len(rows), normaliser_of(rows))
    result = aggregate(token_losses, mode, *args)
    torch.testing.assert_close(
        result, torch.as_tensor(expected, dtype=torch.float64), atol=1e-10, rtol=1e-10
    )


def cut(rows, pieces):
    """Rows dealt to micro-batches by the numbers of `pieces`; empty ones are left out."""
    dealt = {}
    for i, row in enumerate(rows):
        dealt.setdefault(pieces[i % len(pieces)], []).append(row)
    return list(dealt.values())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("config", CONFIGS, ids=IDS[:-1])
@settings(max_examples=8, deadline=None)
@given(rows=batches(min_rows=2), pieces=st.lists(st.integers(0, 3), min_size=1, max_size=16))
def test_micro_batches_add_up_to_the_update(config, mode, rows, pieces):
    if config.depends_on_micro_batching:
        return
    normaliser = normaliser_of(rows)
    whole, whole_gradient, whole_metrics = loss_of(config, rows, mode, normaliser)
    total, sums = torch.zeros(()).double(), {}
    norm = torch.zeros(()).double()
    for part in cut(rows, pieces):
        loss, gradient, metrics = loss_of(config, part, mode, normaliser)
        total += loss
        norm += gradient.square().sum()
        for name, (n, d) in metrics.items():
            before = sums.get(name, (0, 0))
            sums[name] = (before[0] + n, before[1] + d)
    torch.testing.assert_close(total, whole, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(norm, whole_gradient.square().sum(), atol=1e-10, rtol=1e-10)
    for name, pair in whole_metrics.items():
        torch.testing.assert_close(torch.stack(sums[name]), torch.stack(pair), msg=name)


def test_a_recipes_aggregation_is_obeyed_by_sequence_losses_too():
    rows = [
        naive.Row(0, [True] * 3, 0.0, [], logprobs=[-1.0] * 3, old_logprobs=[-1.0] * 3, advantages=[1.0] * 3),
        naive.Row(0, [True], 0.0, [], logprobs=[-1.0], old_logprobs=[-1.0], advantages=[-1.0]),
    ]  # fmt: skip
    for config in CONFIGS:
        if config.type in {"gspo", "geo_mean"}:
            normaliser = normaliser_of(rows)
            by_token = loss_of(config, rows, "token_mean", normaliser)[0].item()
            by_row = loss_of(config, rows, "seq_mean_token_mean", normaliser)[0].item()
            assert by_token == pytest.approx((-3 + 1) / 4)
            assert by_row == pytest.approx((-1 + 1) / 2)


def test_rejected_tokens_shrink_or_renormalise_as_the_normaliser_says():
    mask = torch.tensor([True, True, True, True])
    kept = torch.tensor([True, False, False, True])
    rows = torch.tensor([0, 0, 1, 1])
    losses = torch.tensor([1.0, 5.0, 5.0, 3.0])
    before = Normaliser.of(mask, rows, 2)
    after = Normaliser.of(kept, rows, 2)
    assert aggregate(losses, "token_mean", kept, rows, 2, before) == pytest.approx(4 / 4)
    assert aggregate(losses, "token_mean", kept, rows, 2, after) == pytest.approx(4 / 2)


def test_rows_without_loss_tokens_do_not_count():
    mask = torch.tensor([True, True, False])
    normaliser = Normaliser.of(mask, torch.tensor([0, 0, 1]), 3)
    assert normaliser == Normaliser(num_loss_tokens=2, num_rows=1)
    weights = token_weights("seq_mean_token_mean", mask, torch.tensor([0, 0, 1]), 3, normaliser)
    assert weights.tolist() == [0.5, 0.5, 0.0]


def test_an_update_without_loss_tokens_is_0():
    mask = torch.zeros(2, dtype=torch.bool)
    rows = torch.tensor([0, 1])
    normaliser = Normaliser.of(mask, rows, 2, SCALE)
    for mode in MODES:
        assert aggregate(torch.tensor([1.0, 2.0]), mode, mask, rows, 2, normaliser) == 0


def test_the_norm_mode_demands_its_scale():
    mask, rows = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"needs Normaliser\.scale"):
        token_weights("seq_mean_token_sum_norm", mask, rows, 1, Normaliser.of(mask, rows, 1))
