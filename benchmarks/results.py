"""What a benchmark leaves: a JSON file with the machine, the versions and every sample."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT

__all__ = ["RESULTS", "cpu_name", "machine", "ratio", "result_path", "summary", "write_result"]

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """What ran it. `identity` is the part that must agree for a result to be used again."""
    facts = _cpu_facts()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": facts.get("model name", platform.processor() or platform.machine()),
        "cpu_family_model": f"{facts.get('cpu family', '?')}/{facts.get('model', '?')}",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / 2**30),
        "bf16": "avx512_bf16" in facts.get("flags", "") or "amx_bf16" in facts.get("flags", ""),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average_before": os.getloadavg()[0],
    }


def cpu_name() -> str:
    """The processor in a file name's letters, with family and model: cloud names repeat."""
    facts = machine()
    return re.sub(
        r"[^a-z0-9]+", "-", f"{facts['cpu']} {facts['cpu_family_model']} {facts['cores']}c".lower()
    ).strip("-")


def result_path(name: str) -> Path:
    return RESULTS / f"{name}-{cpu_name()}.json"


def write_result(name: str, content: Mapping[str, Any], *, path: Path | None = None) -> Path:
    """Write `<name>-<cpu>.json` with commit, date and machine beside the content."""
    path = path or result_path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {
        "benchmark": name,
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--", "src")),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": machine(),
        **content,
    }
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    return path


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
    }


def ratio(upper: Sequence[float], lower: Sequence[float]) -> dict[str, float]:
    """How many times `upper` is `lower`, round by round: both sides of a round met the same machine."""
    return summary([u / v for u, v in zip(upper, lower, strict=True)])


def _cpu_facts() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    facts: dict[str, str] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if not line.strip():
                break
            facts[key.strip()] = value.strip()
    return facts


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
