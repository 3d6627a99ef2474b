"""Threads per role come from the recipe: what the environment says changes no bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
_RUN = """
import sys
from rledger.cli import main
status = main(sys.argv[1:])
import torch
print("THREADS", torch.get_num_threads())
sys.exit(status)
"""
_TIME = ("timing", "time/", "perf/", "unix_s")


def _train(recipe: Path, name: str, threads: int, environment: dict[str, str]) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, "train", str(recipe), f"run.name={name}",
         "run.deterministic=true", f"run.threads_per_role={threads}", "run.num_steps=2",
         "evaluation.num_prompts=2"],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"THREADS {threads}"
    run = recipe.parent / "runs" / name
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [
        {k: v for k, v in json.loads(line).items() if not k.startswith(_TIME)} for line in lines
    ]
    return [(run / "model" / "model.safetensors").read_bytes(), rows]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_environment_s_threads_change_no_bit(recipe: Path, threads: int) -> None:
    outcomes = [
        _train(recipe, f"env{n}", threads, {"OMP_NUM_THREADS": str(n), "MKL_NUM_THREADS": str(n)})
        for n in (1, 3)
    ]
    assert outcomes[0] == outcomes[1]
