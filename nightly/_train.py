"""Runs `rledger train` as a user would, and reads what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["Trained", "train"]

ROOT = Path(__file__).parents[1]
_COMMAND = "import sys; from rledger.cli import main; sys.exit(main(sys.argv[1:]))"


class Trained:
    """A finished run: its rows, its wall clock from outside, its peak memory by the kernel."""

    def __init__(
        self, rows: list[dict[str, Any]], wall_s: float, peak_bytes: int, first_update_s: float
    ):
        self.rows, self.wall_s, self.peak_bytes = rows, wall_s, peak_bytes
        self.first_update_s = first_update_s

    def accuracies(self, task: str) -> list[tuple[int, float]]:
        """(step, greedy accuracy) of every evaluation."""
        name = f"val-core/{task}/acc/mean@1"
        return [(row["step"], row[name]) for row in self.rows if name in row]

    def unaccounted_frac(self) -> float:
        """Time inside steps that no stage covers, over all steps."""
        steps = [row for row in self.rows if row["step"] > 0]
        unaccounted = sum(row["time/unaccounted_s"] for row in steps)
        return round(unaccounted / sum(row["timing_s/step"] for row in steps), 5)

    def training_s(self, until_step: int) -> float:
        """Seconds of steps up to `until_step`; evaluation and start-up apart."""
        return sum(row["timing_s/step"] for row in self.rows if 0 < row["step"] <= until_step)


def train(recipe: str, *overrides: str, timeout_s: float) -> Trained:
    """Run the recipe in a fresh run folder; raises when it does not end with status 0."""
    with tempfile.TemporaryDirectory() as root:
        begin_s = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "train", recipe, f"run.root={root}", *overrides],
            cwd=ROOT,
        )
        first_update_s = _wait(child, Path(root), begin_s, timeout_s)
        wall_s = time.perf_counter() - begin_s
        if child.returncode != 0:
            raise SystemExit(f"{recipe} ended with status {child.returncode}")
        (run,) = Path(root).iterdir()
        rows = [
            json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()
        ]
    peak = int(max(row.get("perf/cpu_memory_used_gb", 0.0) for row in rows) * 1e9)
    return Trained(rows, wall_s, peak, first_update_s)


def _wait(child: subprocess.Popen[bytes], root: Path, begin_s: float, timeout_s: float) -> float:
    """Wait for the end; returns the seconds until the first trained step stood in metrics.jsonl."""
    first_update_s = float("nan")
    while child.poll() is None:
        if time.perf_counter() - begin_s > timeout_s:
            os.kill(child.pid, 9)
            child.wait()
            raise SystemExit(f"no end within {timeout_s:.0f} s")
        if first_update_s != first_update_s:
            for path in root.glob("*/metrics.jsonl"):
                if '{"step":1,' in path.read_text("utf-8"):
                    first_update_s = time.perf_counter() - begin_s
        time.sleep(0.05)
    return first_update_s
