"""One side of a comparison, as its own process sees it. Needs nothing but the standard library.

A side is `python -m benchmarks.<module> WORKLOAD.json`, in whatever interpreter has its libraries. It
gets ready (start-up is told apart), then waits; each line "run" on standard input makes one
measurement, and one JSON line answers it. Everything else that it prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

__all__ = ["Finished", "Port"]


class Finished(Exception):
    """The other end has no more measurements to ask for."""


class Port:
    """The workload, and the line to whoever measures."""

    def __init__(self) -> None:
        self.workload: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        # Libraries print to standard output as they like: the answers get a descriptor of their own.
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def ready(self, **facts: Any) -> None:
        """Say that start-up is over; `facts` (versions, settings) go into the result file."""
        self._send(facts)

    def wait(self) -> None:
        """Block until a measurement is asked for. Raises Finished when there are no more."""
        if not sys.stdin.readline():
            raise Finished

    def answer(self, **figures: Any) -> None:
        """The figures of one measurement."""
        self._send(figures)

    def _send(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message) + "\n")
        self._answers.flush()
