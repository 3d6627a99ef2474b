"""KL estimators equal their formulas, penalties do not touch their inputs, controllers move as told."""

from __future__ import annotations

import math

import naive
import pytest
import torch
from hypothesis import given, settings
from ragged import batches, column, flat, row_ids

from rledger.algo.kl import (
    AdaptiveKlController,
    build_kl_controller,
    kl_estimate,
    kl_in_reward,
    kl_loss,
)
from rledger.config.algorithm import KlInReward
from rledger.errors import CheckpointError

PLAIN = ["k1", "k2", "k3", "abs"]


@pytest.mark.parametrize("estimator", [*PLAIN, "k1+", "k3+"])
@settings(max_examples=40, deadline=None)
@given(rows=batches())
def test_value_and_gradient_equal_the_loop(estimator, rows):
    logprobs = column(rows, "logprobs").requires_grad_()
    mask = column(rows, "mask", torch.bool)
    outputs = kl_loss(logprobs, column(rows, "ref_logprobs"), mask, estimator)
    leaves = [x.detach().clone().requires_grad_() for x in logprobs]
    refs = [x for row in rows for x in row.ref_logprobs]
    zero = torch.zeros(()).double()

    def total(name):
        terms = zip(leaves, refs, mask, strict=True)
        return [naive.kl(x, ref, name) if m else zero for x, ref, m in terms]

    expected = torch.stack(total(estimator[:2] if estimator.endswith("+") else estimator))
    torch.testing.assert_close(outputs.token_losses.detach(), expected.detach())
    numerator, denominator = outputs.metrics["actor/kl_loss"]
    torch.testing.assert_close(numerator, expected.detach().sum())
    assert denominator == mask.sum()

    outputs.token_losses.sum().backward()
    gradient_of = sum(total("k2" if estimator.endswith("+") else estimator))
    if gradient_of.requires_grad:
        grads = torch.autograd.grad(gradient_of, leaves, allow_unused=True)
        grads = torch.stack([zero if g is None else g for g in grads])
        torch.testing.assert_close(logprobs.grad, grads)
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("estimator", PLAIN)
def test_gradcheck(estimator):
    ref = torch.tensor([-1.0, -0.5, -3.0], dtype=torch.float64)
    logprobs = torch.tensor([-0.3, -0.9, -2.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, ref, estimator), (logprobs,))


def test_k3_is_bounded_and_finite_for_log_ratios_of_50():
    logprobs = torch.tensor([-50.0, 0.0]).requires_grad_()
    ref = torch.tensor([0.0, -50.0])
    bounded = kl_estimate(logprobs, ref, "k3")
    assert bounded.tolist() == [10.0, 10.0]
    bounded.sum().backward()
    assert logprobs.grad.tolist() == [0.0, 0.0]
    logprobs.grad = None
    kl_estimate(logprobs, ref, "k3+").sum().backward()  # the way back is open
    assert logprobs.grad.tolist() == [-50.0, 50.0]


def test_k1_and_k3_estimate_the_divergence_and_k2_plus_forms_its_gradient():
    """Over all outcomes of a small distribution, weighted by their probability."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.float64, requires_grad=True)
    ref = torch.log_softmax(torch.tensor([1.0, 0.0, -0.5, 0.2], dtype=torch.float64), 0)
    logprobs = torch.log_softmax(logits, 0)
    probabilities = logprobs.detach().exp()
    exact = (logprobs.exp() * (logprobs - ref)).sum()
    (exact_gradient,) = torch.autograd.grad(exact, logits, retain_graph=True)
    for estimator in ("k1", "k3", "k1+", "k3+"):
        mean = (probabilities * kl_estimate(logprobs, ref, estimator)).sum()
        assert mean.item() == pytest.approx(exact.item())
        (gradient,) = torch.autograd.grad(mean, logits, retain_graph=True)
        right = torch.allclose(gradient, exact_gradient)
        assert right == estimator.endswith("+"), estimator


@pytest.mark.parametrize("estimator", PLAIN)
@settings(max_examples=40, deadline=None)
@given(rows=batches())
def test_kl_in_reward_equals_the_loop_and_leaves_the_rewards(estimator, rows):
    rewards = torch.ones(sum(len(row.mask) for row in rows)).double()
    penalised, metrics = kl_in_reward(
        rewards,
        column(rows, "old_logprobs"),
        column(rows, "ref_logprobs"),
        column(rows, "mask", torch.bool),
        row_ids(rows),
        len(rows),
        estimator,
        0.25,
    )
    assert (rewards == 1).all()
    terms = []
    for row in rows:
        own = [None] * len(row.mask)
        for t in row.chosen:
            old = torch.tensor(row.old_logprobs[t], dtype=torch.float64)
            own[t] = naive.kl(old, row.ref_logprobs[t], estimator).item()
        terms.append(own)
    torch.testing.assert_close(penalised, 1.0 - 0.25 * flat(terms))
    row_means = [naive.mean([x for x in t if x is not None]) for t in terms if any(
        x is not None for x in t)]  # fmt: skip
    numerator, denominator = metrics["actor/reward_kl_penalty"]
    assert denominator == len(row_means)
    assert numerator.item() == pytest.approx(sum(row_means))


def test_the_fixed_controller_stays_and_has_no_state():
    controller = build_kl_controller(KlInReward(coef=0.2))
    controller.update(99.0, 1000)
    assert controller.coef == 0.2
    assert controller.state_dict() == {}


def test_the_adaptive_controller_moves_towards_its_target():
    controller = build_kl_controller(
        KlInReward(coef=0.2, controller="adaptive", target=0.1, horizon_trajectories=100)
    )
    controller.update(0.11, 50)  # 10 % above, half a horizon
    assert controller.coef == pytest.approx(0.2 * 1.05)
    controller.update(5.0, 50)  # far above counts as 20 %
    assert controller.coef == pytest.approx(0.2 * 1.05 * 1.1)
    controller.update(0.0, 10_000)  # far below, a step longer than the horizon
    assert controller.coef == pytest.approx(0.2 * 1.05 * 1.1 * 0.8)


def test_the_adaptive_controller_resumes_where_it_was():
    one = AdaptiveKlController(0.2, 0.1, 100)
    one.update(0.3, 30)
    two = AdaptiveKlController(0.2, 0.1, 100)
    two.load_state_dict(one.state_dict())
    for controller in (one, two):
        controller.update(0.05, 70)
    assert one.coef == two.coef != 0.2


@pytest.mark.parametrize("state", [{}, {"coef": math.nan}, {"coef": -1.0}, {"coef": "0.1"}])
def test_a_foreign_controller_state_is_refused(state):
    with pytest.raises(CheckpointError, match="adaptive KL controller"):
        AdaptiveKlController(0.2, 0.1, 100).load_state_dict(state)
