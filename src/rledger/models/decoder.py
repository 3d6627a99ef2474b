"""One decoder for Llama, Qwen2 and Qwen3, serving trainer and generator alike.

Legend for shapes: T tokens of all sequences laid end to end, D width, V vocabulary, N query heads,
K key/value heads, H head size, F width of the feed-forward part.

There is no batch dimension and no padding: the caller lays sequences end to end and supplies
attention, which alone knows where they begin (the trainer's is packed, the generator's owns a
cache).
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rledger.errors import ModelError
from rledger.models.rope import rotary_table
from rledger.models.rowwise import rms_norm, rotate, swiglu
from rledger.modelspec import ModelSpec

__all__ = ["Attend", "Decoder", "Layer", "Linear", "RMSNorm"]


class Attend(Protocol):
    """Causal attention of one layer within each sequence, scaled by 1/sqrt(H)."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        """[T, N, H] from q [T, N, H], k and v [T, K, H]; q and k are normalised and rotated."""
        ...


class Linear(nn.Module):
    """x @ weight.T + bias. Unlike nn.Linear it draws no weights that are then overwritten."""

    def __init__(
        self, columns: int, rows: int, *, bias: bool, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns, dtype=dtype, device=device))
        self.bias = nn.Parameter(torch.empty(rows, dtype=dtype, device=device)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[.., rows] of x [.., columns]."""
        return F.linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in float32."""

    def __init__(
        self, size: int, eps: float, *, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype, device=device))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Layer(nn.Module):
    """One transformer layer in two halves, around an attention that it does not know."""

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()
        self.spec = spec

        def linear(columns: int, rows: int, bias: bool) -> Linear:
            return Linear(columns, rows, bias=bias, dtype=dtype, device=device)

        def norm(size: int) -> RMSNorm:
            return RMSNorm(size, spec.rms_eps, dtype=dtype, device=device)

        self.attention_norm = norm(spec.width)
        self.qkv_proj = linear(spec.width, spec.q_width + 2 * spec.kv_width, spec.qkv_bias)
        self.q_norm = norm(spec.head_size) if spec.qk_norm else None
        self.k_norm = norm(spec.head_size) if spec.qk_norm else None
        self.out_proj = linear(spec.q_width, spec.width, spec.attention_out_bias)
        self.mlp_norm = norm(spec.width)
        self.gate_up_proj = linear(spec.width, 2 * spec.ffn_width, spec.mlp_bias)
        self.down_proj = linear(spec.ffn_width, spec.width, spec.mlp_bias)

    def qkv(self, x: Tensor, cos: Tensor, signed_sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, N, H], k [T, K, H], v [T, K, H] of x [T, D]; q and k normalised and rotated."""
        spec = self.spec
        heads = self.qkv_proj(self.attention_norm(x)).view(x.shape[0], -1, spec.head_size)
        if self.q_norm is None or self.k_norm is None:
            # one rotation for queries and keys: half the kernels
            qk, v = heads.split_with_sizes(
                [spec.num_heads + spec.num_kv_heads, spec.num_kv_heads], 1
            )
            qk = rotate(qk, cos, signed_sin)
            q, k = qk.split_with_sizes([spec.num_heads, spec.num_kv_heads], 1)
            return q, k, v
        q, k, v = heads.split_with_sizes([spec.num_heads, spec.num_kv_heads, spec.num_kv_heads], 1)
        q = rotate(self.q_norm(q), cos, signed_sin)
        return q, rotate(self.k_norm(k), cos, signed_sin), v

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """[T, D]: x [T, D] plus what attention [T, N, H] and the feed-forward part add."""
        x = x + self.out_proj(attended.reshape(x.shape[0], -1))
        gated = swiglu(self.gate_up_proj(self.mlp_norm(x)))
        return x + cast(Tensor, self.down_proj(gated))

    def forward(
        self, index: int, x: Tensor, cos: Tensor, signed_sin: Tensor, attend: Attend
    ) -> Tensor:
        """[T, D] of x [T, D]; `index` is passed on to `attend`."""
        return self.finish(x, attend(index, *self.qkv(x, cos, signed_sin)))


class Decoder(nn.Module):
    """Token ids and positions in; hidden states, and from them logits or values, out.

    Weights are uninitialised: `load_decoder` or `random_decoder` fill them. With `value_head` the
    model is a critic: it has `values` in place of `logits`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        value_head: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.spec = spec
        self.has_value_head = value_head
        self.checkpoint_activations = False  # recompute each layer in the backward pass
        self.embedding = nn.Parameter(
            torch.empty(spec.vocab_size, spec.width, dtype=dtype, device=device)
        )
        self.layers = nn.ModuleList(
            Layer(spec, dtype=dtype, device=device) for _ in range(spec.num_layers)
        )
        self.final_norm = RMSNorm(spec.width, spec.rms_eps, dtype=dtype, device=device)
        self.head: Linear | None = None
        self.value_head: Linear | None = None
        if value_head:
            self.value_head = Linear(spec.width, 1, bias=True, dtype=dtype, device=device)
        else:
            self.head = Linear(spec.width, spec.vocab_size, bias=False, dtype=dtype, device=device)
            if spec.tied_embeddings:
                self.head.weight = self.embedding

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def lm_head_weight(self) -> Tensor:
        """[V, D]; the embedding itself when they are tied. A critic has none: ModelError."""
        return self._language_head().weight

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sine [T, H] in the weights' dtype for `Layer.qkv`; once a forward pass."""
        cos, signed_sin = rotary_table(self.spec, self.device)
        return cos[positions].to(self.dtype), signed_sin[positions].to(self.dtype)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[T, D] of token_ids [T]."""
        return F.embedding(token_ids, self.embedding)

    def forward_hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[T, D] after the final norm, of token_ids [T] int64 at positions [T] int64.

        Positions are below `spec.max_positions`. Under `checkpoint_activations` `attend` runs twice
        for each layer, so it must have no effects.
        """
        cos, signed_sin = self.rotary(positions)
        x = self.embed(token_ids)
        recompute = self.checkpoint_activations and torch.is_grad_enabled()
        for index, layer in enumerate(self.layers):
            if recompute:
                x = checkpoint(
                    layer,
                    index,
                    x,
                    cos,
                    signed_sin,
                    attend,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
            else:
                x = layer(index, x, cos, signed_sin, attend)
        return cast(Tensor, self.final_norm(x))

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, V] of hidden [N, D], in the weights' dtype. A critic has none: ModelError."""
        return cast(Tensor, self._language_head()(hidden))

    def values(self, hidden: Tensor) -> Tensor:
        """[N] float32 of hidden [N, D]. Only a critic has them: else ModelError."""
        if self.value_head is None:
            raise ModelError(
                "this decoder was built without a value head; load it with value_head=True."
            )
        return cast(Tensor, self.value_head(hidden)).squeeze(-1).float()

    def _language_head(self) -> Linear:
        if self.head is None:
            raise ModelError(
                "this decoder is a critic: it has a value head and no language-model head."
            )
        return self.head
