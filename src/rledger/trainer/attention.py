"""Attention over packed rows that share prompts, exact and with a gradient, on any device.

Legend for shapes: S tokens of the micro-batch, N query heads, K key/value heads, G = N / K query
heads of a key/value head, H head size, R rows of a tile, b queries of a row, s keys that all queries
of a row see, k = s + b keys.

Torch has no kernel for ragged rows on a CPU, and its flash kernel is far slower there in bfloat16
than batched products: these reach the processor's matrix rate, a softmax between them is one pass.
So queries are gathered into tiles, rows of like shape padded to the longest; keys and values of a
row are its prompt (gathered again for each row, computed once), what stands before the tile's
queries, and the queries' own places, causally. The scores of a tile are bounded. Short rows keep
their softmax for the backward pass, where it is a fraction of what a layer keeps anyway; long rows
compute it again. Padding costs time in a tile, never in a linear layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rledger.modelspec import ModelSpec
from rledger.schedule.packing import Piece

__all__ = ["PackedAttention"]

I64 = npt.NDArray[np.int64]

# Scores of a tile: on a CPU they stay in the third-level cache, on a GPU they fill it.
MAX_SCORES = {"cpu": 1 << 20, "cuda": 1 << 26}
SMALL_SCORES = 1 << 16  # padding below this is cheaper than one more tile
MAX_WASTE_FRAC = 0.25  # of a tile's scores that may be padding beyond that
KEPT_WIDTHS = 4  # softmax weights are kept up to so many widths D a token, else made again
BLOCK_QUERIES = 256  # of a long row: half of the last block's scores are masked, the rest is saved


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries first <= i < first + length of a piece."""

    piece: Piece
    first: int
    length: int

    @property
    def seen(self) -> int:
        """Keys that all of its queries see: the prefix, and the piece before the block."""
        return self.piece.prefix_length + self.first


@dataclass(frozen=True, slots=True)
class _Tile:
    num_rows: int
    num_queries: int  # of a row, padded
    num_keys: int
    queries: Tensor  # [R, K, G, b] token, and which query head
    query_heads: Tensor
    keys: Tensor  # [R, K, k] token, and which key/value head
    key_heads: Tensor
    mask: Tensor  # [1 or R K, G b, k] 0 or -inf
    padding: Tensor | None  # indices of padded queries among R K G b


