"""FLOP formulas against torch's own counter on transformers models, and against counts by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from rledger.cost import (
    Cost,
    adamw_cost,
    backward_cost,
    causal_pairs,
    decode_cost,
    forward_cost,
    head_cost,
    kv_bytes_per_token,
    layers_cost,
    mfu_flops,
    prefill_cost,
    sampling_cost,
    shared_prefix_pairs,
)
from rledger.modelspec import ModelSpec

SPEC = ModelSpec(
    family="llama",
    vocab_size=97,
    width=48,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_size=8,
    ffn_width=80,
    max_positions=64,
)


def build(spec: ModelSpec):
    settings = dict(
        vocab_size=spec.vocab_size,
        hidden_size=spec.width,
        intermediate_size=spec.ffn_width,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_size,
        max_position_embeddings=spec.max_positions,
        attn_implementation="eager",
        tie_word_embeddings=False,
    )
    if spec.family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**settings))
    return LlamaForCausalLM(LlamaConfig(**settings))


QWEN = ModelSpec(
    family="qwen3",
    vocab_size=61,
    width=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=1,
    head_size=16,
    ffn_width=40,
    max_positions=64,
)


@pytest.mark.parametrize("spec", [SPEC, QWEN], ids=["llama", "qwen3"])
@pytest.mark.parametrize("length", [1, 7, 20])
def test_forward_and_backward_equal_the_counter(spec: ModelSpec, length: int) -> None:
    model = build(spec)
    ids = torch.randint(0, spec.vocab_size, (3, length))
    with FlopCounterMode(display=False) as forward:
        logits = model(input_ids=ids, use_cache=False).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    # The eager kernel computes the masked half of each square too.
    squares = 3 * length * length
    assert forward.get_total_flops() == forward_cost(spec, 3 * length, squares, 3 * length, 4).flops
    expected = backward_cost(spec, 3 * length, squares, 3 * length, 4).flops
    assert backward.get_total_flops() == expected


def test_decode_with_a_cache_equals_the_counter() -> None:
    model = build(SPEC).eval()
    ids = torch.randint(0, SPEC.vocab_size, (5, 11))
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids[:, :1], cache=cache, use_cache=True)
    assert counter.get_total_flops() == decode_cost(SPEC, [11] * 5, 4).flops


def test_one_layer_by_hand() -> None:
    # q, out: 48x48 each; k, v: 48x16 each; gate, up, down: 48x80 each.
    weights = 2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 80
    # 4 tokens, causal: 1 + 2 + 3 + 4 = 10 pairs, each a product with k and one with v over 6 x 8.
    flops = 2 * weights * 4 + 10 * 2 * 2 * 6 * 8
    cost = layers_cost(SPEC, 4, causal_pairs(4), 2)
    assert cost.flops == 2 * flops
    assert cost.bytes == 2 * weights * 2 + 4 * kv_bytes_per_token(SPEC, 2)
    assert kv_bytes_per_token(SPEC, 2) == 2 * 2 * 2 * 8 * 2
    assert head_cost(SPEC, 3, 2) == Cost(2 * 48 * 97 * 3, 48 * 97 * 2)
    assert head_cost(SPEC, 0, 2) == Cost(0, 0)


def test_weights_agree_with_the_table_of_tensors() -> None:
    table = sum(t.size for t in SPEC.tensors() if len(t.shape) == 2 and t.layer is not None)
    assert layers_cost(SPEC, 1, 0, 1).flops == 2 * table


@given(st.integers(0, 30), st.integers(0, 30))
def test_pairs_are_those_a_mask_lets_through(length: int, prefix: int) -> None:
    pairs = sum(1 for q in range(length) for k in range(prefix + length) if k <= prefix + q)
    assert causal_pairs(length, prefix) == pairs


@given(st.integers(1, 20), st.lists(st.integers(0, 20), max_size=5))
def test_a_shared_prompt_saves_its_repetitions_and_nothing_else(prefix, lengths) -> None:
    alone = sum(causal_pairs(prefix + length) for length in lengths)
    shared = shared_prefix_pairs(prefix, lengths)
    assert alone - shared == (len(lengths) - 1) * causal_pairs(prefix)


def test_decoding_after_a_prefill_is_the_forward_pass_token_by_token() -> None:
    whole = layers_cost(SPEC, 9, causal_pairs(9), 2).flops
    prefill = prefill_cost(SPEC, [5], 2).flops
    decode = sum(decode_cost(SPEC, [context], 2).flops for context in range(5, 9))
    assert prefill + decode == whole + head_cost(SPEC, 5, 2).flops


def test_decode_reads_weights_once_for_all_rows_and_shared_keys_once() -> None:
    one, many = decode_cost(SPEC, [10], 2), decode_cost(SPEC, [10] * 8, 2)
    kv = kv_bytes_per_token(SPEC, 2)
    assert many.bytes - one.bytes == 7 * 11 * kv
    shared = decode_cost(SPEC, [10] * 8, 2, shared_read_tokens=7 * 6)
    assert many.bytes - shared.bytes == 7 * 6 * kv
    assert many.flops == 8 * one.flops


def test_recomputing_activations_adds_a_forward_pass_of_the_layers() -> None:
    plain = backward_cost(SPEC, 10, 55, 4, 2)
    again = backward_cost(SPEC, 10, 55, 4, 2, recompute=True)
    assert again.flops - plain.flops == layers_cost(SPEC, 10, 55, 2).flops
    assert plain.flops == 2 * forward_cost(SPEC, 10, 55, 4, 2).flops


def test_optimizer_and_sampling_are_bound_by_memory() -> None:
    assert adamw_cost(1000) == Cost(14_000, 28_000)
    assert adamw_cost(1000, weight_bytes=4, gradient_bytes=2).bytes == 26_000
    assert sampling_cost(SPEC, 3) == Cost(6 * 3 * 97, 2 * 3 * 97 * 4)


def test_the_customary_mfu_estimate_by_hand() -> None:
    weights = 2 * (2 * 48 * 48 + 2 * 48 * 16 + 3 * 48 * 80) + 2 * 97 * 48
    assert mfu_flops(SPEC, [3, 5]) == 6 * weights * 8 + 6 * (9 + 25) * 6 * 8 * 2
