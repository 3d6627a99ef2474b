"""Sides of a comparison as processes that take turns, so that a busy machine distorts all alike."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

__all__ = ["ROOT", "Side", "SideError", "alternate", "interpreter"]

ROOT = Path(__file__).resolve().parents[1]


class SideError(RuntimeError):
    """A side ended, or gave no answer in time; the message has the end of what it printed."""


def interpreter(environment: str | Path | None) -> str:
    """The python of a virtual environment; None is the one that runs this."""
    if environment is None:
        return sys.executable
    python = Path(environment) / "bin" / "python"
    if not python.exists():
        raise SystemExit(
            f"{python} is missing: `make rivals` creates the environments of the public tools, and"
            " --trl and --vllm name others"
        )
    return str(python.absolute())


class Side:
    """One process that measures when asked. See `benchmarks.side` for the other end."""

    def __init__(
        self,
        name: str,
        module: str,
        workload: Mapping[str, Any],
        *,
        python: str,
        deadline_s: float = 1_800.0,
    ) -> None:
        """Start it; `start` waits until it is ready. `deadline_s` bounds every answer."""
        self.name = name
        self._deadline_s = deadline_s
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        path = Path(self._folder.name) / "workload.json"
        path.write_text(json.dumps(workload), encoding="utf-8")
        self._log: TextIO = (Path(self._folder.name) / "log").open("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            [python, "-m", f"benchmarks.{module}", str(path)],
            cwd=ROOT,
            env=os.environ
            | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._begin_s = time.perf_counter()
        self.facts: dict[str, Any] = {}

    def start(self) -> Side:
        """Wait until it is ready; its facts go to `facts`, with the seconds since it was begun."""
        self.facts = self._read()
        self.facts["start_up_s"] = time.perf_counter() - self._begin_s
        return self

    def measure(self) -> dict[str, Any]:
        """The figures of one measurement."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("ended") from None
        return self._read()

    def close(self) -> None:
        """Let it end, or end it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=60)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._log.close()
        self._folder.cleanup()

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(self._deadline_s):
                raise self._failed(f"gave no answer within {self._deadline_s:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._failed("ended")
        message: dict[str, Any] = json.loads(line)
        return message

    def _failed(self, what: str) -> SideError:
        try:
            status = f"exit status {self._process.wait(timeout=5)}"
        except subprocess.TimeoutExpired:
            status = "still running"
        self._log.seek(0)
        told = self._log.read()[-4_000:]
        return SideError(
            f"{self.name} {what} ({status}; -9 is most often a machine out of memory):\n{told}"
        )


def alternate(
    sides: Sequence[Side], rounds: int, *, warm_up: int = 1
) -> dict[str, list[dict[str, Any]]]:
    """Figures of each side, one a round; within a round the sides take turns, every second one back.

    The first `warm_up` rounds are left out.
    """
    samples: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for number in range(warm_up + rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            begin_s = time.perf_counter()
            figures = side.measure()
            kind = "warm-up" if number < warm_up else f"round {number - warm_up + 1}"
            print(f"  {kind}: {side.name} {time.perf_counter() - begin_s:.2f} s", flush=True)
            if number >= warm_up:
                samples[side.name].append(figures)
    return samples
