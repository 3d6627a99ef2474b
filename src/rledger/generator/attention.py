"""Attention of one forward pass over the cache; `Attend` of `models.decoder`.

Legend for shapes: T tokens of the pass, n pieces of a part, L tokens of a piece, J blocks, S cache
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

__all__ = ["CacheAttention", "PaddedAttention", "RowSet", "TiledAttention"]

I64 = npt.NDArray[np.int64]
TILE_BLOCKS = 8  # blocks that deterministic attention takes at a time


@dataclass(frozen=True, slots=True)
class RowSet:
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
    """Pieces of similar size, padded to the largest."""

    rows: slice | None  # of one-token pieces that stand together
    gather: Tensor | None  # [n * L] row of each padded query
    scatter: tuple[Tensor, Tensor] | None  # (row, padded place) of each real query
    length: int  # L
    num_pieces: int  # n
    blocks: Tensor  # [n * J]
    mask: Tensor  # [K * n, G * L, S], 0 or -inf


class PaddedAttention:
    """The fast form: pieces in a few parts, each padded to its longest."""

    def __init__(
        self,
        cache: KVCache,
        row_sets: Sequence[RowSet],
        slots: I64,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._cache = cache
        self._scale = 1.0 / math.sqrt(cache.head_size)
        self._key_slots, self._value_slots = _split_slots(slots, device)
        self._parts = [_part(part, cache, dtype, device) for part in _alike(row_sets)]

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
        n, length = part.num_pieces, part.length
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
        row_sets: Sequence[RowSet],
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
        most = max(len(row_set.table) for row_set in row_sets)
        num_tiles = -(-most // TILE_BLOCKS)
        tables = np.full((num_rows, num_tiles * TILE_BLOCKS), NULL_BLOCK, dtype=np.int64)
        keys = np.full((num_rows, num_tiles * TILE_BLOCKS * BLOCK_TOKENS), FAR, dtype=np.int64)
        keys[:, 0] = 0  # rows that no token fills attend to the null block
        queries = np.zeros(num_rows, dtype=np.int64)
        for row_set in row_sets:
            rows = slice(row_set.row, row_set.row + row_set.length)
            tables[rows, : len(row_set.table)] = row_set.table
            keys[rows, : len(row_set.key_positions)] = row_set.key_positions
            queries[rows] = row_set.first_position + np.arange(row_set.length)
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


def _alike(row_sets: Sequence[RowSet]) -> list[list[RowSet]]:
    """Split row_sets, which stand in falling order of size, where padding would double the work."""
    parts: list[list[RowSet]] = []
    for row_set in row_sets:
        first = parts[-1][0] if parts else None
        if (
            first is not None
            and 2 * row_set.length > first.length
            and 3 * len(row_set.table) >= 2 * len(first.table)
        ):
            parts[-1].append(row_set)
        else:
            parts.append([row_set])
    return parts


def _part(
    row_sets: Sequence[RowSet], cache: KVCache, dtype: torch.dtype, device: torch.device
) -> _Part:
    n = len(row_sets)
    length = max(row_set.length for row_set in row_sets)
    most = max(len(row_set.table) for row_set in row_sets)
    table = np.full((n, most), NULL_BLOCK, dtype=np.int64)
    keys = np.full((n, most * BLOCK_TOKENS), FAR, dtype=np.int64)
    queries = np.full((n, length), FAR - 1, dtype=np.int64)  # padding attends to everything
    for i, row_set in enumerate(row_sets):
        table[i, : len(row_set.table)] = row_set.table
        keys[i, : len(row_set.key_positions)] = row_set.key_positions
        queries[i, : row_set.length] = row_set.first_position + np.arange(row_set.length)
    visible = torch.from_numpy(keys[:, None, :] <= queries[:, :, None]).to(device)
    mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, -math.inf)
    # whole, since it is added to scores in all layers: broadcasting costs more than it saves
    heads = (cache.num_kv_heads, n, cache.num_queries_per_kv_head, length, mask.shape[-1])
    mask = mask[None, :, None].expand(heads).reshape(heads[0] * n, -1, heads[-1])
    rows = gather = scatter = None
    if length == 1:
        rows = slice(row_sets[0].row, row_sets[0].row + n)
    else:
        gather, scatter = _padding(row_sets, length, device)
    blocks = torch.from_numpy(table.reshape(-1)).to(device)
    return _Part(rows, gather, scatter, length, n, blocks, mask)


def _padding(
    row_sets: Sequence[RowSet], length: int, device: torch.device
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Rows of all padded queries [n * L], and (row, padded place) of the real ones."""
    gather = np.zeros((len(row_sets), length), dtype=np.int64)
    rows, places = [], []
    for i, row_set in enumerate(row_sets):
        own = np.arange(row_set.length)
        gather[i, : row_set.length] = row_set.row + own
        rows.append(row_set.row + own)
        places.append(i * length + own)
    return torch.from_numpy(gather.reshape(-1)).to(device), (
        torch.from_numpy(np.concatenate(rows)).to(device),
        torch.from_numpy(np.concatenate(places)).to(device),
    )
