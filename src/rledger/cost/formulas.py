"""FLOPs and least bytes of a decoder's operations, from its spec alone.

Legend: T tokens computed, R rows of a decode batch, S tokens of a sequence, L layers, N query
heads, K key-value heads, H head size, D width, F feed-forward width, V vocabulary.

FLOPs count matrix products only, 2 m n k each; norms, rotations, activations and softmax are left
out.
Attention counts the query-key pairs that the causal mask lets through; a kernel that computes the
masked half as well does twice the work for the same count. Bytes are the least that must cross to
memory: every weight read once a pass, keys and values read and written once. Activations are not
counted, so bytes are a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rledger.modelspec import ModelSpec

__all__ = [
    "Cost",
    "adamw_cost",
    "backward_cost",
    "causal_pairs",
    "decode_cost",
    "forward_cost",
    "head_cost",
    "kv_bytes_per_token",
    "layers_cost",
    "mfu_flops",
    "prefill_cost",
    "sampling_cost",
    "shared_prefix_pairs",
]


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of an operation; costs add up."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.flops * times, self.bytes * times)

    def bound_s(self, flops_per_s: float, bytes_per_s: float) -> float:
        """Least seconds on a machine of these rates, work and traffic overlapping perfectly."""
        return max(self.flops / flops_per_s, self.bytes / bytes_per_s)


def causal_pairs(length: int, prefix: int = 0) -> int:
    """Query-key pairs of `length` new tokens that see `prefix` earlier ones and themselves.

    Example: 3 tokens after 2 see 3 + 4 + 5 = 12.
    """
    return length * prefix + length * (length + 1) // 2


def shared_prefix_pairs(prefix: int, lengths: Iterable[int]) -> int:
    """Pairs of a prompt computed once, and of completions that all attend to it."""
    return causal_pairs(prefix) + sum(causal_pairs(length, prefix) for length in lengths)


def kv_bytes_per_token(spec: ModelSpec, element_bytes: int) -> int:
    """Keys and values of one token over all layers: 2 L K H elements."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_size * element_bytes


def layers_cost(
    spec: ModelSpec, num_tokens: int, num_pairs: int, element_bytes: int, num_passes: int = 1
) -> Cost:
    """The L layers over T tokens; each of `num_passes` passes reads every weight once."""
    per_token = 2 * _layer_weights(spec)
    attention = 4 * num_pairs * spec.num_heads * spec.head_size
    return Cost(
        flops=spec.num_layers * (per_token * num_tokens + attention),
        bytes=num_passes * spec.num_layers * _layer_weights(spec) * element_bytes
        + num_tokens * kv_bytes_per_token(spec, element_bytes),
    )


def head_cost(spec: ModelSpec, num_scored: int, element_bytes: int, num_passes: int = 1) -> Cost:
    """Logits of `num_scored` positions: 2 D V each. The logits themselves are not written back."""
    weights = spec.width * spec.vocab_size
    return Cost(2 * weights * num_scored, num_passes * weights * element_bytes * (num_scored > 0))


def forward_cost(
    spec: ModelSpec,
    num_tokens: int,
    num_pairs: int,
    num_scored: int,
    element_bytes: int,
    num_passes: int = 1,
) -> Cost:
    """A forward pass that yields log-probabilities of `num_scored` positions."""
    return layers_cost(spec, num_tokens, num_pairs, element_bytes, num_passes) + head_cost(
        spec, num_scored, element_bytes, num_passes
    )


def backward_cost(
    spec: ModelSpec,
    num_tokens: int,
    num_pairs: int,
    num_scored: int,
    element_bytes: int,
    num_passes: int = 1,
    *,
    recompute: bool = False,
) -> Cost:
    """The backward pass of the same: each product becomes two, and weights are read, gradients
    read and written. `recompute` adds the layers' forward pass (activation checkpointing)."""
    forward = forward_cost(spec, num_tokens, num_pairs, num_scored, element_bytes, num_passes)
    weights = forward_cost(spec, 0, 0, min(num_scored, 1), element_bytes, num_passes).bytes
    cost = Cost(2 * forward.flops, forward.bytes + 2 * weights)
    if recompute:
        cost += layers_cost(spec, num_tokens, num_pairs, element_bytes, num_passes)
    return cost


def prefill_cost(spec: ModelSpec, lengths: Sequence[int], element_bytes: int) -> Cost:
    """Prompts of these lengths in one pass; one position each is scored to sample from."""
    pairs = sum(causal_pairs(length) for length in lengths)
    return forward_cost(spec, sum(lengths), pairs, len(lengths), element_bytes)


def decode_cost(
    spec: ModelSpec, contexts: Sequence[int], element_bytes: int, *, shared_read_tokens: int = 0
) -> Cost:
    """One token for each of R rows with these many tokens in the cache before it.

    `shared_read_tokens` are reads saved where rows read the cache of a shared prompt together.
    """
    pairs = sum(context + 1 for context in contexts)
    cost = forward_cost(spec, len(contexts), pairs, len(contexts), element_bytes)
    cached = sum(contexts) - shared_read_tokens
    return cost + Cost(0, cached * kv_bytes_per_token(spec, element_bytes))


def adamw_cost(
    num_parameters: int, *, weight_bytes: int = 4, state_bytes: int = 4, gradient_bytes: int = 4
) -> Cost:
    """One AdamW update: about 14 operations a parameter; weight and two moments read and written,
    the gradient read. Bound by memory on every machine."""
    per_parameter = 2 * weight_bytes + 4 * state_bytes + gradient_bytes
    return Cost(14 * num_parameters, per_parameter * num_parameters)


def sampling_cost(spec: ModelSpec, num_rows: int, logit_bytes: int = 4) -> Cost:
    """Drawing a token per row: scale, maximum, exponentials and sums over V logits, about 6
    operations each, read once and written once."""
    return Cost(6 * num_rows * spec.vocab_size, 2 * num_rows * spec.vocab_size * logit_bytes)


def mfu_flops(spec: ModelSpec, lengths: Sequence[int]) -> int:
    """FLOPs of forward and backward as `perf/mfu/actor` has them by custom (verl's estimate).

    6 x parameters x tokens + 6 N H L sum(S^2). It counts the embedding look-up as a matrix product,
    every token as scored, and each row's prompt again though it is computed once: compare it with
    other runs' MFU, not with the work done (`forward_cost` + `backward_cost`).
    """
    parameters = spec.num_layers * _layer_weights(spec) + 2 * spec.vocab_size * spec.width
    squares = sum(length * length for length in lengths)
    attention = 6 * squares * spec.num_heads * spec.head_size * spec.num_layers
    return 6 * parameters * sum(lengths) + attention


def _layer_weights(spec: ModelSpec) -> int:
    """Elements of the matrices of one layer: q, k, v, out, gate, up, down."""
    heads = 2 * spec.num_heads + 2 * spec.num_kv_heads
    return spec.width * heads * spec.head_size + 3 * spec.width * spec.ffn_width
