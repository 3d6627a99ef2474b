"""Chunked log-probabilities and entropies against the whole matrix of logits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import rledger.trainer.logprobs as logprobs
from rledger.trainer.logprobs import token_logprobs


@settings(max_examples=40, deadline=None)
@given(
    num=st.integers(1, 40),
    vocab=st.integers(2, 90),
    max_tile=st.integers(20, 400),
    rows=st.integers(1, 20),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    entropy_has_grad=st.booleans(),
    kept_bytes=st.sampled_from([0, 2000, 1 << 28]),
)
def test_values_and_gradients_equal_a_log_softmax_however_it_is_cut(
    num: int,
    vocab: int,
    max_tile: int,
    rows: int,
    temperature: float,
    entropy_has_grad: bool,
    kept_bytes: int,
) -> None:
    source = torch.Generator().manual_seed(num * 100 + vocab)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=source)

    hidden, weight = draw(num, 8).requires_grad_(), (2 * draw(vocab, 8)).requires_grad_()
    targets = torch.randint(0, vocab, (num,), generator=source)
    a, b = draw(num), draw(num) * entropy_has_grad
    weight_grad = torch.zeros_like(weight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(logprobs.MAX_TILE, "cpu", max_tile)
        patch.setitem(logprobs.TILE_ROWS, "cpu", rows)
        patch.setattr(logprobs, "KEPT_BYTES", kept_bytes)
        mine, entropies = token_logprobs(
            hidden, weight, targets, temperature, weight_grad, entropy_has_grad=entropy_has_grad
        )
        loss = (mine * a).sum() + ((entropies * b).sum() if entropy_has_grad else 0.0)
        (grad,) = torch.autograd.grad(loss, hidden)
    logs = torch.log_softmax(hidden @ weight.t() / temperature, -1)
    expected = logs.gather(1, targets[:, None])[:, 0]
    expected_entropies = -(logs.exp() * logs).sum(-1)
    loss = (expected * a).sum() + (expected_entropies * b).sum()
    expected_grad, expected_weight_grad = torch.autograd.grad(loss, (hidden, weight))
    for found, wanted in (
        (mine, expected),
        (entropies, expected_entropies),
        (grad, expected_grad),
        (weight_grad, expected_weight_grad),
    ):
        assert torch.allclose(found, wanted, atol=1e-10)


class _LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return out


def test_the_logits_never_stand_whole() -> None:
    num, width, vocab = 3000, 4, 5000
    hidden = torch.randn(num, width).requires_grad_()
    weight, weight_grad = torch.randn(vocab, width), torch.zeros(vocab, width)
    targets = torch.randint(0, vocab, (num,))
    with _LargestTensor() as largest:
        mine, entropies = token_logprobs(
            hidden, weight, targets, 1.0, weight_grad, entropy_has_grad=True
        )
        (mine.sum() + entropies.sum()).backward()
    assert num * vocab > 7 * (1 << 21)
    assert largest.numel <= 1 << 21
    with _LargestTensor() as largest:
        torch.log_softmax(hidden.detach() @ weight.t(), -1)
    assert largest.numel == num * vocab  # the hook would have seen it


def test_logits_far_apart_give_finite_numbers() -> None:
    hidden = torch.tensor([[1.0], [-1.0]])
    weight = torch.tensor([[3000.0], [-3000.0], [0.0]])
    mine, entropies = token_logprobs(hidden, weight, torch.tensor([0, 0]), 1.0)
    assert mine.tolist() == [0.0, -6000.0]
    assert entropies.tolist() == [0.0, 0.0]
