"""The ranks that train together. With one rank every collective is the identity.

All that a trainer exchanges goes through here, so that the code of one rank is the code of many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Mesh", "join_mesh"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """`dp` ranks that hold the same weights and share the rows of an update."""

    dp: int = 1
    dp_rank: int = 0

    @property
    def world_size(self) -> int:
        return self.dp

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the ranks, in place, the same bits on each rank."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def add_up_numbers(self, numbers: Sequence[float]) -> list[float]:
        """The sums over the ranks, in float64."""
        if self.world_size == 1:
            return [float(number) for number in numbers]
        column = torch.tensor(list(numbers), dtype=torch.float64)
        dist.all_reduce(column)
        return [float(number) for number in column]

    def largest(self, number: float) -> float:
        """The largest of the ranks' numbers; NaN where one is NaN."""
        if self.world_size == 1:
            return number
        gathered = torch.empty(self.world_size, dtype=torch.float64)
        dist.all_gather_into_tensor(gathered, torch.tensor([number], dtype=torch.float64))
        return float(gathered.max())


def join_mesh(dp: int, dp_rank: int, rendezvous: str, *, timeout_s: float = 600.0) -> Mesh:
    """The mesh of `dp` processes that meet at `rendezvous` ("file:///..." or "tcp://host:port").

    A collective that a rank does not join within `timeout_s` raises on the others.
    """
    if dp > 1:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            init_method=rendezvous,
            rank=dp_rank,
            world_size=dp,
            timeout=timedelta(seconds=timeout_s),
        )
    return Mesh(dp, dp_rank)
