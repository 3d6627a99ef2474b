"""A lane: the time of one OS thread or one engine's loop, cut into nested spans.

Spans of a lane are strictly nested (last opened, first closed), so at any moment the lane is in
exactly one state: that of its innermost open span. A span's exclusive time is its own time without
its children's; over a step the exclusive times add up to the wall time by construction.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from rledger.books.records import STATES, SpanRecord, State, TrackRecord
from rledger.errors import BooksError

if TYPE_CHECKING:
    from rledger.books.ledger import Books

__all__ = ["Lane", "Span"]

_BARE_COUNTS = frozenset({"tokens", "rows", "bytes", "flops"})
_COUNT_ENDINGS = ("_tokens", "_rows", "_bytes", "_flops", "_s")
_known_counts = set(_BARE_COUNTS)
_KNOWN_STATES = frozenset(STATES)


class Span:
    """An open piece of a lane's time; made by `Lane.span`, entered once."""

    __slots__ = ("_counts", "_id", "_lane", "_parent", "_start_s", "name", "on", "state")

    def __init__(
        self, lane: Lane, name: str, state: State, on: str, counts: dict[str, float]
    ) -> None:
        self._lane = lane
        self._counts = counts
        self._id = -1
        self._parent = -1
        self._start_s = 0.0
        self.name = name
        self.state = state
        self.on = on

    def add(self, **counts: float) -> None:
        """Add to the counts: tokens, rows, bytes, flops, num_*, or a name that ends in a unit."""
        mine = self._counts
        for name, value in counts.items():
            mine[name] = mine.get(name, 0) + value

    def __enter__(self) -> Span:
        lane = self._lane
        if self._id >= 0:
            raise BooksError(f"span {self.name!r} on lane {lane.name!r} was entered twice")
        stack = lane._stack
        self._id = lane._num_opened
        lane._num_opened += 1
        self._parent = stack[-1]._id if stack else -1
        stack.append(self)
        self._start_s = lane._now_s()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lane._close(self, kind is not None)


class _StepSpan(Span):
    """The root span of a step. With the real clock it also brings the process's own witnesses."""

    __slots__ = ("_cpu_s", "_step", "_version")

    def __init__(self, lane: Lane, step: int, policy_version: int) -> None:
        super().__init__(lane, "step", "compute", "", {})
        self._step = step
        self._version = policy_version
        self._cpu_s = 0.0

    def __enter__(self) -> Span:
        lane = self._lane
        if lane._step is not None:
            raise BooksError(
                f"step {self._step} begins inside step {lane._step} on lane {lane.name!r}"
            )
        lane._step, lane._version, lane._step_records = self._step, self._version, []
        self._cpu_s = time.process_time()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        lane = self._lane
        if lane._real_time:
            # ru_maxrss is in KiB on Linux.
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            self.add(process_cpu_s=time.process_time() - self._cpu_s, peak_resident_bytes=peak)
        try:
            super().__exit__(kind, error, traceback)
        finally:
            lane.last_step = tuple(lane._step_records)
            lane._step = lane._version = None
            lane._step_records = []
        lane._end_step()


class Lane:
    """The books of one thread or loop. Made by `Books.lane`; threads never share one."""

    def __init__(self, books: Books, name: str) -> None:
        self.name = name
        self.last_step: tuple[
            SpanRecord, ...
        ] = ()  # spans of the last closed step, in closing order
        self._books = books
        self._now_s: Callable[[], float] = books.now_s
        self._real_time = books.real_time
        self._stack: list[Span] = []
        self._num_opened = 0
        self._step: int | None = None
        self._version: int | None = None
        self._step_records: list[SpanRecord] = []

    def now_s(self) -> float:
        """Seconds since the attempt's origin."""
        return self._now_s()

    def span(self, name: str, *, state: State = "compute", on: str = "", **counts: float) -> Span:
        """A context manager that books its body's time; `on` names what a wait waits for.

        Example: `with lane.span("forward", tokens=512) as span: ...; span.add(flops=...)`
        """
        if state not in _KNOWN_STATES:
            raise BooksError(f"span {name!r}: {state!r} is no state; one of {', '.join(STATES)}")
        return Span(self, name, state, on, counts)

    def step(self, step: int, policy_version: int) -> Span:
        """The root span of a step on this lane; spans inside inherit step and version.

        `policy_version` is the version at the step's start. Closing it flushes the books.
        """
        return _StepSpan(self, step, policy_version)

    def track(
        self,
        name: str,
        track: str,
        start_s: float,
        end_s: float,
        *,
        raised: bool = False,
        **counts: float,
    ) -> None:
        """Book elapsed time that may overlap with anything (see `now_s` for the times)."""
        _check_counts(name, counts)
        self._books.append(
            TrackRecord(
                self.name, name, track, start_s, end_s, self._step, self._version, raised, counts
            )
        )

    @contextmanager
    def tracking(self, name: str, track: str, **counts: float) -> Iterator[None]:
        """Book the elapsed time of a coroutine; unlike spans, these may interleave freely."""
        start_s = self._now_s()
        raised = True
        try:
            yield
            raised = False
        finally:
            self.track(name, track, start_s, self._now_s(), raised=raised, **counts)

    def _close(self, span: Span, raised: bool) -> None:
        end_s = self._now_s()
        stack = self._stack
        if not stack or stack[-1] is not span:
            self._unwind(span)
        stack.pop()
        counts = span._counts
        if not counts.keys() <= _known_counts:
            _check_counts(span.name, counts)
        record = SpanRecord(
            span._id,
            span._parent,
            self.name,
            span.name,
            span.state,
            span._start_s,
            end_s,
            self._step,
            self._version,
            self._num_opened - span._id - 1,
            raised,
            span.on,
            counts,
        )
        self._books.append(record)
        if self._step is not None:
            self._step_records.append(record)
        if self._real_time:
            # The opening costs about as much as the closing; timing both would double the cost.
            self._books.cost_s += 2 * (self._now_s() - end_s)

    def _unwind(self, span: Span) -> None:
        """A span was closed out of order: take it off, so that one defect is reported once."""
        open_names = [s.name for s in self._stack]
        if span in self._stack:
            self._stack.remove(span)
        raise BooksError(
            f"lane {self.name!r}: span {span.name!r} closed out of order, open are {open_names};"
            " spans of coroutines that interleave belong into Lane.tracking"
        )

    def _end_step(self) -> None:
        self._books.flush()


def _check_counts(span: str, counts: dict[str, float]) -> None:
    for name in counts:
        if not (name in _BARE_COUNTS or name.startswith("num_") or name.endswith(_COUNT_ENDINGS)):
            raise BooksError(
                f"span {span!r}: count {name!r} carries no unit; use tokens, rows, bytes, flops,"
                " num_*, or a name ending in _tokens, _rows, _bytes, _flops or _s"
            )
        _known_counts.add(name)
