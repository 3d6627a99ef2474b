"""What the native engine counted."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GeneratorStats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorStats:
    """Totals since the engine was made, and the state of its cache now."""

    prefill_tokens: int  # prompt tokens computed for the first time, once a group
    recomputed_tokens: int  # computed again, after a preemption or new weights
    generated_tokens: int
    num_decode_steps: int
    num_preemptions: int
    num_finished: int
    num_aborted: int  # cancelled by whoever awaited them
    num_running: int
    num_waiting: int
    cache_bytes: int
    peak_cache_bytes: int
    cache_budget_bytes: int
