"""Each policy loss equals a loop over tokens, value and gradient, and what it does at the edges."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged import batches, flat, loss_inputs, row_advantages, with_leaves

from rledger.algo.aggregate import Normaliser, aggregate
from rledger.algo.divergence import binary_kl
from rledger.algo.loss import LOSSES, compute
from rledger.config.policy_loss import (
    CispoLoss,
    ClipCovLoss,
    DppoKlLoss,
    DppoTvLoss,
    DroLoss,
    GeoMeanLoss,
    GspoLoss,
    KlCovLoss,
    PpoLoss,
    ReinforceLoss,
    SapoLoss,
)

# Bounds are tight, so that random ratios lie on both sides of each.
CASES = [
    (PpoLoss(clip_low=0.2, clip_high=0.28), lambda r: naive.ppo(r, 0.2, 0.28, 3.0)),
    (PpoLoss(dual_clip=1.3), lambda r: naive.ppo(r, 0.2, 0.2, 1.3)),
    (PpoLoss(dual_clip=None), lambda r: naive.ppo(r, 0.2, 0.2, None)),
    (GspoLoss(clip_low=0.1, clip_high=0.15), lambda r: naive.gspo(r, 0.1, 0.15)),
    (CispoLoss(clip_low=0.3, clip_high=0.4), lambda r: naive.cispo(r, 0.3, 0.4)),
    (CispoLoss(), lambda r: naive.cispo(r, 1.0, 4.0)),
    (SapoLoss(tau_positive=1.0, tau_negative=1.5), lambda r: naive.sapo(r, 1.0, 1.5)),
    (
        DppoTvLoss(divergence_low=0.05, divergence_high=0.1, ratio_cap=1.2),
        lambda r: naive.dppo_tv(r, 0.05, 0.1, 1.2),
    ),
    (
        DppoKlLoss(divergence_low=0.01, divergence_high=0.02, ratio_cap=1.2),
        lambda r: naive.dppo_kl(r, 0.01, 0.02, 1.2),
    ),
    (KlCovLoss(share=0.3, coef=0.7), lambda r: naive.kl_cov(r, 0.3, 0.7)),
    (GeoMeanLoss(clip_low=0.2, clip_high=0.3), lambda r: naive.geo_mean(r, 0.2, 0.3)),
    (DroLoss(beta=0.5), lambda r: naive.dro(r, 0.5)),
    (ReinforceLoss(), naive.reinforce),
]
CLIP_COV = ClipCovLoss(share=0.3, cov_low=-0.2, cov_high=0.8)
CONFIGS = [config for config, _ in CASES]
ALL_CONFIGS = [*CONFIGS, CLIP_COV]
IDS = [f"{i}-{config.type}" for i, config in enumerate(ALL_CONFIGS)]


def test_every_loss_has_a_case_here():
    assert {config.type for config in ALL_CONFIGS} == set(LOSSES)


@pytest.mark.parametrize(("config", "oracle"), CASES, ids=IDS[:-1])
@settings(max_examples=50, deadline=None)
@given(rows=batches(), seed=st.integers(0, 2**31))
def test_value_and_gradient_equal_the_loop(config, oracle, rows, seed):
    inputs = loss_inputs(rows)
    outputs = compute(config, inputs)
    rows, leaves = with_leaves(rows)
    expected = oracle(rows)
    torch.testing.assert_close(outputs.token_losses.detach(), flat(expected), atol=1e-9, rtol=1e-9)

    # An arbitrary weighting of the tokens, so that a gradient on the wrong token shows. Rows share
    # one weight, as every aggregation does it: gspo's gradients belong to the whole row.
    generator = random.Random(seed)
    weights = [generator.uniform(0.5, 2.0) for _ in rows]
    flat_weights = [w for w, row in zip(weights, rows, strict=True) for _ in row.mask]
    on_tokens = torch.tensor(flat_weights, dtype=torch.float64)
    (outputs.token_losses * on_tokens).sum().backward()
    pairs = zip(expected, weights, strict=True)
    total = sum(w * x for row, w in pairs for x in row if x is not None)
    if not isinstance(total, torch.Tensor):
        assert not any(any(row.mask) for row in rows)
        return
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    expected_grads = torch.stack([torch.zeros(()).double() if g is None else g for g in grads])
    assert inputs.logprobs.grad is not None
    torch.testing.assert_close(inputs.logprobs.grad, expected_grads, atol=1e-9, rtol=1e-9)


@settings(max_examples=60, deadline=None)
@given(rows=batches())
def test_gspo_has_the_gradient_of_the_papers_sequence_objective(rows):
    config = GspoLoss(clip_low=0.1, clip_high=0.15)
    rows = row_advantages(rows)
    inputs = loss_inputs(rows)
    normaliser = Normaliser.of(inputs.loss_mask, inputs.rows, inputs.num_rows)
    args = (inputs.loss_mask, inputs.rows, inputs.num_rows, normaliser)
    loss = aggregate(compute(config, inputs).token_losses, "seq_mean_token_mean", *args)
    rows, leaves = with_leaves(rows)
    per_row = [x for x in naive.gspo_rows(rows, 0.1, 0.15) if x is not None]
    if not per_row:
        assert loss == 0
        return
    expected = sum(per_row) / len(per_row)
    torch.testing.assert_close(loss.detach(), expected.detach(), atol=1e-9, rtol=1e-9)
    loss.backward()
    grads = torch.autograd.grad(expected, leaves, allow_unused=True)
    expected_grads = torch.stack([torch.zeros(()).double() if g is None else g for g in grads])
    torch.testing.assert_close(inputs.logprobs.grad, expected_grads, atol=1e-9, rtol=1e-9)


SMOOTH = [c for c in ALL_CONFIGS if c.type in {"ppo", "sapo", "geo_mean", "dro", "reinforce"}]
SMOOTH += [KlCovLoss(share=0.3, coef=0.7), CLIP_COV]


@pytest.mark.parametrize("config", SMOOTH, ids=lambda c: c.type)
def test_gradcheck(config):
    generator = torch.Generator().manual_seed(1)
    rows = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    old = -torch.rand(9, generator=generator, dtype=torch.float64) - 0.1
    steps = torch.tensor([0.1, -0.5, 0.6, -0.02, 0.4, -0.7, 0.05, 0.33, -0.11])
    advantages = torch.tensor([1.0, 1.0, 1.0, -2.0, -2.0, 0.5, 0.5, -0.5, 0.0]).double()
    inputs = loss_inputs([], seed=3)
    inputs = replace(
        inputs,
        logprobs=(old + steps).requires_grad_(),
        old_logprobs=old,
        advantages=advantages,
        loss_mask=torch.tensor([True] * 7 + [False, True]),
        rows=rows,
        num_rows=3,
    )

    def token_losses(logprobs):
        return compute(config, replace(inputs, logprobs=logprobs)).token_losses

    assert torch.autograd.gradcheck(token_losses, (inputs.logprobs,))


@pytest.mark.parametrize("config", ALL_CONFIGS, ids=IDS)
@settings(max_examples=25, deadline=None)
@given(rows=batches())
def test_nothing_outside_the_mask_is_read_and_inputs_stay(config, rows):
    inputs = loss_inputs(rows, seed=0)  # NaN outside the mask
    names = ("logprobs", "old_logprobs", "advantages", "loss_mask", "rows")
    before = {name: getattr(inputs, name).detach().clone() for name in names}
    outputs = compute(config, inputs)
    assert outputs.token_losses.isfinite().all()
    assert outputs.token_losses[~inputs.loss_mask].count_nonzero() == 0
    outputs.token_losses.sum().backward()
    assert inputs.logprobs.grad is not None
    assert inputs.logprobs.grad.isfinite().all()
    assert inputs.logprobs.grad[~inputs.loss_mask].count_nonzero() == 0
    assert inputs.old_logprobs.grad is None
    for name, tensor in before.items():
        here = getattr(inputs, name).detach()
        torch.testing.assert_close(here, tensor, rtol=0, atol=0, equal_nan=True, msg=name)
    for numerator, denominator in outputs.metrics.values():
        assert not numerator.requires_grad
        assert numerator.shape == denominator.shape == ()
        assert denominator == inputs.loss_mask.sum()


@pytest.mark.parametrize("config", ALL_CONFIGS, ids=IDS)
def test_extreme_ratios_stay_finite_in_float32(config):
    logprobs = torch.tensor([0.0, -1e-8, -80.0, -1e4, 0.0, -60.0])
    old = torch.tensor([-1e4, -90.0, -1e-8, 0.0, 0.0, -60.0])
    for sign in (1.0, -1.0):
        inputs = replace(
            loss_inputs([], torch.float32, seed=0),
            logprobs=logprobs.clone().requires_grad_(),
            old_logprobs=old,
            advantages=torch.full((6,), sign),
            loss_mask=torch.ones(6, dtype=torch.bool),
            rows=torch.tensor([0, 0, 1, 1, 2, 2]),
            num_rows=3,
        )
        outputs = compute(config, inputs)
        outputs.token_losses.sum().backward()
        assert outputs.token_losses.dtype == torch.float32
        assert outputs.token_losses.isfinite().all()
        assert inputs.logprobs.grad is not None
        assert inputs.logprobs.grad.isfinite().all()


@pytest.mark.parametrize("config", CONFIGS, ids=IDS[:-1])
@settings(max_examples=20, deadline=None)
@given(rows=batches(min_rows=2), seed=st.integers(0, 99))
def test_permuting_rows_permutes_losses(config, rows, seed):
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    parts = compute(config, loss_inputs(rows)).token_losses.split([len(r.mask) for r in rows])
    there = compute(config, loss_inputs([rows[i] for i in order])).token_losses
    torch.testing.assert_close(there, torch.cat([parts[i] for i in order]), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("config", ALL_CONFIGS, ids=IDS)
def test_at_ratio_1_the_gradient_is_the_policy_gradient(config):
    """The first update of a step: whatever the loss, -A on each token (KL-cov's penalty is flat there)."""
    mask = torch.tensor([True, True, False, True])
    logprobs = torch.tensor([-0.5, -1.0, -2.0, 0.0]).double().requires_grad_()  # certain at last
    advantages = torch.tensor([2.0, 2.0, 0.0, -1.0]).double()
    config = config.model_copy(update={"cov_low": 50.0, "cov_high": 51.0})
    inputs = replace(
        loss_inputs([], seed=0),
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        advantages=advantages,
        loss_mask=mask,
        rows=torch.tensor([0, 0, 0, 1]),
        num_rows=2,
    )
    compute(config, inputs).token_losses.sum().backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, -advantages * mask)


