"""Attention over packed rows against one written out row by row in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rledger.trainer.attention as attention
from rledger.modelspec import ModelSpec
from rledger.schedule.packing import Piece
from rledger.trainer.attention import PackedAttention

SPEC = ModelSpec(
    family="llama", vocab_size=8, width=32, num_layers=1, num_heads=4, num_kv_heads=2,
    head_size=8, ffn_width=8, max_positions=64,
)  # fmt: skip


def lay_out(groups: list[tuple[int, list[int]]]) -> list[Piece]:
    """Pieces of (prompt, completions); a prompt of 0 stands for rows that share nothing."""
    pieces, cursor = [], 0
    for prompt, completions in groups:
        start = cursor
        if prompt:
            pieces.append(Piece(cursor, prompt, 0, 0))
            cursor += prompt
        for length in completions:
            pieces.append(Piece(cursor, length, start if prompt else 0, prompt))
            cursor += length
    return pieces


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pieces: list[Piece]) -> torch.Tensor:
    out = torch.zeros_like(q)
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    for piece in pieces:
        own = torch.arange(piece.start, piece.start + piece.length)
        prefix = torch.arange(piece.prefix_start, piece.prefix_start + piece.prefix_length)
        keys = torch.cat([prefix, own])
        scores = torch.einsum("qnh,knh->nqk", q[own], k[keys]) / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[1:], dtype=torch.bool).triu(piece.prefix_length + 1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out = out.index_copy(0, own, torch.einsum("nqk,knh->qnh", weights, v[keys]))
    return out


group = st.tuples(st.integers(0, 12), st.lists(st.integers(1, 14), min_size=1, max_size=4))


@settings(max_examples=25, deadline=None)
@given(
    groups=st.lists(group, min_size=1, max_size=3),
    block=st.integers(2, 8),
    max_scores=st.integers(50, 20_000),
    small=st.integers(0, 3000),
)
def test_outputs_and_gradients_equal_rows_by_hand_however_tiles_are_cut(
    groups: list[tuple[int, list[int]]], block: int, max_scores: int, small: int
) -> None:
    pieces = lay_out(groups)
    num = pieces[-1].start + pieces[-1].length
    source = torch.Generator().manual_seed(num)
    heads = torch.randn(num, 8, 8, dtype=torch.float64, generator=source, requires_grad=True)
    weight = torch.randn(num, 4, 8, dtype=torch.float64, generator=source)
    q, k, v = heads.split([4, 2, 2], 1)  # as the decoder hands them over: views of one product
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "BLOCK_QUERIES", block)
        patch.setitem(attention.MAX_SCORES, "cpu", max_scores)
        patch.setattr(attention, "SMALL_SCORES", small)
        attend = PackedAttention(pieces, SPEC, torch.float64, torch.device("cpu"))
        mine = attend(0, q, k, v)
        (grad,) = torch.autograd.grad((mine * weight).sum(), heads)
    expected = by_hand(q, k, v, pieces)
    (expected_grad,) = torch.autograd.grad((expected * weight).sum(), heads)
    assert torch.allclose(mine, expected, atol=1e-12)
    assert torch.allclose(grad, expected_grad, atol=1e-12)


def test_bfloat16_stays_within_its_rounding_of_float64() -> None:
    pieces = lay_out([(45, [64, 60, 64, 3]), (0, [50])])
    num = pieces[-1].start + pieces[-1].length
    source = torch.Generator().manual_seed(0)
    heads = torch.randn(num, 8, 8, generator=source)
    results = []
    for dtype in (torch.float64, torch.bfloat16):
        mine = heads.to(torch.bfloat16).to(dtype).requires_grad_()
        attend = PackedAttention(pieces, SPEC, dtype, torch.device("cpu"))
        out = attend(0, *mine.split([4, 2, 2], 1))
        (grad,) = torch.autograd.grad(out.square().sum(), mine)
        results.append((out.double(), grad.double()))
    for exact, rounded in zip(*results, strict=True):
        assert (exact - rounded).norm() < 0.01 * exact.norm()


def test_a_tile_never_holds_more_scores_than_allowed() -> None:
    pieces = lay_out([(300, [700] * 8), (0, [2000])])
    attend = PackedAttention(pieces, SPEC, torch.float32, torch.device("cpu"))
    largest = max(t.num_rows * SPEC.num_heads * t.num_queries * t.num_keys for t in attend.tiles)
    assert (
        largest <= 4 * attention.BLOCK_QUERIES * 2000
    )  # one block of one row against all its keys
    assert attention.MAX_SCORES["cpu"] <= 1 << 20


def test_padding_of_uneven_rows_stays_a_quarter_of_the_scores() -> None:
    pieces = lay_out([(100, [*range(10, 400, 13)])])
    attend = PackedAttention(pieces, SPEC, torch.float32, torch.device("cpu"))
    done = sum(t.num_rows * t.num_queries * t.num_keys for t in attend.tiles)
    needed = sum(p.length * (p.length + p.prefix_length) for p in pieces)
    assert done < 1.25 * needed
