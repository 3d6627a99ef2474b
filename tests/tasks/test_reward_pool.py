"""Rewards that hang, raise, exit, eat memory or lose their parent."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rledger.errors import DataError, RLedgerError
from rledger.tasks.reward_pool import RewardPool
from rledger.types import Failure, Score

REWARDS = """
import ctypes, os, signal, subprocess, sys, time

def behave(prompt, completion, payload):
    kind, _, argument = completion.partition(":")
    if kind == "value":
        return float(argument)
    if kind == "raise":
        raise KeyError(argument)
    if kind == "sysexit":
        sys.exit(3)
    if kind == "exit":
        os._exit(int(argument))
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "segfault":
        ctypes.string_at(0)
    if kind == "sleep":
        time.sleep(float(argument))
        return 1.0
    if kind == "spin":
        while True:
            pass
    if kind == "hold":  # holds the interpreter lock: no Python of this process runs any more
        ctypes.PyDLL(None).sleep(int(argument))
    if kind == "fat":
        hoard = []
        while True:
            hoard.append(bytearray(16 << 20))
    if kind == "child":
        subprocess.Popen(["sleep", "1000"]).wait()
    if kind == "pid":
        return os.getpid()
    if kind == "torch":
        return float("torch" in sys.modules)
    return {
        "nan": float("nan"), "inf": float("inf"), "text": "1.0", "none": None, "list": [1.0],
        "true": True, "parts": {"score": 0.5, "format": 1, "acc": 0.0}, "no_score": {"acc": 1.0},
        "nan_part": {"score": 1.0, "format": float("nan")},
        "prompt": float(prompt == "how much?" and payload["answer"] == "7"),
    }[kind]

