"""The decoder as the generator runs it equals the decoder as it is defined."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_model import VOCAB_SIZE, decoder_of, twin
from torch import Tensor

from rledger.models.digest import weights_digest
from rledger.models.inference import InferenceDecoder
from rledger.models.names import export_hf_state

CPU = torch.device("cpu")


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[T, N, H]: one sequence, in the plainest way."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qnh,knh->nqk", q, k) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    return torch.einsum("nqk,knh->qnh", scores.masked_fill(hidden, -math.inf).softmax(-1), v)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("row_invariant", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_equals_the_decoder_in_float32(family: str, row_invariant: bool, tied: bool) -> None:
    decoder = decoder_of(twin(family, tied=tied))
    fast = InferenceDecoder(
        decoder.spec,
        export_hf_state(decoder),
        dtype=torch.float32,
        device=CPU,
        row_invariant=row_invariant,
    )
    ids, positions = torch.arange(40) * 7 % VOCAB_SIZE, torch.arange(40) + 3
    with torch.inference_mode():
        wanted = decoder.logits(decoder.forward_hidden(ids, positions, causal))
        found = fast.logits(fast.forward_hidden(ids, positions, causal))
    assert wanted.std() > 0.5
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_serves_the_weights_it_was_given_bit_for_bit(family: str, dtype: torch.dtype) -> None:
    decoder = decoder_of(twin(family, tied=False), dtype)
    given = export_hf_state(decoder)
    fast = InferenceDecoder(decoder.spec, given, dtype=dtype, device=CPU)
    served = fast.weights()
    assert served.keys() == given.keys()
    assert all(torch.equal(served[name], given[name]) for name in given)
    assert fast.digest() == weights_digest(given)
