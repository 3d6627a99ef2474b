"""The decoder as a generator runs it: weights of its own, laid out for the fastest kernels, no gradient.

The definition of the model is `decoder.py`; this is the same arithmetic with fewer and faster kernels,
and a test holds the two together. Weights come and go under Hugging Face names.

Legend for shapes: T tokens (rows), D width, V vocabulary, N query heads, K key/value heads, H head
size, F width of the feed-forward part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from rledger.models.decoder import Attend
from rledger.models.digest import weights_digest
from rledger.models.names import from_hf, to_hf
from rledger.models.rope import rotary_table
from rledger.modelspec import ModelSpec

__all__ = ["InferenceDecoder"]


class _Matrix:
    """A weight matrix [rows, columns] with its bias, packed for oneDNN where that is to be had."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, rows_hint: int, device: torch.device
    ) -> None:
        self.bias = None if bias is None else bias.to(device, copy=True)
        self.shape = weight.shape
        self.packed = _can_pack(device, weight.dtype)
        self.weight: Tensor
        if self.packed:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows_hint)
        else:
            self.weight = weight.to(device, copy=True)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, rows] of x [T, columns]."""
        if self.packed:
            # torch.ops are untyped
            return cast(
                Tensor,
                torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], ""),
            )
        return F.linear(x, self.weight, self.bias)

    def dense(self) -> Tensor:
        """The matrix as it was given, bit for bit."""
        if self.packed:
            return self.weight.to_dense().view(self.shape)
        return self.weight


class _Norm:
    """Root mean square norm over the last dimension, in float32, rounded once.

    x / sqrt(mean(x^2) + eps) * w  =  x / hypot(|x|, sqrt(D eps)) * (w sqrt(D)): half the kernels.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        size = weight.shape[0]
        self._scaled = weight.float() * math.sqrt(size)
        self._floor = torch.full((1,), math.sqrt(size * eps), device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return torch.div(x, length.hypot_(self._floor)).mul_(self._scaled).to(x.dtype)


def _can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


@dataclass(frozen=True, slots=True)
class _LayerWeights:
    attention_norm: _Norm
    qkv_proj: _Matrix
    q_norm: _Norm | None
    k_norm: _Norm | None
    out_proj: _Matrix
    mlp_norm: _Norm
    gate_up_proj: _Matrix
    down_proj: _Matrix


class InferenceDecoder:
    """Token ids and positions in, hidden states and logits out, without gradients.

    Owns copies of `weights` (Hugging Face names, any float dtype, converted to `dtype`). `rows_hint` is
    the usual number of rows of a call. With `row_invariant`, a row's bits depend on the number of rows
    of the call alone, not on the row's place or its neighbours, provided the number is a multiple of
    `row_unit(threads)`; elementwise kernels whose vector body and scalar tail differ are avoided.
    Raises ModelError, naming the tensor, before anything is copied.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        device: torch.device,
        rows_hint: int = 64,
        row_invariant: bool = False,
    ) -> None:
        self.spec = spec
        self.dtype = dtype
        self.device = device
        self._row_invariant = row_invariant
        state = from_hf(spec, weights)

        def norm(name: str) -> _Norm:
            weight = state[f"{name}.weight"].detach().to(device, dtype, copy=True)
            return _Norm(weight, spec.rms_eps)

        def head_norm(name: str) -> _Norm | None:
            return norm(name) if f"{name}.weight" in state else None

        def matrix(name: str) -> _Matrix:
            bias = state.get(f"{name}.bias")
            return _Matrix(
                state[f"{name}.weight"].detach().to(device, dtype),
                None if bias is None else bias.detach().to(device, dtype),
                rows_hint=rows_hint,
                device=device,
            )

        self.embedding = state["embedding"].detach().to(device, dtype, copy=True)
        self.layers = tuple(
            _LayerWeights(
                attention_norm=norm(f"layers.{index}.attention_norm"),
                qkv_proj=matrix(f"layers.{index}.qkv_proj"),
                q_norm=head_norm(f"layers.{index}.q_norm"),
                k_norm=head_norm(f"layers.{index}.k_norm"),
                out_proj=matrix(f"layers.{index}.out_proj"),
                mlp_norm=norm(f"layers.{index}.mlp_norm"),
                gate_up_proj=matrix(f"layers.{index}.gate_up_proj"),
                down_proj=matrix(f"layers.{index}.down_proj"),
            )
            for index in range(spec.num_layers)
        )
        self.final_norm = norm("final_norm")
        if spec.tied_embeddings:
            self.head = _Matrix(self.embedding, None, rows_hint=rows_hint, device=device)
            if not self.head.packed:
                self.head.weight = self.embedding
        else:
            self.head = matrix("head")
        # rounded once here, not at each step
        cos, signed_sin = rotary_table(spec, device)
        self._cos = cos.to(dtype)[:, None]  # [M, 1, H]
        self._signed_sin = signed_sin.to(dtype)[:, None]

    def forward_hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[T, D] after the final norm, of token_ids [T] int64 at positions [T] int64."""
        spec = self.spec
        num_rotated = spec.num_heads + spec.num_kv_heads
        cos, signed_sin = self._cos[positions], self._signed_sin[positions]
        x = F.embedding(token_ids, self.embedding)
        for index, layer in enumerate(self.layers):
            heads = layer.qkv_proj(layer.attention_norm(x)).view(x.shape[0], -1, spec.head_size)
            turned = heads[:, :num_rotated]
            if layer.q_norm is not None and layer.k_norm is not None:
                turned = torch.cat(
                    (
                        layer.q_norm(heads[:, : spec.num_heads]),
                        layer.k_norm(heads[:, spec.num_heads : num_rotated]),
                    ),
                    dim=1,
                )
            turned = torch.addcmul(
                turned * cos, turned.roll(spec.head_size // 2, dims=-1), signed_sin
            )
            attended = attend(
                index,
                turned[:, : spec.num_heads],
                turned[:, spec.num_heads :],
                heads[:, num_rotated:],
            )
            x = x.add_(layer.out_proj(attended.reshape(x.shape[0], -1)))
            gated = self._swiglu(layer.gate_up_proj(layer.mlp_norm(x)))
            x = x.add_(layer.down_proj(gated))
        return self.final_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, V] of hidden [N, D], in the weights' dtype."""
        return self.head(hidden)

    def _swiglu(self, gate_up: Tensor) -> Tensor:
        """[T, F] silu(gate) * up of gate_up [T, 2F]."""
        gate, up = gate_up.chunk(2, dim=-1)
        if self._row_invariant:
            # F.silu's scalar tail differs from its vector body in the last bit; exp's does not
            gate32 = gate.float()
            return (gate32 / torch.exp(-gate32).add_(1.0)).mul_(up).to(self.dtype)
        return F.silu(gate).mul_(up)

    def weights(self) -> dict[str, Tensor]:
        """The weights served, under Hugging Face names, bit for bit as they are used; not to be changed."""
        state = {"embedding": self.embedding, "final_norm.weight": self.final_norm.weight}
        if not self.spec.tied_embeddings:
            state["head.weight"] = self.head.dense()
        for index, layer in enumerate(self.layers):
            for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm"):
                norm = cast("_Norm | None", getattr(layer, name))
                if norm is not None:
                    state[f"layers.{index}.{name}.weight"] = norm.weight
            for name in ("qkv_proj", "out_proj", "gate_up_proj", "down_proj"):
                matrix = cast(_Matrix, getattr(layer, name))
                state[f"layers.{index}.{name}.weight"] = matrix.dense()
                if matrix.bias is not None:
                    state[f"layers.{index}.{name}.bias"] = matrix.bias
        return to_hf(self.spec, state)

    def digest(self) -> str:
        """`models.digest` of the weights served, unpacked again: what computes is what is vouched for."""
        return weights_digest(self.weights())