number = 3
"""


def settings(path: str) -> dict[str, Any]:
    return {"type": "function", "path": path, "answer_pattern": None}


@pytest.fixture
def rewards_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "odd_rewards.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def make_pool(rewards_folder: Path) -> Iterator[Callable[..., RewardPool]]:
    pools = []

    def make(path: str = "odd_rewards:behave", **changes: Any) -> RewardPool:
        options = {"num_workers": 1, "deadline_s": 5.0, "max_worker_bytes": 1 << 30} | changes
        pools.append(RewardPool({"odd": settings(path)}, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


async def ask(pool: RewardPool, completion: str) -> Score | Failure:
    return await pool.score(
        "odd", "how much?", completion, {"answer": "7"}, label="trajectory g1/0"
    )


def ask_all(pool: RewardPool, *completions: str) -> list[Score | Failure]:
    async def gather() -> list[Score | Failure]:
        return list(await asyncio.gather(*(ask(pool, completion) for completion in completions)))

    return asyncio.run(asyncio.wait_for(gather(), timeout=60))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    until_s = time.monotonic() + seconds
    while not condition() and time.monotonic() < until_s:
        time.sleep(0.02)
    return condition()


def test_scores_come_back_to_their_own_requests(make_pool: Callable[..., RewardPool]) -> None:
    pool = make_pool(num_workers=2)
    values = [float(i) for i in range(300)]
    outcomes = ask_all(pool, *(f"value:{value}" for value in values))
    assert outcomes == [Score(value=value) for value in values]
    assert pool.stats.num_scored == 300


def test_a_function_gets_question_and_payload_and_may_return_components(
    make_pool: Callable[..., RewardPool],
) -> None:
    outcomes = ask_all(make_pool(), "prompt", "true", "parts")
    assert outcomes == [
        Score(value=1.0),
        Score(value=1.0),
        Score(value=0.5, components={"format": 1.0, "acc": 0.0}),
    ]


def test_a_reward_that_raises_is_a_failure_that_names_trajectory_and_line(
    make_pool: Callable[..., RewardPool],
) -> None:
    raised, exited, fine = ask_all(make_pool(), "raise:gone", "sysexit", "value:1")
    assert isinstance(raised, Failure) and raised.reason == "reward_raised"
    assert "trajectory g1/0" in raised.message and "KeyError: 'gone'" in raised.message
    assert "odd_rewards.py:9" in raised.message
    assert isinstance(exited, Failure) and exited.reason == "reward_raised"
    assert fine == Score(value=1.0)


@pytest.mark.parametrize("kind", ["nan", "inf", "text", "none", "list", "no_score", "nan_part"])
def test_a_result_that_is_no_finite_number_is_invalid(
    make_pool: Callable[..., RewardPool], kind: str
) -> None:
    (outcome,) = ask_all(make_pool(), kind)
    assert isinstance(outcome, Failure) and outcome.reason == "reward_invalid"


@pytest.mark.parametrize("kind", ["sleep:100", "spin", "hold:100", "child"])
def test_a_hanging_reward_is_killed_at_the_deadline_and_the_rest_is_scored(
    make_pool: Callable[..., RewardPool], kind: str
) -> None:
    pool = make_pool(deadline_s=0.5)
    pool.wait_ready()
    (first_pid,) = pool.worker_pids
    warm = ask_all(pool, "value:0")
    started_s = time.monotonic()
    hung, *others = ask_all(pool, kind, "value:1", "value:2", "value:3")
    assert isinstance(hung, Failure) and hung.reason == "reward_timeout"
    assert "0.5 s" in hung.message
    assert warm + others == [Score(value=float(i)) for i in range(4)]
    assert time.monotonic() - started_s < 8
    assert pool.stats.num_failed == {"reward_timeout": 1} and pool.stats.num_replaced == 1
    assert not alive(first_pid)


@pytest.mark.parametrize(
    ("kind", "how"),
    [("exit:7", "status 7"), ("kill", "SIGKILL"), ("segfault", "SIGSEGV")],
)
def test_a_dying_reward_process_is_replaced(
    make_pool: Callable[..., RewardPool], kind: str, how: str
) -> None:
    pool = make_pool()
    crashed, *others = ask_all(pool, kind, "value:1", "value:2")
    assert isinstance(crashed, Failure) and crashed.reason == "reward_crashed"
    assert how in crashed.message
    assert others == [Score(value=1.0), Score(value=2.0)]
    assert len(pool.worker_pids) == 1 and pool.stats.num_replaced == 1


def test_a_process_killed_while_idle_costs_no_score(make_pool: Callable[..., RewardPool]) -> None:
    pool = make_pool()
    pool.wait_ready()
    os.kill(pool.worker_pids[0], signal.SIGKILL)
    assert wait_until(lambda: not alive(pool.worker_pids[0]))
    outcomes = ask_all(pool, "value:1", "value:2")
    # The request may have been handed to the dead process before its end was read.
    assert outcomes[1] == Score(value=2.0)
    assert outcomes[0] == Score(value=1.0) or isinstance(outcomes[0], Failure)


def test_a_fat_reward_fails_inside_its_limit(make_pool: Callable[..., RewardPool]) -> None:
    pool = make_pool(max_worker_bytes=256 << 20)
    fat, fine = ask_all(pool, "fat", "value:1")
    assert isinstance(fat, Failure) and fat.reason == "reward_raised"
    assert "MemoryError" in fat.message
    assert fine == Score(value=1.0)


def test_reward_processes_do_not_import_torch(make_pool: Callable[..., RewardPool]) -> None:
    assert ask_all(make_pool(), "torch") == [Score(value=0.0)]


def test_an_answer_that_lies_in_the_socket_beats_a_deadline_missed_by_a_busy_loop(
    make_pool: Callable[..., RewardPool],
) -> None:
    pool = make_pool(deadline_s=0.3)
    pool.wait_ready()

    async def busy() -> Score | Failure:
        task = asyncio.ensure_future(ask(pool, "value:4"))
        await asyncio.sleep(0)
        time.sleep(1.0)  # the loop is busy, as with a forward pass
        return await task

    assert asyncio.run(busy()) == Score(value=4.0)


def test_a_cancelled_score_leaves_the_pool_usable_in_another_loop(
    make_pool: Callable[..., RewardPool],
) -> None:
    pool = make_pool(deadline_s=2.0)
    pool.wait_ready()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(pool, "sleep:0.5"), timeout=0.1)

    asyncio.run(give_up())
    assert ask_all(pool, "value:6") == [Score(value=6.0)]
    assert pool.stats.num_failed == {}


def test_payloads_larger_than_a_socket_buffer_pass(make_pool: Callable[..., RewardPool]) -> None:
    pool = make_pool()

    async def send() -> Score | Failure:
        return await pool.score(
            "odd", "how much?", "prompt", {"answer": "7", "row": "x" * 5_000_000}, label="big"
        )

    assert asyncio.run(send()) == Score(value=1.0)


def test_close_is_idempotent_ends_processes_and_leaves_no_thread(
    make_pool: Callable[..., RewardPool],
) -> None:
    threads = threading.active_count()
    descriptors = len(os.listdir("/proc/self/fd"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        pool = make_pool(num_workers=2)
        assert ask_all(pool, "value:1") == [Score(value=1.0)]
        assert threading.active_count() == threads
        pids = pool.worker_pids

        async def close_while_pending() -> None:
            pending = asyncio.ensure_future(ask(pool, "sleep:100"))
            await asyncio.sleep(0.1)
            pool.close()
            with pytest.raises(RLedgerError, match="closed"):
                await pending

        asyncio.run(close_while_pending())
        pool.close()
        gc.collect()
    assert not any(alive(pid) for pid in pids)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(RLedgerError, match="closed"):
        ask_all(pool, "value:1")


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("missing_module:f", "no module named 'missing_module'"),
        ("odd_rewards:behav", "no 'behav'; callables there: behave"),
        ("odd_rewards:number", "not callable"),
        ("broken_rewards:f", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_path_that_does_not_import_is_named_with_its_cause(
    make_pool: Callable[..., RewardPool], rewards_folder: Path, path: str, cause: str
) -> None:
    (rewards_folder / "broken_rewards.py").write_text("1 / 0\n")
    pool = make_pool(path, num_workers=2)
    with pytest.raises(DataError) as error:
        pool.wait_ready()
    assert path in str(error.value)
    assert cause in str(error.value).replace(f" ({rewards_folder}/odd_rewards.py)", "")
    assert not any(alive(pid) for pid in pool.worker_pids)


PARENT = """
import asyncio, sys
from rledger.tasks.reward_pool import RewardPool

