"""Metrics read off the spans of a step: the figures people know, and honest ones beside them.

The known ones are computed as verl computes them, so that they compare: `perf/throughput` counts a
prompt once a trajectory, though nobody generated it and it is computed once; `perf/time_per_step`
holds a checkpoint but no validation; MFU counts masked prompt tokens as trained ones. The honest
ones name what they count and what they divide by.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rledger.books.balance import SpanNode, time_balance
from rledger.books.lane import Lane
from rledger.books.ledger import Books
from rledger.books.records import SpanRecord
from rledger.errors import BooksError

__all__ = [
    "StepMeter",
    "TokenCounts",
    "mfu",
    "throughput_metrics",
    "timing_metrics",
    "work_metrics",
]

_PER_RESPONSE_TOKEN = ("gen",)
_PER_TOKEN = ("ref", "values", "adv", "update_critic", "update_actor")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of one step. A prompt counts once a trajectory, as in `perf/total_num_tokens`."""

    prompt_tokens: int
    generated_tokens: int
    trained_tokens: int
    useful_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens


def timing_metrics(spans: Sequence[SpanRecord], tokens: TokenCounts) -> dict[str, float]:
    """`timing_s/*`, `timing_per_token_ms/*` and the unaccounted time of one step's spans.

    Stages are the step's direct children that are not waits. `timing_s/step` is without `testing`,
    as its readers expect; the unaccounted fraction is of the whole step.
    Raises BooksError when the root span is not among them.
    """
    root = _root(spans)
    stages: dict[str, float] = {}
    covered_s = 0.0
    for span in spans:
        if span.parent == root.id:
            covered_s += span.seconds
            if span.name != "wait":
                stages[span.name] = stages.get(span.name, 0.0) + span.seconds
    metrics = {f"timing_s/{name}": seconds for name, seconds in stages.items()}
    metrics["timing_s/step"] = root.seconds - stages.get("testing", 0.0)
    for names, num_tokens in (
        (_PER_RESPONSE_TOKEN, tokens.generated_tokens),
        (_PER_TOKEN, tokens.total_tokens),
    ):
        for name in names:
            if name in stages and num_tokens:
                metrics[f"timing_per_token_ms/{name}"] = 1000 * stages[name] / num_tokens
    metrics["time/unaccounted_s"] = root.seconds - covered_s
    metrics["time/unaccounted_frac"] = (
        (root.seconds - covered_s) / root.seconds if root.seconds else 0.0
    )
    if "process_cpu_s" in root.counts:
        metrics["time/process_cpu_s"] = root.counts["process_cpu_s"]
    if "peak_resident_bytes" in root.counts:
        metrics["perf/cpu_memory_used_gb"] = root.counts["peak_resident_bytes"] / 1e9
    return metrics


def throughput_metrics(
    tokens: TokenCounts, *, step_s: float, elapsed_s: float, num_devices: int = 1
) -> dict[str, float]:
    """Tokens per second over the step, and over the time that really passed (`elapsed_s`)."""
    metrics: dict[str, float] = {
        "perf/total_num_tokens": tokens.total_tokens,
        "perf/time_per_step": step_s,
        "time/elapsed_s": elapsed_s,
        "data/prompt_tokens": tokens.prompt_tokens,
        "data/generated_tokens": tokens.generated_tokens,
        "data/trained_tokens": tokens.trained_tokens,
        "data/useful_tokens": tokens.useful_tokens,
    }
    if step_s > 0:
        metrics["perf/throughput"] = tokens.total_tokens / (step_s * num_devices)
    for over, seconds in (("", step_s), ("elapsed/", elapsed_s)):
        if seconds > 0:
            metrics[f"perf/{over}generated_tokens_per_s"] = tokens.generated_tokens / seconds
            metrics[f"perf/{over}trained_tokens_per_s"] = tokens.trained_tokens / seconds
            metrics[f"perf/{over}useful_tokens_per_s"] = tokens.useful_tokens / seconds
    return metrics


def work_metrics(root: SpanNode) -> dict[str, float]:
    """FLOPs and bytes that a step's stages booked, and FLOPs per second of the stage."""
    metrics: dict[str, float] = {}
    for stage in root.children.values():
        flops, moved = stage.total("flops"), stage.total("bytes")
        if flops:
            metrics[f"perf/{stage.name}_flops"] = flops
            if stage.seconds > 0:
                metrics[f"perf/{stage.name}_flops_per_s"] = flops / stage.seconds
        if moved:
            metrics[f"perf/{stage.name}_bytes"] = moved
    return metrics


def mfu(flops: float, seconds: float, peak_flops_per_s: float, num_devices: int = 1) -> float:
    """Model FLOPs utilisation, a fraction: `flops / (seconds x peak x devices)`."""
    if seconds <= 0 or peak_flops_per_s <= 0 or num_devices <= 0:
        raise BooksError("mfu needs a positive time, peak and number of devices")
    return flops / (seconds * peak_flops_per_s * num_devices)


class StepMeter:
    """Reads a lane's last step, and knows when the step before ended."""

    def __init__(self, books: Books, lane: Lane) -> None:
        self._books = books
        self._lane = lane
        self._last_end_s = books.now_s()
        self._last_cost_s = books.cost_s

    def read(
        self,
        tokens: TokenCounts,
        *,
        num_devices: int = 1,
        update_flops: float | None = None,
        peak_flops_per_s: float | None = None,
    ) -> dict[str, float]:
        """Time, throughput and work metrics of the step that the lane closed last.

        With `update_flops` (`rledger.cost.mfu_flops` of the step's rows) and a peak there is
        `perf/mfu/actor` too. Raises BooksError when the step's time does not balance.
        """
        begin_s = time.perf_counter()
        spans = self._lane.last_step
        root = _root(spans)
        assert root.step is not None
        balance = time_balance(spans, root.step, self._lane.name)
        metrics = timing_metrics(spans, tokens) | work_metrics(balance.root)
        metrics |= throughput_metrics(
            tokens,
            step_s=metrics["timing_s/step"],
            elapsed_s=root.end_s - self._last_end_s,
            num_devices=num_devices,
        )
        if "timing_s/update_actor" in metrics and update_flops and peak_flops_per_s:
            metrics["perf/mfu/actor"] = mfu(
                update_flops, metrics["timing_s/update_actor"], peak_flops_per_s, num_devices
            )
        if self._books.real_time:
            self._books.cost_s += time.perf_counter() - begin_s
            metrics["time/books_s"] = self._books.cost_s - self._last_cost_s
        self._last_end_s = root.end_s
        self._last_cost_s = self._books.cost_s
        return metrics


def _root(spans: Sequence[SpanRecord]) -> SpanRecord:
    roots = [s for s in spans if s.parent == -1]
    if len(roots) != 1 or roots[0].name != "step":
        raise BooksError(f"needs the spans of one step with its root, has roots {roots}")
    return roots[0]