@pytest.mark.parametrize("config", ALL_CONFIGS, ids=IDS)
def test_importance_weights_multiply_the_token_losses_of_every_loss(config):
    rows = [
        naive.Row(0, [True, False, True], 0.0, [], logprobs=[-0.5, 0.0, -0.7],
                  old_logprobs=[-0.6, 0.0, -0.9], advantages=[1.0, 0.0, 1.0]),
        naive.Row(0, [True], 0.0, [], logprobs=[-0.2], old_logprobs=[-0.4], advantages=[-1.0]),
    ]  # fmt: skip
    weights = torch.tensor([0.5, float("nan"), 0.0, 2.0], dtype=torch.float64)
    plain = compute(config, loss_inputs(rows, seed=0)).token_losses
    weighted = compute(config, loss_inputs(rows, seed=0, weights=weights)).token_losses
    expected = plain * torch.tensor([0.5, 0.0, 0.0, 2.0])
    torch.testing.assert_close(weighted, expected.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary_kl_of_a_token_that_was_or_became_certain_is_finite(dtype):
    old = torch.tensor([0.0, 0.0, -0.5, -1e-3], dtype=dtype)
    new = torch.tensor([0.0, -1e-3, -1e-6, -0.5], dtype=dtype)
    far = binary_kl(old, new).tolist()
    assert far[:2] == pytest.approx([0.0, 1e-3], abs=1e-6)  # p_old = 1: KL is -logprob
    expected = [
        naive.bernoulli_kl(math.exp(a), math.exp(b)) for a, b in [(-0.5, -1e-6), (-1e-3, -0.5)]
    ]
    assert far[2:] == pytest.approx(expected, rel=1e-4)


# Random selection


def cov_batch(n=400, seed=0):
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(n, generator=generator, dtype=torch.float64) * 3 - 0.01
    return replace(
        loss_inputs([]),
        logprobs=old + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64),
        old_logprobs=old,
        advantages=torch.randn(n, generator=generator, dtype=torch.float64),
        loss_mask=torch.rand(n, generator=generator) < 0.8,
        rows=torch.arange(n) // 10,
        num_rows=n // 10,
    )


