"""`python -m nightly SUITE [--seeds 1,2,3]`: run a suite, check it, write `nightly/results/SUITE.json`.

A suite is a module here with `run(seed) -> dict[str, float]` (the figures of one seed) and
`check(figures) -> list[str]` (what is wrong with them, empty when all is well). Results of seeds that
this call does not run stay in the file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SUITES = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nightly")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--seeds", default="1,2,3", help="comma-separated (default: 1,2,3)")
    arguments = parser.parse_args()
    suite = importlib.import_module(f"nightly.{arguments.suite}")
    path = HERE / "results" / f"{arguments.suite}.json"
    results: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    problems: list[str] = []
    for seed in (int(text) for text in arguments.seeds.split(",")):
        begin_s = time.perf_counter()
        figures = suite.run(seed)
        wrong = suite.check(figures)
        problems += [f"seed {seed}: {problem}" for problem in wrong]
        results[f"seed {seed}"] = {
            "commit": _commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{_processor()}, {os.cpu_count()} cores",
            "seconds": round(time.perf_counter() - begin_s, 1),
            "passed": not wrong,
            "figures": figures,
        }
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"{arguments.suite} seed {seed}: {json.dumps(figures)}", flush=True)
    print("\n".join(problems) or f"{arguments.suite}: passed; figures in {path}")
    return 1 if problems else 0


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
