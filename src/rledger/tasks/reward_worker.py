"""The main function of a reward process: one request a line in, one outcome a line out.

parent -> worker   {"rewards": {task: settings}, "deadline_s": ..., "max_bytes": ...}   once, first
                   {"id": ..., "task": ..., "question": ..., "completion": ..., "payload": ...}
worker -> parent   {"ready": true} or {"unusable": cause, "task": ...}                  once, first
                   {"id": ..., "score": ..., "components": ..., "busy_s": ...}
                   {"id": ..., "failure": reason, "message": ..., "busy_s": ...}
"""

from __future__ import annotations

import json
import math
import os
import queue
import resource
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, SupportsFloat

from rledger.tasks.rewards import RewardFunction, RewardUnusableError, describe_error, make_reward

__all__ = ["main"]

_ALARM_MARGIN_S = 1.0


def main(descriptor: int) -> None:
    """Serve rewards over an open socket until it closes; then the whole process group dies."""
    # Libraries that rewards use must not start a thread for each core beside a busy trainer.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    connection = socket.socket(fileno=descriptor)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(connection, lines), daemon=True).start()
    setup = json.loads(lines.get())
    if hasattr(resource, "RLIMIT_DATA"):
        resource.setrlimit(resource.RLIMIT_DATA, (setup["max_bytes"], setup["max_bytes"]))
    rewards: dict[str, RewardFunction] = {}
    for task, settings in setup["rewards"].items():
        try:
            rewards[task] = make_reward(settings)
        except RewardUnusableError as error:
            _send(connection, {"unusable": str(error), "task": task})
            return
        except (Exception, SystemExit) as error:  # foreign libraries while they are imported
            _send(connection, {"unusable": describe_error(error), "task": task})
            return
    _send(connection, {"ready": True})
    while True:
        request = json.loads(lines.get())
        started_s = time.perf_counter()
        outcome = _outcome(rewards[request["task"]], request, setup["deadline_s"])
        outcome |= {"id": request["id"], "busy_s": time.perf_counter() - started_s}
        _send(connection, outcome)


def _read_lines(connection: socket.socket, lines: queue.SimpleQueue[bytes]) -> None:
    """Reads beside the rewards, so that the parent's death is noticed while one of them hangs."""
    rest = b""
    # A parent that dies with answers unread resets the connection instead of closing it.
    with suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 16):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                lines.put(line)
    # The worker leads its own group; processes that rewards started die with it.
    os.killpg(0, signal.SIGKILL)


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _outcome(
    reward: RewardFunction, request: Mapping[str, Any], deadline_s: float
) -> dict[str, Any]:
    """Score or failure as JSON values."""
    # The parent enforces the deadline. Should it be gone while foreign code holds the interpreter,
    # the kernel ends this process: the default action of SIGALRM needs no Python.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, deadline_s + _ALARM_MARGIN_S)
    try:
        result = reward(request["question"], request["completion"], request["payload"])
    except (Exception, SystemExit) as error:  # foreign code: whatever it raises is this outcome
        return {"failure": "reward_raised", "message": f"raised {describe_error(error)}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return _checked(result)


def _checked(result: Any) -> dict[str, Any]:
    components = dict(result) if isinstance(result, Mapping) else {"score": result}
    if "score" not in components:
        return _invalid(f"returned a mapping without 'score', with {sorted(map(str, components))}")
    numbers: dict[str, float] = {}
    for name, value in components.items():
        # Text has no __float__; numbers of numpy and torch do.
        if not isinstance(value, SupportsFloat):
            return _invalid(f"returned {str(name)!r} of type {type(value).__name__}, not a number")
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            return _invalid(f"returned {str(name)!r} that is no single number: {error}")
        if not math.isfinite(numbers[str(name)]):
            return _invalid(f"returned {str(name)!r} = {value}, not a finite number")
    return {"score": numbers.pop("score"), "components": numbers}


def _invalid(message: str) -> dict[str, Any]:
    return {"failure": "reward_invalid", "message": message}
