"""The books of one process: lanes to book time on, and the one place where records are kept."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from rledger.books.appender import LineFile
from rledger.books.lane import Lane
from rledger.books.records import (
    SCHEMA_VERSION,
    AttemptOpened,
    BooksCost,
    DataEvent,
    Record,
    StepCommitted,
)
from rledger.errors import RunFolderError

__all__ = ["Books", "FileSink", "RecordSink", "books_files"]

# A long stage must not keep its records in memory until the step ends.
_MAX_BUFFERED_RECORDS = 4096


class RecordSink(Protocol):
    """Where records go. It must not raise: the books never stop a run."""

    def write(self, records: Sequence[Record]) -> None: ...

    def cost(self) -> tuple[int, int]:
        """Bytes written so far, records lost so far."""
        ...

    @property
    def problem(self) -> str:
        """Why records are not getting through, in words; empty when they are."""
        ...

    def close(self) -> None: ...


class FileSink:
    """Records as JSON lines in one append-only file."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path, exclusive=True)
        self._encoder = msgspec.json.Encoder()
        self.path = path

    def write(self, records: Sequence[Record]) -> None:
        self._file.write(self._encoder.encode_lines(records))

    def cost(self) -> tuple[int, int]:
        return self._file.written_bytes, self._file.lost_lines

    @property
    def problem(self) -> str:
        return self._file.problem

    def close(self) -> None:
        self._file.close()


class Books:
    """The books of one process of one attempt at a run.

    Without a sink all records stay in `records`; with one they are buffered and handed over at the
    end of each step, at each commit, and at `close`. `clock_now_s` is any monotonic clock.
    """

    def __init__(
        self,
        clock_now_s: Callable[[], float] = time.perf_counter,
        sink: RecordSink | None = None,
    ) -> None:
        self.real_time = clock_now_s is time.perf_counter
        self.unix_origin_s = time.time()
        self.cost_s = 0.0  # seconds spent inside the books so far; counted with the real clock only
        # A deque, since appending and popping are atomic: lanes of other threads append meanwhile.
        self._buffer: deque[Record] = deque()
        self._clock_now_s = clock_now_s
        self._origin_s = clock_now_s()
        self._sink = sink
        self._writing = threading.Lock()  # lanes of several threads end their steps
        self._lanes: dict[str, Lane] = {}
        self._num_records = 0
        self._last_step: int | None = None

    @classmethod
    def in_memory(cls, clock_now_s: Callable[[], float] = time.perf_counter) -> Books:
        """Books that keep everything in `records`."""
        return cls(clock_now_s)

    @classmethod
    def open(
        cls,
        folder: Path,
        clock_now_s: Callable[[], float] = time.perf_counter,
        *,
        process: str = "main",
    ) -> Books:
        """Open the next attempt's file in `<folder>/books`; nothing there is ever written over.

        Raises RunFolderError when the folder cannot be written.
        """
        attempt = 1 + max((a for a, _ in books_files(folder)), default=0)
        path = Path(folder) / "books" / f"{attempt:04d}-{process}.jsonl"
        try:
            sink = FileSink(path)
        except OSError as error:
            raise RunFolderError(
                f"{path}: the books cannot be written ({error.strerror}); check its permissions"
            ) from error
        books = cls(clock_now_s, sink)
        books.append(
            AttemptOpened(
                schema_version=SCHEMA_VERSION,
                attempt=attempt,
                process=process,
                pid=os.getpid(),
                host=socket.gethostname(),
                unix_origin_s=books.unix_origin_s,
            )
        )
        books.flush()
        return books

    @property
    def records(self) -> list[Record]:
        """What is not yet handed to a sink; without a sink, everything."""
        return list(self._buffer)

    def now_s(self) -> float:
        """Seconds since the attempt's origin."""
        return self._clock_now_s() - self._origin_s

    def lane(self, name: str) -> Lane:
        """The lane of this name; the same object at each call."""
        if name not in self._lanes:
            self._lanes[name] = Lane(self, name)
        return self._lanes[name]

    def book(self, event: DataEvent) -> None:
        """Book a data event now. A commit goes to the sink at once: a checkpoint may follow."""
        msgspec.structs.force_setattr(event, "at_s", self.now_s())
        self.append(event)
        if isinstance(event, StepCommitted):
            self._last_step = event.step
            self.flush()

    def append(self, record: Record) -> None:
        """Add a finished record; lanes and `book` do this."""
        self._buffer.append(record)
        if self._sink is not None and len(self._buffer) >= _MAX_BUFFERED_RECORDS:
            self.flush()

    def flush(self) -> None:
        """Hand what is buffered to the sink, with the books' own cost so far."""
        if self._sink is None or not self._buffer:
            return
        with self._writing:
            self._hand_over(self._sink)

    def _hand_over(self, sink: RecordSink) -> None:
        begin_s = time.perf_counter()
        buffer = self._buffer
        records = [buffer.popleft() for _ in range(len(buffer))]
        self._num_records += len(records)
        written_bytes, lost_records = sink.cost()
        records.append(
            BooksCost(
                step=self._last_step,
                cost_s=self.cost_s,
                num_records=self._num_records,
                written_bytes=written_bytes,
                lost_records=lost_records,
                at_s=self.now_s(),
            )
        )
        sink.write(records)
        self.cost_s += time.perf_counter() - begin_s

    @property
    def problem(self) -> str:
        """Why the books are not being written, in words; empty when they are."""
        return "" if self._sink is None else self._sink.problem

    def close(self) -> None:
        """Hand over the rest and close the sink; calling twice is allowed."""
        self.flush()
        if self._sink is not None:
            self._sink.close()


def books_files(folder: Path) -> list[tuple[int, Path]]:
    """(attempt, file) of the books in a run folder, in order of attempts."""
    found = []
    for path in sorted((Path(folder) / "books").glob("*-*.jsonl")):
        number = path.name.split("-", 1)[0]
        if number.isdigit():
            found.append((int(number), path))
    return found
