"""Which blocks of the cache are free. Ids only; the tensors are the cache's."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

__all__ = ["BLOCK_TOKENS", "NULL_BLOCK", "BlockPool", "num_blocks_for"]

BLOCK_TOKENS = 16  # small, since attention reads a sequence's last block whole
NULL_BLOCK = 0  # stands in tables where a sequence has no block; its content is never attended to


def num_blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """Blocks 1..num_blocks of the cache. Low ids are handed out first, so memory stays compact."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.peak_used = 0
        self.num_touched = 0  # blocks that were ever handed out are 1..num_touched
        self._returned: list[int] = []  # heap

    @property
    def num_used(self) -> int:
        return self.num_touched - len(self._returned)

    @property
    def num_free(self) -> int:
        return self.num_blocks - self.num_used

    def allocate(self, count: int) -> list[int]:
        """`count` block ids; the caller has made sure that so many are free."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked for, {self.num_free} are free")
        blocks = []
        for _ in range(count):
            if self._returned:
                blocks.append(heapq.heappop(self._returned))
            else:
                self.num_touched += 1
                blocks.append(self.num_touched)
        self.peak_used = max(self.peak_used, self.num_used)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            heapq.heappush(self._returned, block)
