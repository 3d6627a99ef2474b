"""What this machine can do at most, measured once at the start of a run (well under a second)."""

from __future__ import annotations

import torch

from rledger.books import BoundsMeasured
from rledger.cost import measure_bandwidth, measure_matmul
from rledger.models.placement import Placement

__all__ = ["measure_bounds"]

_SIZE = {"cpu": 1024, "cuda": 8192}  # large enough to reach the rate, small enough to be quick
_BANDWIDTH_BYTES = 128 * 2**20


def measure_bounds(placement: Placement) -> BoundsMeasured:
    """Matmul rate in the compute dtype and read bandwidth of this placement."""
    placement.apply_threads()
    device = placement.device
    size = _SIZE.get(device.type, 1024)
    left = torch.ones(size, size, dtype=placement.compute_dtype, device=device)

    def multiply() -> None:
        torch.matmul(left, left)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    flops_per_s = measure_matmul(multiply, 2 * size**3)
    if device.type == "cuda":
        source = torch.ones(2**28, dtype=torch.float32, device=device)

        def read() -> None:
            source.sum()
            torch.cuda.synchronize(device)

        # One "FLOP" per byte turns the same timing into bytes per second.
        bytes_per_s = measure_matmul(read, source.nbytes)
        how = f"sum over {source.nbytes // 2**20} MiB on the device"
    else:
        bytes_per_s = measure_bandwidth(_BANDWIDTH_BYTES)
        how = f"sum over {_BANDWIDTH_BYTES // 2**20} MiB, 1 thread"
    dtype = str(placement.compute_dtype).removeprefix("torch.")
    return BoundsMeasured(
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        instrument=f"matmul {dtype} {size}^3, {placement.threads} threads; {how}",
    )
