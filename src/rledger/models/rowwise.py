"""What a layer does besides matmul: RMS norm, rotation, gated unit; forward and backward by hand.

Legend for shapes: T tokens (rows), D features of a row, N heads, H head size, F gated features.

Built from torch's elementwise kernels these are a quarter of a training step on a CPU: a dozen passes
over [T, D] in float32, each through memory. Here rows are taken in blocks that stay in a core's cache,
the backward passes recompute what is cheaper than to keep, and nothing is joined afterwards. A row's
result never depends on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["rms_norm", "rotate", "swiglu"]

ROWS_PER_BLOCK = 256  # 256 rows of 576 float32 are 576 KiB, within a core's second-level cache


def _blocks(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """The tensors cut alike along their rows; whole where they fit, and on a GPU."""
    if not tensors[0].is_cpu or len(tensors[0]) <= ROWS_PER_BLOCK:
        return (tensors,)
    return zip(*(tensor.split_with_sizes(_sizes(len(tensor))) for tensor in tensors), strict=True)


def _sizes(rows: int) -> list[int]:
    full, rest = divmod(rows, ROWS_PER_BLOCK)
    return [ROWS_PER_BLOCK] * full + ([rest] if rest else [])


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32, rounded once."""
    if not x.is_cpu:
        # one fused kernel there
        return F.rms_norm(x, weight.shape, weight, eps)
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out = cast(Tensor, _RMSNorm.apply(rows, weight, eps))  # type: ignore[no-untyped-call]
    else:
        out = torch.empty_like(rows)
        weight32 = weight.float()
        for rows_b, out_b in _blocks(rows, out):
            _normalize(rows_b, weight32, eps, out_b)
    return out.view(x.shape)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """[T, 1] of x [T, D] float32."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return cast(Tensor, norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_())


def _normalize(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> Tensor:
    """Write the norm of x [T, D] into out; the inverse root mean squares [T, 1] come back."""
    inverse = _inverse_rms(x32 := x.float(), eps)
    out.copy_(torch.mul(x32, inverse).mul_(weight))
    return inverse


class _RMSNorm(torch.autograd.Function):
    """Keeps its input and one number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out = torch.empty_like(x)
        inverse = torch.empty(len(x), 1, dtype=torch.float32)
        weight32 = weight.float()
        for x_b, inverse_b, out_b in _blocks(x, inverse, out):
            inverse_b.copy_(_normalize(x_b, weight32, eps, out_b))
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """With n = x * inverse: dx = inverse (g w - n mean(g w n)), dw = sum over rows of g n."""
        x, weight, inverse = ctx.saved_tensors
        weight32 = weight.float()
        grad_x = torch.empty_like(x)
        grad_weight = torch.zeros_like(weight32)
        for x_b, scale, grad_b, grad_x_b in _blocks(x, inverse, grad, grad_x):
            normed = x_b.float() * scale
            grad32 = grad_b.float()
            weighted = grad32 * normed
            grad_weight += weighted.sum(0)
            # mean of g w n as a product with the weight: no further pass over the block
            mean = (weighted @ weight32)[:, None].mul_(1.0 / x.shape[-1])
            grad32 = (grad32 * weight32).addcmul_(normed, mean, value=-1.0)
            grad_x_b.copy_(grad32.mul_(scale))
        return grad_x, grad_weight.to(weight.dtype), None


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """x [T, N, H] turned by the angles of cos and signed_sin [T, H], as `rotary_table` lays them."""
    if torch.is_grad_enabled() and x.requires_grad:
        return cast(Tensor, _Rotate.apply(x, cos, signed_sin))  # type: ignore[no-untyped-call]
    return _turn(x, cos, signed_sin, 1.0)


def _turn(x: Tensor, cos: Tensor, signed_sin: Tensor, direction: float) -> Tensor:
    """x cos + direction * swap(x) signed_sin, where swap exchanges the halves of a head."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    for x_b, cos_b, sin_b, out_b in _blocks(x, cos[:, None], signed_sin[:, None], out):
        torch.mul(x_b, cos_b, out=out_b)
        out_b.addcmul_(x_b.roll(x_b.shape[-1] // 2, dims=-1), sin_b, value=direction)
    return out


class _Rotate(torch.autograd.Function):
    """A rotation's gradient is the opposite rotation of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, signed_sin)
        return _turn(x, cos, signed_sin, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, signed_sin = ctx.saved_tensors
        return _turn(grad, cos, signed_sin, -1.0), None, None


def swiglu(gate_up: Tensor) -> Tensor:
    """[T, F] silu(gate) * up of gate_up [T, 2F], the gate in the first half."""
    if torch.is_grad_enabled() and gate_up.requires_grad:
        return cast(Tensor, _SwiGLU.apply(gate_up))  # type: ignore[no-untyped-call]
    return _swiglu(gate_up)


def _swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    for gate_b, up_b, out_b in _blocks(gate, up, out):
        torch.mul(F.silu(gate_b), up_b, out=out_b)
    return out


class _SwiGLU(torch.autograd.Function):
    """Keeps its input alone; silu is computed again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _swiglu(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        grad_gate, grad_up = out.chunk(2, dim=-1)
        for part, gate_b, up_b, grad_gate_b, grad_up_b in _blocks(
            grad, gate, up, grad_gate, grad_up
        ):
            torch.mul(part, F.silu(gate_b), out=grad_up_b)
            torch.ops.aten.silu_backward.grad_input(part * up_b, gate_b, grad_input=grad_gate_b)
        return out
