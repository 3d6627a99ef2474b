"""The controller's event loop, with every wait of it in the books.

The loop is in compute while a callback runs; it waits exactly when its selector blocks. So the wait is
booked there, once, and no coroutine has to remember to.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from rledger.books import Lane

__all__ = ["BookedSelector", "RealClock", "WaitLabel", "run_booked"]

T = TypeVar("T")


class WaitLabel:
    """Whom the loop waits for at the moment; the controller's stages set it."""

    def __init__(self) -> None:
        self.on = ""


class BookedSelector(selectors.DefaultSelector):
    """A selector whose blocking is a `wait` span of the lane that the loop runs on."""

    def __init__(self, lane: Lane, label: WaitLabel) -> None:
        super().__init__()
        self._lane = lane
        self._label = label

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        with self._lane.span("wait", state="wait", on=self._label.on):
            return self._block(timeout)

    def _block(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout)


class RealClock:
    """Wall time."""

    def now_s(self) -> float:
        return time.perf_counter()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_booked(main: Coroutine[Any, Any, T], lane: Lane, label: WaitLabel) -> T:
    """`asyncio.run` on a loop whose waits are booked on `lane`."""

    def make_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(BookedSelector(lane, label))
        loop.set_exception_handler(_report)
        return loop

    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(main)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # The second Ctrl-C leaves the loop by way of whichever task it met; that task has nothing to tell.
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)
