"""FLOPs, bytes and seconds of one operation: formulas, and the bounds of the machine at hand."""

from __future__ import annotations

from rledger.cost.formulas import (
    Cost,
    adamw_cost,
    backward_cost,
    causal_pairs,
    decode_cost,
    forward_cost,
    head_cost,
    kv_bytes_per_token,
    layers_cost,
    mfu_flops,
    prefill_cost,
    sampling_cost,
    shared_prefix_pairs,
)
from rledger.cost.machine import MachineBounds, measure_bandwidth, measure_matmul

__all__ = [
    "Cost",
    "MachineBounds",
    "adamw_cost",
    "backward_cost",
    "causal_pairs",
    "decode_cost",
    "forward_cost",
    "head_cost",
    "kv_bytes_per_token",
    "layers_cost",
    "measure_bandwidth",
    "measure_matmul",
    "mfu_flops",
    "prefill_cost",
    "sampling_cost",
    "shared_prefix_pairs",
]
