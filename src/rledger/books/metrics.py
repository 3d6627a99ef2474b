"""Metrics: each declared once, with unit, reduction and description; an undeclared one fails.

A declared name may hold placeholders: `timing_s/{stage}` stands for any one part, a placeholder
that ends in dots, `{stat...}`, for one or more parts. `names.py` declares what RLedger writes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from rledger.books.appender import LineFile
from rledger.errors import BooksError, RunFolderError

__all__ = ["Metric", "MetricsSink", "MetricsWriter", "Reduction", "Registry"]

Reduction = Literal["mean", "sum", "max", "min", "last"]
_RESERVED = ("step", "policy_version", "unix_s")
_PLACEHOLDER = re.compile(r"\{(\w+)(\.\.\.)?\}")


@dataclass(frozen=True)
class Metric:
    """One declared name. `reduction` says how values of several ranks or updates become one;
    a mean is weighted by whatever the values are means over (tokens, trajectories)."""

    name: str
    unit: str
    reduction: Reduction
    description: str

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        parts = []
        position = 0
        for found in _PLACEHOLDER.finditer(self.name):
            parts.append(re.escape(self.name[position : found.start()]))
            parts.append(".+" if found[2] else "[^/]+")
            position = found.end()
        return re.compile("".join(parts) + re.escape(self.name[position:]))

    @property
    def is_pattern(self) -> bool:
        return "{" in self.name


class Registry:
    """The declared metrics. A plain name wins over a pattern, an earlier pattern over a later."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.metrics = tuple(metrics)
        names = [m.name for m in self.metrics]
        doubled = sorted({n for n in names if names.count(n) > 1})
        if doubled:
            raise BooksError(f"metrics declared twice: {', '.join(doubled)}")
        self._plain = {m.name: m for m in self.metrics if not m.is_pattern}
        self._patterns = [m for m in self.metrics if m.is_pattern]
        self._found: dict[str, Metric] = {}

    def find(self, name: str) -> Metric:
        """The declaration that covers `name`. Raises BooksError when none does."""
        metric = self._plain.get(name) or self._found.get(name)
        if metric is not None:
            return metric
        for metric in self._patterns:
            if metric.pattern.fullmatch(name):
                self._found[name] = metric
                return metric
        raise BooksError(
            f"metric {name!r} is not declared; declare it in rledger/books/names.py with its unit,"
            " reduction and description"
        )

    def reduce(
        self, name: str, values: Sequence[float], weights: Sequence[float] | None = None
    ) -> float:
        """Values of several updates or ranks as one, by the declared reduction.

        `weights` are the sizes that means were taken over; without them all count the same.
        """
        if not values:
            raise BooksError(f"metric {name!r}: nothing to reduce")
        reduction = self.find(name).reduction
        if reduction == "sum":
            return math.fsum(values)
        if reduction == "max":
            return max(values)
        if reduction == "min":
            return min(values)
        if reduction == "last":
            return values[-1]
        sizes = [1.0] * len(values) if weights is None else list(weights)
        total = math.fsum(sizes)
        if total == 0:
            return 0.0
        return math.fsum(v * w for v, w in zip(values, sizes, strict=True)) / total


class MetricsSink(Protocol):
    """Where else metrics go: TensorBoard, Weights & Biases, MLflow."""

    name: str

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class MetricsWriter:
    """Writes `<run>/metrics.jsonl`: one JSON object a step, and hands the same to the sinks.

    A sink that raises is put aside and named in `broken_sinks`; it never stops the run.
    """

    def __init__(self, folder: Path, registry: Registry, sinks: Sequence[MetricsSink] = ()) -> None:
        self.path = Path(folder) / "metrics.jsonl"
        self.broken_sinks: dict[str, str] = {}  # name -> what it raised
        self._registry = registry
        self._sinks = list(sinks)
        self._encoder = msgspec.json.Encoder()
        try:
            self._file = LineFile(self.path)
        except OSError as error:
            raise RunFolderError(
                f"{self.path}: cannot be written ({error.strerror}); check its permissions"
            ) from error

    def write(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        """One row. Raises BooksError for an undeclared name or a value that is not finite."""
        values: dict[str, float] = {}
        for name in sorted(metrics):
            self._registry.find(name)
            value = float(metrics[name])
            if not math.isfinite(value):
                raise BooksError(f"metric {name!r} is {value} at step {step}")
            values[name] = value
        head = {"step": step, "policy_version": policy_version, "unix_s": time.time()}
        self._file.write(self._encoder.encode({**head, **values}) + b"\n")
        for sink in tuple(self._sinks):
            self._hand_to(sink, step, values)

    def _hand_to(self, sink: MetricsSink, step: int, values: Mapping[str, float]) -> None:
        try:
            sink.write(step, values)
        # Foreign code with exceptions of its own; a dashboard's failure must not end a training.
        except Exception as error:
            self.broken_sinks[sink.name] = f"{type(error).__name__}: {error}"
            self._sinks.remove(sink)

    @property
    def problem(self) -> str:
        """What keeps metrics from arriving, in words; empty when nothing does."""
        broken = [f"sink {name} is put aside: {why}" for name, why in self.broken_sinks.items()]
        return "; ".join([self._file.problem, *broken] if self._file.problem else broken)

    @property
    def file_problem(self) -> str:
        """As `problem`, for `metrics.jsonl` alone."""
        return self._file.problem

    def close(self) -> None:
        self._file.close()
        for sink in self._sinks:
            sink.close()
