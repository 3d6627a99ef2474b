"""The critic's loss equals a loop, value and gradient."""

from __future__ import annotations

import naive
import pytest
import torch
from hypothesis import given, settings
from ragged import batches, column

from rledger.algo.loss import value_loss


@pytest.mark.parametrize("eps", [None, 0.3])
@settings(max_examples=60, deadline=None)
@given(rows=batches())
def test_value_and_gradient_equal_the_loop(eps, rows):
    old, target = column(rows, "values"), column(rows, "advantages")  # NaN outside the mask
    mask = column(rows, "mask", torch.bool)
    values = (old + column(rows, "logprobs") * 0.3).requires_grad_()
    outputs = value_loss(values, old, target, mask, eps)
    leaves = [x.detach().clone().requires_grad_() for x in values]
    expected = [
        naive.value(v, o.item(), r.item(), eps) if m else torch.zeros(()).double()
        for v, o, r, m in zip(leaves, old, target, mask, strict=True)
    ]
    torch.testing.assert_close(outputs.token_losses.detach(), torch.stack(expected).detach())
    outputs.token_losses.sum().backward()
    total = sum(expected)
    if total.requires_grad:
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
        grads = torch.stack([torch.zeros(()).double() if g is None else g for g in grads])
        torch.testing.assert_close(values.grad, grads)
    assert values.grad.isfinite().all()


def test_a_value_that_left_the_range_away_from_the_return_has_a_gradient_and_towards_it_none():
    values = torch.tensor([2.0, 2.0, 0.25]).requires_grad_()
    outputs = value_loss(
        values, torch.zeros(3), torch.tensor([-1.0, 5.0, 1.0]), torch.ones(3).bool(), 0.5
    )
    assert outputs.token_losses.tolist() == [4.5, 10.125, 0.28125]
    outputs.token_losses.sum().backward()
    assert values.grad.tolist() == [3.0, 0.0, -0.75]
    numerator, denominator = outputs.metrics["critic/vf_clipfrac"]
    assert (numerator.item(), denominator.item()) == (1, 3)
    assert outputs.metrics["critic/vpred_mean"][0].item() == 4.25


def test_gradcheck():
    old = torch.tensor([0.1, -0.4, 2.0], dtype=torch.float64)
    values = torch.tensor([0.3, 0.5, 1.1], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    mask = torch.tensor([True, True, True])
    assert torch.autograd.gradcheck(
        lambda v: value_loss(v, old, target, mask, 0.5).token_losses, (values,)
    )
