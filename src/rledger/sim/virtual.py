"""Virtual time: an event loop that jumps to its next timer instead of sleeping.

Everything that uses asyncio's own timers (sleep, timeout, call_later) runs unchanged and exactly
reproducibly; a loop that would wait for ever is a deadlock, and is reported as one.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from rledger.books import Lane
from rledger.errors import RLedgerError
from rledger.loop.eventloop import BookedSelector, WaitLabel

__all__ = ["VirtualClock", "VirtualDeadlock", "run_virtual"]

T = TypeVar("T")


class VirtualDeadlock(RLedgerError):
    """Every coroutine waits and no timer is left: in real time this run would hang."""


class VirtualClock:
    """Seconds since the start of the simulation."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move time forward; only the event loop calls this."""
        self._now_s += seconds

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _VirtualSelector(BookedSelector):
    def __init__(self, clock: VirtualClock, lane: Lane, label: WaitLabel) -> None:
        super().__init__(lane, label)
        self._clock = clock

    def _block(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise VirtualDeadlock(
                f"at {self._clock.now_s():.3f} s of virtual time everything waits and nothing will happen"
                f" (waiting for {self._label.on or 'nobody named'})"
            )
        self._clock.advance(timeout)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, clock: VirtualClock, selector: selectors.BaseSelector) -> None:
        super().__init__(selector)
        self._virtual_clock = clock

    def time(self) -> float:
        return self._virtual_clock.now_s()


def run_virtual(
    main: Coroutine[Any, Any, T], clock: VirtualClock, lane: Lane, label: WaitLabel
) -> T:
    """Run `main` in virtual time. Raises VirtualDeadlock where real time would hang."""
    with asyncio.Runner(
        loop_factory=lambda: _VirtualLoop(clock, _VirtualSelector(clock, lane, label))
    ) as runner:
        return runner.run(main)
