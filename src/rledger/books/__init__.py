"""The books: where every second and every token of a run goes. Usable in anybody's loop.

books = Books.open(run_folder)
lane = books.lane("main")
with lane.step(1, policy_version=0):
    with lane.span("gen") as span:
        ...
        span.add(tokens=512)
"""

from __future__ import annotations

from rledger.books.lane import Lane, Span
from rledger.books.ledger import Books
from rledger.books.metrics import MetricsWriter
from rledger.books.names import METRICS
from rledger.books.records import (
    STAGES,
    BoundsMeasured,
    DropReason,
    GroupAdmitted,
    GroupEnded,
    Resumed,
    SpanRecord,
    StageSkipped,
    State,
    StepCommitted,
    TrajectoryEnded,
)
from rledger.books.views import StepMeter, TokenCounts

__all__ = [
    "METRICS",
    "STAGES",
    "Books",
    "BoundsMeasured",
    "DropReason",
    "GroupAdmitted",
    "GroupEnded",
    "Lane",
    "MetricsWriter",
    "Resumed",
    "Span",
    "SpanRecord",
    "StageSkipped",
    "State",
    "StepCommitted",
    "StepMeter",
    "TokenCounts",
    "TrajectoryEnded",
]
