"""A run that was killed and resumed is the run that never stopped, bit by bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rledger.books.balance import data_balance
from rledger.books.reader import read_books
from rledger.launch.inline import train

_TIME = ("timing", "time/", "perf/", "unix_s")
_RUN = "import sys; from rledger.cli import main; sys.exit(main(sys.argv[1:]))"


def _rows(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what depends on the clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(_TIME)} for row in rows]


def _weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def _command(tmp_path: Path, name: str, *overrides: str) -> list[str]:
    recipe = str(tmp_path / "recipe.toml")
    return [sys.executable, "-c", _RUN, "train", recipe, f"run.name={name}", *overrides]


def test_killed_at_random_moments_and_resumed_equals_uninterrupted(
    make_recipe: Callable[..., Any], tmp_path: Path
) -> None:
    overrides = (
        "run.num_steps=12",
        "checkpoint.every_steps=2",
        "evaluation.every_steps=4",
        "algorithm.advantage.type=gae",  # with a critic, so that its state is in it too
        "algorithm.kl.type=reward",
        "algorithm.kl.controller=adaptive",
    )
    train(make_recipe("run.name=straight", *overrides))
    straight = tmp_path / "runs" / "straight"

    draw = random.Random(1)
    killed = tmp_path / "runs" / "killed"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    num_killed = 0
    for attempt in range(12):
        child = subprocess.Popen(
            _command(tmp_path, "killed", *overrides),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
        )
        if attempt < 4:
            # Wait until it has begun to work, so that the kill lands inside the run, not its imports.
            begin_s = time.monotonic()
            books = killed / "books" / f"{attempt + 1:04d}-main.jsonl"
            while not books.exists() and child.poll() is None and time.monotonic() < begin_s + 60:
                time.sleep(0.01)
            time.sleep(draw.uniform(0.3, 2.5))
            child.send_signal(signal.SIGKILL)
        _, errors = child.communicate(timeout=120)
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL, errors.decode()
        num_killed += 1
    assert child.returncode == 0
    assert num_killed >= 1
    assert _weights(killed) == _weights(straight)
    assert _rows(killed) == _rows(straight)
    assert [row["step"] for row in _rows(killed)] == list(range(13))
    # On the surviving timeline every group has one end, and the books balance.
    data_balance(read_books(killed).surviving(), closed=True).require()


def test_an_interrupt_ends_the_run_saved_and_resumable(
    make_recipe: Callable[..., Any], tmp_path: Path
) -> None:
    overrides = ("run.num_steps=40", "evaluation.before_training=false")
    train(make_recipe("run.name=straight", *overrides))
    child = subprocess.Popen(
        _command(tmp_path, "stopped", *overrides),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    rows = tmp_path / "runs" / "stopped" / "metrics.jsonl"
    begin_s = time.monotonic()
    while time.monotonic() < begin_s + 60 and not (rows.exists() and rows.stat().st_size):
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 130, output.decode()
    last = _rows(rows.parent)[-1]["step"]
    assert 0 < last < 40
    assert [p.name for p in (rows.parent / "checkpoints").iterdir()] == [f"step-{last:08d}"]
    assert train(make_recipe("run.name=stopped", *overrides)).finished
    assert _weights(rows.parent) == _weights(tmp_path / "runs" / "straight")
    assert _rows(rows.parent) == _rows(tmp_path / "runs" / "straight")


def test_a_finished_run_can_be_extended_and_equals_the_longer_one(
    make_recipe: Callable[..., Any], tmp_path: Path
) -> None:
    quiet = ("evaluation.before_training=false",)
    assert train(make_recipe("run.name=short", "run.num_steps=2", *quiet)).step == 2
    first = _weights(tmp_path / "runs" / "short")
    assert train(make_recipe("run.name=short", "run.num_steps=4", *quiet)).step == 4
    assert train(make_recipe("run.name=long", "run.num_steps=4", *quiet)).step == 4
    assert first != _weights(tmp_path / "runs" / "short") == _weights(tmp_path / "runs" / "long")
    short, long = (_rows(tmp_path / "runs" / name) for name in ("short", "long"))
    learned = [
        name for name in long[-1] if name.startswith(("actor/", "critic/", "response_length/"))
    ]
    assert len(learned) > 5
    assert [{n: row.get(n) for n in learned} for row in short] == [
        {n: row.get(n) for n in learned} for row in long
    ]