class PackedAttention:
    """The `attend` of one micro-batch for `Decoder.forward_hidden`."""

    def __init__(
        self, pieces: Sequence[Piece], spec: ModelSpec, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._spec = spec
        self.scale = 1.0 / math.sqrt(spec.head_size)
        blocks = _tiles(pieces, spec.num_heads, MAX_SCORES.get(device.type, MAX_SCORES["cpu"]))
        masks: dict[tuple[int, int], Tensor] = {}
        self.tiles = [_build(tile, spec, dtype, device, masks) for tile in blocks]
        num_tokens = max(piece.start + piece.length for piece in pieces)
        num_scores = sum(t.num_rows * t.num_queries * t.num_keys for t in self.tiles)
        self.keeps_weights = num_scores * spec.num_heads <= KEPT_WIDTHS * spec.width * num_tokens
        self.home = torch.from_numpy(_homes(blocks, spec, num_tokens)).to(device)  # [S N]
        self._rows: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        """[S, N, H] from q [S, N, H], k and v [S, K, H]; the layer does not matter."""
        return cast(Tensor, _Attend.apply(q, k, v, self))  # type: ignore[no-untyped-call]

    def gathers(self, q: Tensor, k: Tensor, v: Tensor) -> Iterator[tuple[_Tile, _Gather]]:
        """Each tile and what it reads of q [S, N, H], k and v [S, K, H]."""
        (q_rows, q_stride), (k_rows, k_stride), (v_rows, v_stride) = map(_as_rows, (q, k, v))
        of_keys = self.indices(q_stride, k_stride)
        of_values = self.indices(q_stride, v_stride)
        for tile, (q_index, k_index), (_, v_index) in zip(
            self.tiles, of_keys, of_values, strict=True
        ):
            yield (
                tile,
                _Gather(
                    tile.num_rows * k.shape[1],
                    (q_rows, q_index),
                    (k_rows, k_index),
                    (v_rows, v_index),
                ),
            )

    def indices(self, query_stride: int, key_stride: int) -> list[tuple[Tensor, Tensor]]:
        """For each tile the rows of q and of k, where a token's heads lie `stride` rows apart."""
        strides = (query_stride, key_stride)
        if strides not in self._rows:
            self._rows[strides] = [
                (
                    (tile.queries * query_stride + tile.query_heads).flatten(),
                    (tile.keys * key_stride + tile.key_heads).flatten(),
                )
                for tile in self.tiles
            ]
        return self._rows[strides]


def _tiles(pieces: Sequence[Piece], num_heads: int, max_scores: int) -> list[list[_Block]]:
    """Blocks of like shape together, each tile within `max_scores` where one block allows it."""
    blocks = []
    for piece in pieces:
        whole = piece.length * (piece.length + piece.prefix_length) * num_heads <= max_scores
        step = piece.length if whole else BLOCK_QUERIES
        blocks += [
            _Block(piece, first, min(step, piece.length - first))
            for first in range(0, piece.length, step)
        ]
    # Neighbours in this order are alike: about the same keys seen, then fewer and fewer queries.
    blocks.sort(key=lambda b: (_level(b.seen), -b.length, -b.seen, b.piece.start, b.first))
    tiles: list[list[_Block]] = []
    for block in blocks:
        if tiles and _fits([*tiles[-1], block], num_heads, max_scores):
            tiles[-1].append(block)
        else:
            tiles.append([block])
    return tiles


def _level(seen: int) -> int:
    return 0 if seen == 0 else 1 + int(math.log(seen, 1.25))


def _fits(blocks: Sequence[_Block], num_heads: int, max_scores: int) -> bool:
    queries = max(block.length for block in blocks)
    keys = queries + max(block.seen for block in blocks)
    scores = len(blocks) * queries * keys * num_heads
    used = num_heads * sum(block.length * (block.length + block.seen) for block in blocks)
    waste = scores - used
    return scores <= max_scores and waste <= max(SMALL_SCORES, MAX_WASTE_FRAC * scores)


def _homes(tiles: Sequence[Sequence[_Block]], spec: ModelSpec, num_tokens: int) -> I64:
    """[S N] where the output of each token's head stands among the tiles' outputs end to end."""
    homes = np.zeros((num_tokens, spec.num_heads), np.int64)
    base = 0
    for blocks in tiles:
        longest = max(block.length for block in blocks)
        for row, block in enumerate(blocks):
            start = block.piece.start + block.first
            heads = (row * spec.num_heads + np.arange(spec.num_heads)) * longest
            places = np.arange(block.length)[:, None] + heads[None, :]
            homes[start : start + block.length] = base + places
        base += len(blocks) * spec.num_heads * longest
    return homes.reshape(-1)


def _build(
    blocks: Sequence[_Block],
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    masks: dict[tuple[int, int], Tensor],
) -> _Tile:
    rows, kv_heads = len(blocks), spec.num_kv_heads
    per_kv = spec.num_heads // kv_heads
    longest = max(block.length for block in blocks)
    seen = max(block.seen for block in blocks)
    queries = np.zeros((rows, longest), np.int64)
    keys = np.zeros((rows, seen + longest), np.int64)
    is_padding = np.zeros((rows, longest), np.bool_)
    for row, block in enumerate(blocks):
        piece, start = block.piece, block.piece.start + block.first
        own = start + np.minimum(np.arange(longest), block.length - 1)
        queries[row], is_padding[row] = own, np.arange(longest) >= block.length
        prefix = piece.prefix_start + np.arange(piece.prefix_length)
        before = piece.start + np.arange(block.first)
        # the padding in front repeats a key that the row may see; the mask hides it
        front = np.full(seen - block.seen, own[0])
        keys[row] = np.concatenate([front, prefix, before, own])
    shape = (rows, kv_heads, per_kv, longest)
    padding = np.flatnonzero(np.broadcast_to(is_padding[:, None, None, :], shape))
    heads = np.arange(spec.num_heads).reshape(1, kv_heads, per_kv, 1)
    return _Tile(
        num_rows=rows,
        num_queries=longest,
        num_keys=seen + longest,
        queries=torch.from_numpy(queries[:, None, None, :]).to(device),
        query_heads=torch.from_numpy(heads).to(device),
        keys=torch.from_numpy(keys[:, None, :]).to(device),
        key_heads=torch.arange(kv_heads, device=device)[None, :, None],
        mask=_mask([block.seen for block in blocks], longest, spec, dtype, device, masks),
        padding=torch.from_numpy(padding).to(device) if len(padding) else None,
    )


def _mask(
    seen: Sequence[int],
    longest: int,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    masks: dict[tuple[int, int], Tensor],
) -> Tensor:
    """[1, G b, k] where all rows see the same number of keys, else [R K, G b, k]."""
    most, kv_heads = max(seen), spec.num_kv_heads
    uniform = min(seen) == most
    if uniform and (most, longest) in masks:
        return masks[most, longest]
    columns = torch.arange(most + longest, device=device)
    causal = columns[None, :] - most <= torch.arange(longest, device=device)[:, None]  # [b, k]
    hidden = most - torch.tensor(seen[:1] if uniform else seen, device=device)  # [R]
    visible = causal[None] & (columns[None, None, :] >= hidden[:, None, None])  # [R, b, k]
    mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, -math.inf)
    per_kv = spec.num_heads // kv_heads
    rows, repeat = len(mask), 1 if uniform else kv_heads
    mask = mask[:, None, None].expand(rows, repeat, per_kv, *mask.shape[1:])
    mask = mask.reshape(rows * repeat, per_kv * longest, most + longest)
    if uniform:
        masks[most, longest] = mask
    return mask