def test_clip_cov_drops_the_gradient_of_the_right_number_of_tokens_in_the_band():
    config = ClipCovLoss(share=0.05, cov_low=0.1, cov_high=2.0)
    inputs = cov_batch()
    mask = inputs.loss_mask
    losses = compute(config, replace(inputs, seed=1)).token_losses
    plain = compute(PpoLoss(dual_clip=None), inputs).token_losses
    dropped = mask & (losses == 0) & (plain != 0)
    a, lp = inputs.advantages, inputs.logprobs
    cov = (a - a[mask].mean()) * (lp - lp[mask].mean())
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    clipped = ((a > 0) & (ratio > 1.2)) | ((a < 0) & (ratio < 0.8))
    band = mask & ~clipped & (cov > 0.1) & (cov < 2.0)
    assert band.sum() > 2 * int(0.05 * mask.sum())  # there is a choice to make
    assert dropped.sum() == int(0.05 * mask.sum())
    assert (dropped & ~band).sum() == 0
    assert torch.equal(losses[mask & ~dropped], plain[mask & ~dropped])


def test_clip_cov_draws_by_its_seed_and_leaves_the_global_generator_alone():
    config = ClipCovLoss(share=0.05, cov_low=0.1, cov_high=2.0)
    inputs = cov_batch()
    state = torch.get_rng_state()
    first, again, other = (
        compute(config, replace(inputs, seed=seed)).token_losses for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(ValueError, match="seed must be given"):
        compute(config, replace(inputs, seed=None))


def test_clip_cov_draws_at_least_one_and_at_most_the_band():
    inputs = replace(cov_batch(), seed=0)
    few = compute(ClipCovLoss(share=1e-6, cov_low=0.1, cov_high=2.0), inputs)
    assert few.metrics["actor/pg_covfrac"][0] == 1
    none = compute(ClipCovLoss(share=1.0, cov_low=1e6, cov_high=1e7), inputs)
    assert none.metrics["actor/pg_covfrac"][0] == 0


# Metrics


def test_ppo_metrics_count_what_was_clipped():
    rows = [
        naive.Row(0, [True] * 5 + [False], 0.0, [],
                  logprobs=[-0.5, -0.5, -2.0, -0.5, -1.0, -0.5],
                  old_logprobs=[-1.0, -1.0, -1.0, -2.0, -1.0, -9.0],
                  advantages=[1.0, -1.0, -1.0, -1.0, 1.0, 1.0])
    ]  # fmt: skip
    metrics = compute(PpoLoss(), loss_inputs(rows)).metrics
    value = {name: (n / d).item() for name, (n, d) in metrics.items()}
    assert value["actor/pg_clipfrac"] == pytest.approx(2 / 5)  # up with A > 0, down with A < 0
    assert value["actor/pg_clipfrac_lower"] == pytest.approx(1 / 5)  # exp(1.5) > 3 with A < 0
    assert value["actor/ppo_kl"] == pytest.approx(-(0.5 + 0.5 - 1.0 + 1.5 + 0.0) / 5)


@pytest.mark.parametrize(
    ("config", "upper", "lower"),
    [
        (GeoMeanLoss(clip_low=0.4, clip_high=0.4), 1, 1),
        (GspoLoss(clip_low=0.1, clip_high=0.1), 1, 0),
        (CispoLoss(clip_low=0.2, clip_high=0.2), 4, 0),
        (DppoTvLoss(divergence_low=0.2, divergence_high=0.2, ratio_cap=1.3), 1, 1),
    ],
    ids=lambda x: str(x)[:12],
)
def test_clip_shares_of_other_losses(config, upper, lower):
    # log-ratios +0.5 and -0.5 with A > 0, the same with A < 0, then 0.15 with A > 0
    up_down = {"logprobs": [-0.5, -1.5], "old_logprobs": [-1.0, -1.0]}
    rows = [
        naive.Row(0, [True] * 2, 0.0, [], advantages=[1.0, 1.0], **up_down),
        naive.Row(0, [True] * 2, 0.0, [], advantages=[-1.0, -1.0], **up_down),
        naive.Row(0, [True], 0.0, [], logprobs=[-0.95], old_logprobs=[-1.1], advantages=[1.0]),
    ]
    metrics = compute(config, loss_inputs(rows)).metrics
    assert metrics["actor/pg_clipfrac"][0].item() == upper
    assert metrics["actor/pg_clipfrac_lower"][0].item() == lower


def test_masks_of_another_dtype_are_refused():
    inputs = cov_batch()
    with pytest.raises(ValueError, match=r"expected torch\.bool"):
        replace(inputs, loss_mask=inputs.loss_mask.float())
