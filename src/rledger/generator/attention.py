"""Attention of one forward pass over the cache; `Attend` of `models.decoder`.

Legend for shapes: T tokens of the pass, n segments of a part, L tokens of a segment, J blocks, S cache
slots (J blocks of BLOCK_TOKENS), K key/value heads, G query heads of one of them, N = K * G, H head
size, R rows of every deterministic pass.

Why by hand: with one query a sequence torch's own CPU kernel runs at a fraction of the memory's speed
and reads each key/value head once for each of its query heads. Gathering blocks into [K * n, S, H] and
two batched products, in which the G heads are the rows, reads them once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rledger.generator.blocks import BLOCK_TOKENS, NULL_BLOCK
from rledger.generator.kv_cache import KVCache
from rledger.generator.sequences import FAR

__all__ = ["CacheAttention", "PaddedAttention", "Span", "TiledAttention"]

I64 = npt.NDArray[np.int64]
TILE_BLOCKS = 8  # blocks that deterministic attention takes at a time


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring tokens of one sequence in a pass, and where its keys lie."""

    row: int  # of the first token in the pass
    length: int
    first_position: int
    table: I64  # [J]
    key_positions: I64  # [J * BLOCK_TOKENS]


class CacheAttention(Protocol):
    """Writes the pass's keys and values, then attends."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class _Part:
    """Segments of similar size, padded to the largest."""

    rows: slice | None  # of one-token segments that stand together
    gather: Tensor | None  # [n * L] row of each padded query
    scatter: tuple[Tensor, Tensor] | None  # (row, padded place) of each real query
    length: int  # L
    num_segments: int  # n
    blocks: Tensor  # [n * J]
    mask: Tensor  # [K * n, G * L, S], 0 or -inf


class PaddedAttention:
    """The fast form: segments in a few parts, each padded to its longest."""

    def __init__(
        self,
        cache: KVCache,
        spans: Sequence[Span],
        slots: I64,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._cache = cache
        self._scale = 1.0 / math.sqrt(cache.head_size)
        self._key_slots, self._value_slots = _split_slots(slots, device)
        self._parts = [_part(part, cache, dtype, device) for part in _alike(spans)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        """[T, N * H] from q [T, N, H], k and v [T, K, H]."""
        self._cache.write(layer, k, v, self._key_slots, self._value_slots)
        if len(self._parts) == 1 and self._parts[0].rows is not None:
            return self._attend(layer, q, self._parts[0])
        out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
        for part in self._parts:
            if part.rows is not None:
                out[part.rows] = self._attend(layer, q[part.rows], part)
            elif part.gather is not None and part.scatter is not None:
                rows, places = part.scatter
                out[rows] = self._attend(layer, q[part.gather], part)[places]
        return out

    def _attend(self, layer: int, q: Tensor, part: _Part) -> Tensor:
        """[n * L, N * H] of q [n * L, N, H]."""
        heads, size = self._cache.num_kv_heads, self._cache.head_size
        n, length = part.num_segments, part.length
        cached = self._cache.gather(layer, part.blocks)
        keys, values = cached.view(2, heads * n, -1, size).unbind(0)
        q = q.view(n, length, heads, -1, size).permute(2, 0, 3, 1, 4)
        scores = torch.baddbmm(
            part.mask, q.reshape(heads * n, -1, size), keys.transpose(1, 2), alpha=self._scale
        )
        mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
        return mixed.view(heads, n, -1, length, size).permute(1, 3, 0, 2, 4).reshape(n * length, -1)


class TiledAttention:
    """The deterministic form: every token is a row of its own, R rows always, keys in fixed tiles.

    A row's result is the same whatever the other rows are: each product has the same shape in every
    pass, tiles are folded in one by one, and a tile that is masked whole changes no bit.
    """

    def __init__(
        self,
        cache: KVCache,
        spans: Sequence[Span],
        slots: I64,
        *,
        num_rows: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._cache = cache
        self._scale = 1.0 / math.sqrt(cache.head_size)
        padded = np.zeros((num_rows, slots.shape[1]), dtype=np.int64)
        padded[:] = cache.slots([NULL_BLOCK], [0])
        padded[: len(slots)] = slots
        self._key_slots, self._value_slots = _split_slots(padded, device)
        most = max(len(span.table) for span in spans)
        num_tiles = -(-most // TILE_BLOCKS)
        tables = np.full((num_rows, num_tiles * TILE_BLOCKS), NULL_BLOCK, dtype=np.int64)
        keys = np.full((num_rows, num_tiles * TILE_BLOCKS * BLOCK_TOKENS), FAR, dtype=np.int64)
        keys[:, 0] = 0  # rows that no token fills attend to the null block
        queries = np.zeros(num_rows, dtype=np.int64)
        for span in spans:
            rows = slice(span.row, span.row + span.length)
            tables[rows, : len(span.table)] = span.table
            keys[rows, : len(span.key_positions)] = span.key_positions
            queries[rows] = span.first_position + np.arange(span.length)
        mask = np.where(keys <= queries[:, None], np.float32(0), np.float32("-inf"))
        self._tiles = [
            (
                torch.from_numpy(np.ascontiguousarray(table).reshape(-1)).to(device),
                torch.from_numpy(np.ascontiguousarray(tile)).to(device)[:, None],
            )
            for table, tile in zip(
                np.split(tables, num_tiles, axis=1), np.split(mask, num_tiles, axis=1), strict=True
            )
        ]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        """[R, N * H] from q [R, N, H], k and v [R, K, H]."""
        self._cache.write(layer, k, v, self._key_slots, self._value_slots)
        heads, size = self._cache.num_kv_heads, self._cache.head_size
        rows = q.shape[0]
        q = q.view(rows, heads, -1, size).transpose(0, 1).reshape(heads * rows, -1, size)
        highest = torch.full(
            (heads, rows, q.shape[1], 1), -math.inf, dtype=torch.float32, device=q.device
        )
        total = torch.zeros_like(highest)
        mixed = torch.zeros(heads, rows, q.shape[1], size, dtype=torch.float32, device=q.device)
        for blocks, mask in self._tiles:
            cached = self._cache.gather(layer, blocks)
            keys, values = cached.view(2, heads * rows, -1, size).unbind(0)
            scores = torch.bmm(q, keys.transpose(1, 2)).view(heads, rows, -1, keys.shape[1])
            scores = torch.add(mask, scores, alpha=self._scale)
            before, highest = highest, torch.maximum(highest, scores.amax(-1, keepdim=True))
            weights = (scores - highest).exp_()
            keep = (before - highest).exp_()
            total = total * keep + weights.sum(-1, keepdim=True)
            product = torch.bmm(weights.to(q.dtype).view(heads * rows, -1, keys.shape[1]), values)
            mixed = mixed * keep + product.view_as(mixed)
        return (mixed / total).to(q.dtype).transpose(0, 1).reshape(rows, -1)


def _split_slots(slots: I64, device: torch.device) -> tuple[Tensor, Tensor]:
    """Slots of keys and of values, [T * K] each, from [T, 2K]."""
    keys, values = np.split(slots, 2, axis=1)
    return (
        torch.from_numpy(np.ascontiguousarray(keys).reshape(-1)).to(device),
        torch.from_numpy(np.ascontiguousarray(values).reshape(-1)).to(device),
    )


def _alike(spans: Sequence[Span]) -> list[list[Span]]:
    """Split spans, which stand in falling order of size, where padding would double the work."""
    parts: list[list[Span]] = []
    for span in spans:
        first = parts[-1][0] if parts else None
        if (
            first is not None
            and 2 * span.length > first.length
            and 3 * len(span.table) >= 2 * len(first.table)
        ):
            parts[-1].append(span)
        else:
            parts.append([span])
    return parts


def _part(spans: Sequence[Span], cache: KVCache, dtype: torch.dtype, device: torch.device) -> _Part:
    n = len(spans)
    length = max(span.length for span in spans)
    most = max(len(span.table) for span in spans)
    table = np.full((n, most), NULL_BLOCK, dtype=np.int64)
    keys = np.full((n, most * BLOCK_TOKENS), FAR, dtype=np.int64)
    queries = np.full((n, length), FAR - 1, dtype=np.int64)  # padding attends to everything
    for i, span in enumerate(spans):
        table[i, : len(span.table)] = span.table
        keys[i, : len(span.key_positions)] = span.key_positions
        queries[i, : span.length] = span.first_position + np.arange(span.length)
    visible = torch.from_numpy(keys[:, None, :] <= queries[:, :, None]).to(device)
    mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, -math.inf)
    # whole, since it is added to scores in all layers: broadcasting costs more than it saves
    heads = (cache.num_kv_heads, n, cache.num_queries_per_kv_head, length, mask.shape[-1])
    mask = mask[None, :, None].expand(heads).reshape(heads[0] * n, -1, heads[-1])
    rows = gather = scatter = None
    if length == 1:
        rows = slice(spans[0].row, spans[0].row + n)
    else:
        gather, scatter = _padding(spans, length, device)
    blocks = torch.from_numpy(table.reshape(-1)).to(device)
    return _Part(rows, gather, scatter, length, n, blocks, mask)


def _padding(
    spans: Sequence[Span], length: int, device: torch.device
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Rows of all padded queries [n * L], and (row, padded place) of the real ones."""
    gather = np.zeros((len(spans), length), dtype=np.int64)
    rows, places = [], []
    for i, span in enumerate(spans):
        own = np.arange(span.length)
        gather[i, : span.length] = span.row + own
        rows.append(span.row + own)
        places.append(i * length + own)
    return torch.from_numpy(gather.reshape(-1)).to(device), (
        torch.from_numpy(np.concatenate(rows)).to(device),
        torch.from_numpy(np.concatenate(places)).to(device),
    )