def _as_rows(x: Tensor) -> tuple[Tensor, int]:
    """x [S, heads, H] as rows of H without a copy where it can be, and how many rows a token has.

    Heads that were split off a fused product lie among other heads; the rows between are not ours.
    """
    size = x.shape[-1]
    if x.stride()[1:] != (size, 1) or x.stride(0) % size:
        x = x.contiguous()
    stride = x.stride(0) // size
    num_rows = (x.shape[0] - 1) * stride + x.shape[1]
    return x.as_strided((num_rows, size), (size, 1)), stride


class _Attend(torch.autograd.Function):
    """Keeps its inputs, and the tiles' weights where the plan says that they are few."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: PackedAttention) -> Tensor:
        parts, kept = [], []
        for tile, gather in plan.gathers(q, k, v):
            weights = _weights(tile, gather.queries(), gather.keys(), plan.scale)
            parts.append(torch.bmm(weights, gather.values()).view(-1, q.shape[-1]))
            if plan.keeps_weights:
                kept.append(weights)
        ctx.save_for_backward(q, k, v, *kept)
        ctx.plan = plan
        return _at_home(parts, plan).view(q.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, *kept = ctx.saved_tensors
        plan: PackedAttention = ctx.plan
        size = q.shape[-1]
        grad_rows, grad_stride = _as_rows(grad)
        # Sums over all rows of a group meet in a prompt's keys: in float32 at least.
        wide = torch.promote_types(k.dtype, torch.float32)
        grad_k = torch.zeros(k.shape[0] * k.shape[1], size, dtype=wide, device=k.device)
        grad_v = torch.zeros_like(grad_k)
        homes = plan.indices(grad_stride, k.shape[1])
        parts = []
        for number, (tile, gather) in enumerate(plan.gathers(q, k, v)):
            queries, keys = gather.queries(), gather.keys()
            weights = kept[number] if kept else _weights(tile, queries, keys, plan.scale)
            given_index, home = homes[number]
            given = grad_rows.index_select(0, given_index)
            if tile.padding is not None:
                given.index_fill_(0, tile.padding, 0.0)
            given = given.view(queries.shape)
            grad_values = torch.bmm(weights.transpose(1, 2), given)
            grad_v.index_add_(0, home, grad_values.view(-1, size).to(wide))
            grad_weights = torch.bmm(given, gather.values().transpose(1, 2))
            grad_scores = torch.ops.aten._softmax_backward_data(
                grad_weights, weights, -1, weights.dtype
            ).mul_(plan.scale)
            parts.append(torch.bmm(grad_scores, keys).view(-1, size))
            grad_keys = torch.bmm(grad_scores.transpose(1, 2), queries)
            grad_k.index_add_(0, home, grad_keys.view(-1, size).to(wide))
        grad_q = _at_home(parts, plan).view(q.shape)
        return grad_q, grad_k.to(k.dtype).view(k.shape), grad_v.to(v.dtype).view(v.shape), None


@dataclass(frozen=True, slots=True)
class _Gather:
    """Queries, keys and values of a tile, gathered when they are asked for."""

    num_products: int  # R K
    q: tuple[Tensor, Tensor]  # rows of H, and which of them
    k: tuple[Tensor, Tensor]
    v: tuple[Tensor, Tensor]

    def queries(self) -> Tensor:
        """[R K, G b, H]"""
        return self._take(self.q)

    def keys(self) -> Tensor:
        """[R K, k, H]"""
        return self._take(self.k)

    def values(self) -> Tensor:
        """[R K, k, H]"""
        return self._take(self.v)

    def _take(self, source: tuple[Tensor, Tensor]) -> Tensor:
        rows, index = source
        return rows.index_select(0, index).view(self.num_products, -1, rows.shape[-1])


def _at_home(parts: Sequence[Tensor], plan: PackedAttention) -> Tensor:
    """[S N, H] from the tiles' rows of H end to end."""
    rows = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    return rows.index_select(0, plan.home)


def _weights(tile: _Tile, queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """[R K, G b, k] softmax of the scores."""
    scores = torch.baddbmm(tile.mask, queries, keys.transpose(1, 2), alpha=scale)
    return torch.softmax(scores, -1)
