"""Reads a run folder back into typed records. Light: no torch; nothing in it is executed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rledger.books.ledger import books_files
from rledger.books.records import (
    SCHEMA_VERSION,
    AttemptOpened,
    BooksCost,
    BoundsMeasured,
    Record,
    Resumed,
    SpanRecord,
    TrackRecord,
)
from rledger.errors import RunFolderError

__all__ = [
    "Attempt",
    "MetricsRow",
    "RunBooks",
    "read_books",
    "read_metrics",
    "surviving",
    "surviving_by_attempt",
]

MetricsRow = dict[str, float]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one process of one attempt booked, in the order of booking."""

    opened: AttemptOpened
    path: Path
    records: tuple[Record, ...]
    num_torn_lines: int  # lines cut off by a kill
    num_missing_rows: int = 0  # rows that the books counted when writing and that are not there

    @property
    def end_s(self) -> float:
        """Time of the last record, in seconds since the attempt's origin."""
        return max((_time_of(r) for r in self.records), default=0.0)

    @property
    def cost(self) -> BooksCost | None:
        """The books' own cost as last booked."""
        costs = [r for r in self.records if isinstance(r, BooksCost)]
        return costs[-1] if costs else None


@dataclass(frozen=True, slots=True)
class RunBooks:
    """All attempts at a run, in order."""

    folder: Path
    attempts: tuple[Attempt, ...]

    @property
    def num_torn_lines(self) -> int:
        return sum(a.num_torn_lines for a in self.attempts)

    def surviving(self) -> list[Record]:
        """Records of the surviving timeline."""
        return surviving([a.records for a in self.attempts])

    def lanes(self) -> list[str]:
        """Names of the lanes that have spans, in order of first appearance."""
        records = (r for a in self.attempts for r in a.records)
        return list(dict.fromkeys(r.lane for r in records if isinstance(r, SpanRecord)))

    def steps(self, lane: str = "main") -> list[int]:
        """Steps of the surviving timeline that were closed on `lane`, ascending.

        Step 0 is the start of an attempt: what it does before its first step of training.
        """
        return list(self.step_records(lane))

    def step_records(self, lane: str = "main") -> dict[int, list[SpanRecord]]:
        """Spans of each closed step on `lane`, for `time_balance`.

        A step stands as the last attempt that closed it has it.
        """
        steps: dict[int, list[SpanRecord]] = {}
        for records in surviving_by_attempt([a.records for a in self.attempts]):
            own: dict[int, list[SpanRecord]] = {}
            closed = set()
            for span in records:
                if not isinstance(span, SpanRecord) or span.lane != lane or span.step is None:
                    continue
                own.setdefault(span.step, []).append(span)
                if span.parent == -1:
                    closed.add(span.step)
            steps |= {step: spans for step, spans in own.items() if step in closed}
        return dict(sorted(steps.items()))


def read_books(folder: Path) -> RunBooks:
    """Read `<folder>/books`. Torn lines are counted, not fatal.

    Raises RunFolderError when there are no books, or when a newer version wrote them.
    """
    folder = Path(folder)
    attempts = []
    for _, path in books_files(folder):
        attempt = _read_file(path)
        if attempt is not None:
            attempts.append(attempt)
    if not attempts:
        raise RunFolderError(
            f"{folder}: no books in it ({folder / 'books'}): no run has begun here"
        )
    return RunBooks(folder, tuple(attempts))


def surviving(attempts: Sequence[Sequence[Record]]) -> list[Record]:
    """Records that hold after all resumptions, in order.

    An attempt that resumed after step s supersedes what earlier attempts booked of later steps.
    """
    return [record for records in surviving_by_attempt(attempts) for record in records]


def surviving_by_attempt(attempts: Sequence[Sequence[Record]]) -> list[list[Record]]:
    """The same, apart for each attempt."""
    kept: list[list[Record]] = []
    for records in attempts:
        for record in records:
            if isinstance(record, Resumed):
                kept = [[r for r in old if not _later_than(r, record.step)] for old in kept]
        kept.append(list(records))
    return kept


def read_metrics(folder: Path) -> list[MetricsRow]:
    """Rows of `<folder>/metrics.jsonl` on the surviving timeline, ascending by step.

    A row of step n supersedes the rows before it that have a step of n or later: a resumed run
    writes those steps again. Raises RunFolderError when the file is missing.
    """
    path = Path(folder) / "metrics.jsonl"
    if not path.is_file():
        raise RunFolderError(f"{path} is missing; is {folder} a run folder?")
    rows: list[MetricsRow] = []
    decoder = msgspec.json.Decoder(dict[str, float])
    for line in path.read_bytes().splitlines():
        if not line:
            continue
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # torn by a kill; its step is written again when the run resumes
        if "step" not in row:
            continue
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
    return rows


def _read_file(path: Path) -> Attempt | None:
    """None when not even the first line is whole."""
    data = path.read_bytes()
    whole, _, rest = data.rpartition(b"\n")
    num_torn = 1 if rest else 0
    decoder = msgspec.json.Decoder(Record)
    _check_schema(path, whole)
    records: list[Record]
    try:
        records = decoder.decode_lines(whole)
    except (msgspec.DecodeError, UnicodeDecodeError):
        records, num_bad = _decode_each(decoder, whole.split(b"\n"))
        num_torn += num_bad
    if not records or not isinstance(records[0], AttemptOpened):
        return None
    return Attempt(records[0], path, tuple(records[1:]), num_torn, _num_missing(records))


def _num_missing(records: Sequence[Record]) -> int:
    """Rows that the books' own count, booked with each flush, is ahead of what was read."""
    num_read = 0
    num_missing = 0
    for record in records:
        if isinstance(record, BooksCost):
            num_missing = max(num_missing, record.num_records - num_read)
        else:
            num_read += 1
    return num_missing


def _decode_each(
    decoder: msgspec.json.Decoder[Record], lines: Iterable[bytes]
) -> tuple[list[Record], int]:
    records: list[Record] = []
    num_bad = 0
    for line in lines:
        try:
            records.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            num_bad += 1
    return records, num_bad


def _check_schema(path: Path, data: bytes) -> None:
    """A newer schema must be named as such, not be taken for torn lines."""
    first = data.split(b"\n", 1)[0]
    try:
        header = msgspec.json.decode(first, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    version = header.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RunFolderError(
            f"{path}: written with schema {version}, this rledger reads up to {SCHEMA_VERSION};"
            " upgrade rledger"
        )


def _later_than(record: Record, step: int) -> bool:
    if isinstance(record, AttemptOpened | BooksCost | BoundsMeasured) or record.step is None:
        return False
    return record.step > step


def _time_of(record: Record) -> float:
    if isinstance(record, AttemptOpened):
        return 0.0
    return record.end_s if isinstance(record, SpanRecord | TrackRecord) else record.at_s
