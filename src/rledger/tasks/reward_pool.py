"""Rewards in processes, with a deadline: whatever goes wrong in one of them is a typed outcome.

No threads: the processes' sockets are read by the event loop that awaits the scores. Requests are
handed out first come, first served; a process that hangs or dies is killed and replaced, the
request it was working on fails, and those behind it are given to others.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rledger.errors import DataError, RLedgerError
from rledger.tasks.reward_process import RewardProcess
from rledger.types import Failure, Score

__all__ = ["RewardPool", "RewardStats"]

_START_DEADLINE_S = 120.0  # imports on a machine under load
_MAX_FAILED_STARTS = 3
_QUICK_REWARD_S = 0.002
_QUICK_DEPTH = 8  # requests handed ahead to a process whose rewards are quick


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardStats:
    """What the pool did since it was made."""

    num_scored: int
    num_failed: Mapping[str, int]  # by reason
    num_replaced: int  # processes
    busy_s: float  # inside rewards, as the processes measured it


@dataclass(slots=True, eq=False)
class _Request:
    message: dict[str, Any]
    label: str
    future: asyncio.Future[Score | Failure]


@dataclass(slots=True, eq=False)
class _Worker:
    process: RewardProcess
    ready: bool = False
    depth: int = 1
    in_flight: deque[_Request] = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None
    watched: _Request | None = None  # the request that the timer is for


class RewardPool:
    """Processes start at once, in the background; `wait_ready` tells whether rewards are usable."""

    def __init__(
        self,
        rewards: Mapping[str, Mapping[str, Any]],
        *,
        num_workers: int,
        deadline_s: float,
        max_worker_bytes: int,
    ) -> None:
        """`rewards`: task -> its reward section as JSON values."""
        self._rewards = dict(rewards)
        self._deadline_s = deadline_s
        self._setup = {
            "rewards": self._rewards,
            "deadline_s": deadline_s,
            "max_bytes": max_worker_bytes,
        }
        self._queue: deque[_Request] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: RLedgerError | None = None
        self._num_requests = 0
        self._num_scored = 0
        self._num_failed: Counter[str] = Counter()
        self._num_replaced = 0
        self._num_failed_starts = 0
        self._busy_s = 0.0
        self._workers = [_Worker(RewardProcess(self._setup)) for _ in range(num_workers)]

    @property
    def stats(self) -> RewardStats:
        return RewardStats(
            num_scored=self._num_scored,
            num_failed=dict(self._num_failed),
            num_replaced=self._num_replaced,
            busy_s=self._busy_s,
        )

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return tuple(worker.process.pid for worker in self._workers)

    def wait_ready(self) -> None:
        """Block until every process has loaded its rewards. Raises DataError, naming the cause."""
        until_s = time.monotonic() + _START_DEADLINE_S
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.process, selectors.EVENT_READ, worker)
            while not all(worker.ready for worker in self._workers) and self._error is None:
                events = selector.select(timeout=max(0.0, until_s - time.monotonic()))
                if not events:
                    self._fail(_start_error(f"did not start within {_START_DEADLINE_S:g} s"))
                for key, _ in events:
                    self._read_start(key.data)
        if self._error is not None:
            raise self._error

    def _read_start(self, worker: _Worker) -> None:
        if self._error is not None:  # another process failed just now, and this one is killed
            return
        messages, closed = worker.process.receive()
        for message in messages:
            self._take_message(worker, message)
        if closed:
            self._fail(_start_error(worker.process.how_it_ended()))

    async def score(
        self,
        task: str,
        question: str,
        completion: str,
        payload: Mapping[str, object],
        *,
        label: str,
    ) -> Score | Failure:
        """The reward of one completion; `label` names the trajectory in messages.

        Raises DataError when processes cannot be started any more, RLedgerError after `close`.
        """
        if self._error is not None:
            raise self._error
        loop = asyncio.get_running_loop()
        self._bind(loop)
        self._num_requests += 1
        message = {
            "id": self._num_requests,
            "task": task,
            "question": question,
            "completion": completion,
            "payload": payload,
        }
        request = _Request(message=message, label=label, future=loop.create_future())
        self._queue.append(request)
        self._dispatch()
        return await request.future

    def close(self) -> None:
        """End the processes and fail what is pending; calling twice is allowed."""
        self._fail(RLedgerError("the reward processes are closed"))

    # -- inside the event loop ---------------------------------------------------------------------

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let `loop` watch the sockets. Another loop than before takes over from it."""
        if self._loop is loop:
            return
        for worker in self._workers:
            self._unwatch(worker)
        self._loop = loop
        for worker in self._workers:
            self._watch(worker)

    def _watch(self, worker: _Worker) -> None:
        assert self._loop is not None
        self._loop.add_reader(worker.process.fileno(), self._read, worker)
        self._flush(worker)
        self._set_timer(worker)

    def _unwatch(self, worker: _Worker) -> None:
        if worker.timer is not None:
            worker.timer.cancel()
            worker.timer = None
        worker.watched = None
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(worker.process.fileno())
            self._loop.remove_writer(worker.process.fileno())

    def _flush(self, worker: _Worker) -> None:
        assert self._loop is not None
        if worker.process.flush():
            self._loop.remove_writer(worker.process.fileno())
        else:
            self._loop.add_writer(worker.process.fileno(), self._flush, worker)

    def _dispatch(self) -> None:
        while self._queue:
            free = [w for w in self._workers if w.ready and len(w.in_flight) < w.depth]
            if not free:
                return
            request = self._queue.popleft()
            if request.future.done():  # cancelled by whoever waited for it
                continue
            worker = min(free, key=lambda w: len(w.in_flight))
            worker.in_flight.append(request)
            worker.process.send(request.message)
            self._flush(worker)
            self._set_timer(worker)

    def _set_timer(self, worker: _Worker) -> None:
        """The deadline of the request that the process is working on, or of its start."""
        head = worker.in_flight[0] if worker.in_flight else None
        if worker.timer is not None and worker.watched is head:
            return
        if worker.timer is not None:
            worker.timer.cancel()
            worker.timer = None
        worker.watched = head
        if head is None and worker.ready:
            return
        assert self._loop is not None
        delay_s = self._deadline_s if worker.ready else _START_DEADLINE_S
        worker.timer = self._loop.call_later(delay_s, self._expire, worker, head)

    def _read(self, worker: _Worker) -> None:
        messages, closed = worker.process.receive()
        for message in messages:
            self._take_message(worker, message)
        if self._error is not None:
            return
        if closed:
            self._lose(worker, "reward_crashed", worker.process.how_it_ended())
        else:
            self._set_timer(worker)
        self._dispatch()

    def _expire(self, worker: _Worker, head: _Request | None) -> None:
        # The loop may have been busy beyond the deadline while the answer lay in the socket.
        self._read(worker)
        current = worker.in_flight[0] if worker.in_flight else None
        if worker not in self._workers or current is not head or (head is None and worker.ready):
            return
        self._lose(worker, "reward_timeout", f"gave no result within {self._deadline_s:g} s")
        self._dispatch()

    def _take_message(self, worker: _Worker, message: dict[str, Any]) -> None:
        if "ready" in message:
            worker.ready = True
            self._num_failed_starts = 0
        elif "unusable" in message:
            self._fail(self._unusable_error(message["task"], message["unusable"]))
        else:
            request = worker.in_flight.popleft()
            assert request.message["id"] == message["id"]
            self._busy_s += message["busy_s"]
            worker.depth = _QUICK_DEPTH if message["busy_s"] < _QUICK_REWARD_S else 1
            if "failure" in message:
                self._settle(request, message["failure"], message["message"])
                return
            self._num_scored += 1
            if not request.future.done():
                score = Score(value=message["score"], components=message["components"])
                request.future.set_result(score)

    def _settle(self, request: _Request, reason: Any, what: str) -> None:
        self._num_failed[reason] += 1
        if not request.future.done():
            task = request.message["task"]
            message = f"{request.label}: the reward of task {task!r} {what}"
            request.future.set_result(Failure(reason=reason, message=message))

    def _lose(self, worker: _Worker, reason: str, what: str) -> None:
        """Replace a process. What it was working on fails, what it had not begun goes to others."""
        self._unwatch(worker)
        worker.process.kill()
        if not worker.ready:
            self._num_failed_starts += 1
            if self._num_failed_starts >= _MAX_FAILED_STARTS:
                self._fail(_start_error(what))
                return
        if worker.in_flight:
            self._settle(worker.in_flight.popleft(), reason, what)
        self._queue.extendleft(reversed(worker.in_flight))
        replacement = _Worker(RewardProcess(self._setup))
        self._workers[self._workers.index(worker)] = replacement
        self._num_replaced += 1
        self._watch(replacement)

    def _fail(self, error: RLedgerError) -> None:
        """The first error stays: nothing is scored after it."""
        if self._error is not None:
            return
        self._error = error
        pending = [*self._queue, *(r for worker in self._workers for r in worker.in_flight)]
        self._queue.clear()
        for worker in self._workers:
            self._unwatch(worker)
            worker.process.kill()
            worker.in_flight.clear()
        usable = self._loop is not None and not self._loop.is_closed()
        for request in pending:
            if usable and not request.future.done():
                request.future.set_exception(error)

    def _unusable_error(self, task: str, cause: str) -> DataError:
        settings = self._rewards[task]
        if settings["type"] == "function":
            return DataError(
                f"reward function {settings['path']!r} of task {task!r}: {cause}. Give a "
                '"package.module:function" that imports here, or install its package; the current '
                "folder is searched too"
            )
        return DataError(
            f"the {settings['type']} reward of task {task!r} cannot be loaded: {cause}. "
            "Install the extra: pip install 'rledger[train]'"
        )


def _start_error(what: str) -> DataError:
    return DataError(
        f"a reward process {what} before it was ready; free memory, raise tasks.max_worker_bytes "
        "or lower tasks.num_workers"
    )
