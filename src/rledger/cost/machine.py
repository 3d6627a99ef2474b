"""What this machine can do at most, measured: the denominators of every "x % of the bound"."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rledger.cost.formulas import Cost

__all__ = ["MachineBounds", "measure_bandwidth", "measure_matmul"]


@dataclass(frozen=True, slots=True)
class MachineBounds:
    """Measured rates. `instrument` says how, so that no bound is read as a data sheet's peak."""

    flops_per_s: float
    bytes_per_s: float
    instrument: str

    def bound_s(self, cost: Cost) -> float:
        """Least seconds for `cost` on this machine."""
        return cost.bound_s(self.flops_per_s, self.bytes_per_s)

    def bounded_by(self, cost: Cost) -> str:
        """'compute' or 'memory': which of the two rates sets that least time."""
        compute_s = cost.flops / self.flops_per_s
        return "compute" if compute_s >= cost.bytes / self.bytes_per_s else "memory"


def measure_bandwidth(num_bytes: int = 256 * 1024 * 1024, repeats: int = 5) -> float:
    """Bytes per second of memory, as the best of `repeats` sums over an array beyond the caches.

    A sum only reads, on one thread; more threads may reach more.
    """
    source = np.ones(num_bytes // 8, dtype=np.float64)
    best_s = min(_time(lambda: source.sum()) for _ in range(repeats))
    return source.nbytes / best_s


def measure_matmul(
    multiply: Callable[[], object], flops: float, *, repeats: int = 5, warm_up: int = 1
) -> float:
    """FLOPs per second of `multiply`, which does `flops` of them and waits for its result.

    The callable is injected, so that the rate is that of the library, dtype and threads in use:
    `measure_matmul(lambda: a @ b, 2 * m * n * k)`.
    """
    for _ in range(warm_up):
        multiply()
    return flops / min(_time(multiply) for _ in range(repeats))


def _time(work: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    work()
    return time.perf_counter() - begin_s
