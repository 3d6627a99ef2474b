"""One reward process as its parent sees it: start it, exchange lines with it, end it.

The process is a fresh interpreter, never a fork: the parent holds the threads of its libraries. It
leads a session of its own, so Ctrl-C in a terminal reaches only the parent, which decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["RewardProcess"]

_EXIT_GRACE_S = 0.3
_REAP_DEADLINE_S = 10.0


class RewardProcess:
    """A started process; its first message is {"ready": true} or {"unusable": cause}."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._connection, theirs = socket.socketpair()
        # The current folder last: a function beside the recipe is found, and shadows nothing.
        paths = [*sys.path, os.getcwd()]
        program = (
            f"import sys; sys.path[:] = {paths!r}; "
            f"from rledger.tasks.reward_worker import main; main({theirs.fileno()})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what rewards print must not mix with a report on stdout
                start_new_session=True,
                # Sets inside rewards have the same order in every process and run.
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )
        self._connection.setblocking(False)
        self._inbox = b""
        self._outbox = bytearray()
        self._closed = False
        self.send(setup)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Queue a message and send what fits now; True when nothing is left for `flush`."""
        self._outbox += json.dumps(message).encode() + b"\n"
        return self.flush()

    def flush(self) -> bool:
        """Send what fits now; True when nothing is left. A dead process shows in `receive`."""
        while self._outbox:
            try:
                sent = self._connection.send(self._outbox)
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError):
                self._outbox.clear()
                break
            del self._outbox[:sent]
        return True

    def receive(self) -> tuple[list[dict[str, Any]], bool]:
        """Messages that have arrived, and whether the process has closed its end."""
        closed = False
        while not closed:
            try:
                chunk = self._connection.recv(1 << 16)
            except BlockingIOError:
                break
            except ConnectionResetError:
                chunk = b""
            closed = not chunk
            self._inbox += chunk
        *lines, self._inbox = self._inbox.split(b"\n")
        return [json.loads(line) for line in lines], closed

    def how_it_ended(self) -> str:
        """Why a process that closed its end is gone, for a person."""
        until_s = time.monotonic() + _EXIT_GRACE_S
        while (status := self._process.poll()) is None and time.monotonic() < until_s:
            time.sleep(0.002)
        if status is None:
            return "closed its connection"
        if status >= 0:
            return f"exited with status {status}"
        return f"was killed by {signal.Signals(-status).name}"

    def kill(self) -> None:
        """End the process and all that it started; calling twice is allowed."""
        if self._closed:
            return
        self._closed = True
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):  # gone, with everything in its group
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=_REAP_DEADLINE_S)
