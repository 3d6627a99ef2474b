"""Row-wise functions against their definitions in float64, gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rledger.models.rowwise import ROWS_PER_BLOCK, rms_norm, rotate, swiglu

ROWS = [1, 7, ROWS_PER_BLOCK, ROWS_PER_BLOCK + 1, 3 * ROWS_PER_BLOCK - 5]


def check(ours: Callable[..., Tensor], naive: Callable[..., Tensor], *inputs: Tensor) -> None:
    """Values, and gradients of every input under a random upstream gradient."""
    mine = [t.clone().requires_grad_() for t in inputs]
    exact = [t.double().requires_grad_() for t in inputs]
    out, expected = ours(*mine), naive(*exact)
    assert out.dtype == inputs[0].dtype
    assert (out - expected).abs().max() < 1e-5
    upstream = torch.randn_like(out)
    out.backward(upstream)
    expected.backward(upstream.double())
    for got, want in zip(mine, exact, strict=True):
        assert got.grad is not None and want.grad is not None
        assert torch.allclose(got.grad.double(), want.grad, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(ours(*inputs), out)


@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm_equals_its_definition(rows: int) -> None:
    def naive(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt() * weight

    check(lambda x, w: rms_norm(x, w, 1e-2), naive, torch.randn(rows, 24), torch.randn(24))


def test_rms_norm_of_heads_within_a_wider_row() -> None:
    wide = torch.randn(300, 5, 16)
    heads = wide[:, 1:3]  # not contiguous, as the queries within a fused projection are
    assert torch.equal(
        rms_norm(heads, torch.ones(16), 1e-6), rms_norm(heads.contiguous(), torch.ones(16), 1e-6)
    )


@pytest.mark.parametrize("rows", ROWS)
def test_rotation_equals_complex_multiplication(rows: int) -> None:
    angles = torch.randn(rows, 4, dtype=torch.float64)
    cos = torch.cat((angles.cos(), angles.cos()), 1).float()
    signed_sin = torch.cat((-angles.sin(), angles.sin()), 1).float()

    def naive(x: Tensor) -> Tensor:
        turned = (
            torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)[:, None]
        )
        return torch.cat((turned.real, turned.imag), -1)

    check(lambda x: rotate(x, cos, signed_sin), naive, torch.randn(rows, 3, 8))


@pytest.mark.parametrize("rows", ROWS)
def test_swiglu_equals_its_definition(rows: int) -> None:
    def naive(gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        return gate / (1 + (-gate).exp()) * up

    check(swiglu, naive, torch.randn(rows, 2 * 20))


def test_bfloat16_is_computed_in_float32_and_rounded_once() -> None:
    x, weight = torch.randn(400, 64).bfloat16(), torch.randn(64).bfloat16()
    exact = rms_norm(x.float(), weight.float(), 1e-6)
    assert torch.equal(rms_norm(x, weight, 1e-6), exact.bfloat16())


def test_no_rows_give_no_rows() -> None:
    assert rms_norm(torch.empty(0, 8), torch.ones(8), 1e-6).shape == (0, 8)
    assert swiglu(torch.empty(0, 8)).shape == (0, 4)