async def main():
    settings = {"type": "function", "path": "odd_rewards:behave", "answer_pattern": None}
    pool = RewardPool({"odd": settings}, num_workers=2, deadline_s=2.0, max_worker_bytes=1 << 30)
    pool.wait_ready()
    print(*pool.worker_pids, flush=True)
    try:
        await asyncio.gather(*(pool.score("odd", "", c, {}, label=c) for c in sys.argv[1:]))
    finally:
        print("deciding", *pool.worker_pids, flush=True)
        sys.stdin.readline()
        pool.close()

asyncio.run(main())
"""


def start_parent(*completions: str) -> tuple[subprocess.Popen[str], list[int]]:
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), *completions],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    return parent, [int(pid) for pid in parent.stdout.readline().split()]


@pytest.mark.parametrize("kinds", [("sleep:100", "spin"), ("hold:100", "hold:100")])
def test_reward_processes_die_with_a_parent_that_is_killed(
    rewards_folder: Path, kinds: tuple[str, str]
) -> None:
    parent, pids = start_parent(*kinds)
    assert len(pids) == 2
    time.sleep(0.3)  # until both rewards hang
    assert all(alive(pid) for pid in pids)
    parent.kill()
    parent.wait(timeout=10)
    assert wait_until(lambda: not any(alive(pid) for pid in pids), seconds=8)


def test_ctrl_c_reaches_the_parent_and_spares_its_reward_processes(rewards_folder: Path) -> None:
    parent, pids = start_parent("sleep:1.5", "sleep:1.5")
    assert parent.stdout is not None and parent.stdin is not None
    time.sleep(0.3)
    os.killpg(parent.pid, signal.SIGINT)
    decision = parent.stdout.readline().split()
    assert decision == ["deciding", *map(str, pids)]
    assert all(alive(pid) for pid in pids)
    parent.stdin.write("\n")
    parent.stdin.flush()
    parent.wait(timeout=10)
    assert wait_until(lambda: not any(alive(pid) for pid in pids))
