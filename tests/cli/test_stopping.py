"""Ctrl-C and SIGTERM: once ends the run after the step at work, twice ends it at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rledger.loop.checkpoint import CheckpointStore
from rledger.loop.shutdown import StopSignal, stop_on_signals

REPOSITORY = Path(__file__).parents[2]
_RUN = "import sys; from rledger.cli import main; sys.exit(main(sys.argv[1:]))"
SLOW = (
    "import time\ndef score(prompt, completion, payload):\n    time.sleep(0.02)\n    return 0.5\n"
)


@pytest.fixture
def start(recipe: Path, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """A long run of slow rewards in a process of its own, past its start-up."""
    (tmp_path / "slow_of_test.py").write_text(SLOW, encoding="utf-8")

    def begin(*overrides: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", _RUN, "train", str(recipe), "run.num_steps=500",
             "tasks.data.reward.path=slow_of_test:score", "evaluation.num_prompts=1", *overrides],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        )  # fmt: skip
        rows = tmp_path / "runs" / "small" / "metrics.jsonl"
        until_s = time.monotonic() + 60
        while not (rows.exists() and rows.stat().st_size) and time.monotonic() < until_s:
            assert child.poll() is None
            time.sleep(0.02)
        return child

    return begin


def _children(process: subprocess.Popen[str]) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == process.pid:
            found.append(int(stat.parent.name))
    return found


def _ended(pids: list[int]) -> bool:
    until_s = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_saves_the_step_at_work(
    number: signal.Signals, start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    child = start()
    workers = _children(child)
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert "stopping after this step; press Ctrl-C again to stop at once" in out
    last = CheckpointStore(tmp_path / "runs" / "small" / "checkpoints", keep=1).latest_step()
    if last > 0:  # -1: the signal came before the first step had begun
        assert f"stopped after step {last} of 500; the same command resumes" in err
    assert "Traceback" not in err, err
    assert workers and _ended(workers)


def test_twice_stops_at_once_and_leaves_no_process(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    # A step of 400 rewards of 20 ms with one worker: 8 s, if it were waited for.
    child = start("run.num_prompts_per_step=100")
    workers = _children(child)
    time.sleep(0.5)
    begin_s = time.monotonic()
    child.send_signal(signal.SIGINT)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert time.monotonic() - begin_s < 6
    assert child.returncode == 130, err
    assert "stopped at once; the same command resumes at the last checkpoint" in err
    assert "Traceback" not in err, err
    assert workers and _ended(workers)


def test_a_stop_during_the_test_of_a_step_still_saves_that_step(
    make_recipe: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rledger.launch import inline
    from rledger.loop import controller

    stop = StopSignal()
    monkeypatch.setattr(inline, "StopSignal", lambda: stop)
    evaluate = controller.evaluate

    async def evaluate_and_be_stopped(context: Any) -> Any:
        if context.counters.step == 2:
            stop.request("test")
        return await evaluate(context)

    monkeypatch.setattr(controller, "evaluate", evaluate_and_be_stopped)
    outcome = inline.train(make_recipe("run.num_steps=9", "evaluation.every_steps=1"))
    assert (outcome.step, outcome.finished) == (2, False)
    assert CheckpointStore(tmp_path / "runs" / "small" / "checkpoints", keep=1).latest_step() == 2


def test_the_second_signal_ends_at_once_and_the_handlers_before_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    said: list[str] = []
    ended: list[bool] = []
    stop = StopSignal()
    with stop_on_signals(stop, said.append, lambda: ended.append(True)):
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.requested, stop.reason, len(said), ended) == (True, "SIGTERM", 1, [])
        os.kill(os.getpid(), signal.SIGINT)
        assert (len(said), ended) == (1, [True])
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
