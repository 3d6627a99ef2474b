"""Keys and values of all running sequences, in blocks, one tensor a layer.

Legend for shapes: K key/value heads, H head size, T tokens, C blocks in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rledger.errors import ConfigError
from rledger.generator.blocks import BLOCK_TOKENS, BlockPool
from rledger.modelspec import ModelSpec

__all__ = ["KVCache", "block_bytes"]

_CLEARED_AT_ONCE = 64  # blocks


def block_bytes(spec: ModelSpec, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers."""
    return 2 * spec.num_layers * spec.kv_width * BLOCK_TOKENS * dtype.itemsize


class KVCache:
    """`layers[l]` is [2K, C, BLOCK_TOKENS, H], the keys' heads first; block 0 belongs to nobody.

    Heads come first, so that one index_select gathers any set of blocks into matrices that bmm takes
    as they are. Memory is cleared when a block is first used: attention multiplies what it masks by
    zero, and zero times the garbage of fresh memory may be NaN.
    """

    def __init__(
        self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device, budget_bytes: int
    ) -> None:
        self.block_bytes = block_bytes(spec, dtype)
        num_blocks = budget_bytes // self.block_bytes - 1  # less the null block
        if num_blocks < 1:
            raise ConfigError(
                f"generator.kv_cache_bytes = {budget_bytes} holds no block: one of {BLOCK_TOKENS} tokens"
                f" takes {self.block_bytes} bytes, and two are the least. Raise it."
            )
        self.num_kv_heads = spec.num_kv_heads
        self.num_queries_per_kv_head = spec.num_heads // spec.num_kv_heads
        self.head_size = spec.head_size
        self.pool = BlockPool(num_blocks)
        self._num_memory_blocks = num_blocks + 1
        shape = (2 * spec.num_kv_heads, self._num_memory_blocks, BLOCK_TOKENS, spec.head_size)
        self.layers = [
            torch.empty(shape, dtype=dtype, device=device) for _ in range(spec.num_layers)
        ]
        self._gathered = torch.empty(0, dtype=dtype, device=device)
        self._num_cleared = 0
        self.clear_new_blocks()

    @property
    def used_bytes(self) -> int:
        return (self.pool.num_used + 1) * self.block_bytes

    @property
    def peak_bytes(self) -> int:
        return (self.pool.peak_used + 1) * self.block_bytes

    @property
    def budget_bytes(self) -> int:
        return self._num_memory_blocks * self.block_bytes

    def clear_new_blocks(self) -> None:
        """Zero blocks that were handed out for the first time. Call before a forward pass."""
        needed = self.pool.num_touched + 1
        if needed <= self._num_cleared:
            return
        stop = min(max(needed, self._num_cleared + _CLEARED_AT_ONCE), self._num_memory_blocks)
        for layer in self.layers:
            layer[:, self._num_cleared : stop].zero_()
        self._num_cleared = stop

    def slots(self, blocks: Sequence[int], indices: Sequence[int]) -> npt.NDArray[np.int64]:
        """[T, 2K] rows of a layer seen as [2K * C * BLOCK_TOKENS, H], one token a (block, index)."""
        first = np.asarray(blocks, dtype=np.int64) * BLOCK_TOKENS + np.asarray(
            indices, dtype=np.int64
        )
        heads = np.arange(2 * self.num_kv_heads, dtype=np.int64)
        return first[:, None] + heads[None, :] * (self._num_memory_blocks * BLOCK_TOKENS)

    def write(
        self, layer: int, k: Tensor, v: Tensor, key_slots: Tensor, value_slots: Tensor
    ) -> None:
        """Store k and v [T, K, H] at slots [T * K] each."""
        flat = self.layers[layer].view(-1, self.head_size)
        flat.index_copy_(0, key_slots, k.reshape(-1, self.head_size))
        flat.index_copy_(0, value_slots, v.reshape(-1, self.head_size))

    def gather(self, layer: int, blocks: Tensor) -> Tensor:
        """[2K, B, BLOCK_TOKENS, H] copies of B blocks; overwritten by the next call.

        One buffer for all layers: fresh memory of this size costs more in page faults than the copy.
        """
        source = self.layers[layer]
        shape = (source.shape[0], len(blocks), *source.shape[2:])
        size = math.prod(shape)
        if self._gathered.numel() < size:
            self._gathered = self._gathered.new_empty(size)
        return torch.index_select(source, 1, blocks, out=self._gathered[:size].view(shape))
