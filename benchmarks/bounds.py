"""What the machine can do at most: denominators of the figures, measured beside them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from rledger.cost import Cost, decode_cost, measure_matmul, prefill_cost
from rledger.modelspec import ModelSpec

__all__ = ["generation_bound", "measure_rates"]

_LAYERS = 30


def measure_rates(threads: int, dtype: torch.dtype, rows: int) -> dict[str, Any]:
    """Best of several: bytes read a second, and FLOPs of a product of `rows` rows and of many rows.

    Memory is read by all threads, from an array beyond the caches. A product is torch's own or that
    of a weight packed for it beforehand, whichever is faster.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        source = torch.ones(2**26, dtype=torch.float32)  # 256 MiB
        read_s = _best_s(lambda: source.sum().item())
        return {
            "bytes_per_s": source.nbytes / read_s,
            "flops_per_s": max(_matmul(2048, dtype), _packed_matmul(2048, dtype)),
            "flops_per_s_at_rows": max(_matmul(rows, dtype), _packed_matmul(rows, dtype)),
            "rows": rows,
            "instrument": f"sum over 256 MiB; {dtype} products with a [3072, 576] weight;"
            f" {threads} threads, best of 20",
        }
    finally:
        torch.set_num_threads(before)


def generation_bound(
    spec: ModelSpec, prompt_lengths: list[int], new_tokens: int, rates: dict[str, Any], bytes_: int
) -> dict[str, float]:
    """Least seconds that the tokens need here, and what sets them.

    Prompts once, then all requests together, a token each; the last token needs no pass of its own.
    `memory_s` reads every weight once a pass and the cache; `compute_s` is at the best matmul rate.
    """
    total = prefill_cost(spec, prompt_lengths, bytes_)
    for step in range(1, new_tokens):
        total += decode_cost(spec, [length + step - 1 for length in prompt_lengths], bytes_)
    return _bound(total, rates, len(prompt_lengths) * new_tokens)


def _bound(cost: Cost, rates: dict[str, Any], tokens: int) -> dict[str, float]:
    memory_s = cost.bytes / rates["bytes_per_s"]
    compute_s = cost.flops / rates["flops_per_s"]
    return {
        "flops": float(cost.flops),
        "bytes": float(cost.bytes),
        "memory_s": memory_s,
        "compute_s": compute_s,
        "tokens_per_s": tokens / max(memory_s, compute_s),
    }


def _matmul(rows: int, dtype: torch.dtype) -> float:
    x, weights = _operands(rows, dtype)
    return _rate(lambda: [torch.nn.functional.linear(x, weight) for weight in weights], rows)


def _packed_matmul(rows: int, dtype: torch.dtype) -> float:
    """0 where this build of torch has no such product."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return 0.0
    x, weights = _operands(rows, dtype)
    ops = torch.ops.mkldnn
    packed = [ops._reorder_linear_weight(weight, rows) for weight in weights]
    return _rate(
        lambda: [ops._linear_pointwise(x, weight, None, "none", [], "") for weight in packed], rows
    )


def _operands(rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """[rows, 576], and as many feed-forward weights as the model has layers: none stays in a cache."""
    weights = [torch.randn(3072, 576).to(dtype) for _ in range(_LAYERS)]
    return torch.randn(rows, 576).to(dtype), weights


def _rate(multiply: Callable[[], object], rows: int) -> float:
    return measure_matmul(multiply, _LAYERS * 2 * rows * 576 * 3072, repeats=20)


def _best_s(work: Callable[[], object], repeats: int = 20) -> float:
    best = float("inf")
    for _ in range(repeats):
        begin_s = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begin_s)
    return best
