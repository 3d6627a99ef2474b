"""How a run is told to stop: the first Ctrl-C (or SIGTERM) ends it after the step at work, saved and
resumable; the second one ends it at once, at the last checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopSignal", "stop_on_signals"]


class StopSignal:
    """Set once, read by the controller between steps."""

    def __init__(self) -> None:
        self.requested = False
        self.reason = ""

    def request(self, reason: str) -> None:
        if not self.requested:
            self.requested, self.reason = True, reason


@contextmanager
def stop_on_signals(
    stop: StopSignal, announce: Callable[[str], None], end_at_once: Callable[[], None]
) -> Iterator[None]:
    """Route SIGINT and SIGTERM of the main thread into `stop` while the body runs.

    A second signal calls `end_at_once`, which must end the process: an exception out of a signal
    handler would leave roles in the middle of whatever they did, unfit for an orderly end.
    """

    def receive(number: int, _frame: FrameType | None) -> None:
        if stop.requested:
            end_at_once()
            return
        stop.request(signal.Signals(number).name)
        announce("stopping after this step; press Ctrl-C again to stop at once")

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
