"""What every coroutine of the loop is given: the plan, the roles, the books and the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from rledger.books import Books, Lane, Span, StageSkipped
from rledger.errors import StageTimeoutError
from rledger.interfaces import AdvantageEstimator, Clock, Generator, Tasks, Trainer, WeightTransport
from rledger.loop.eventloop import WaitLabel
from rledger.loop.plan import RunPlan

__all__ = ["Counters", "LoopContext", "Roles"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Who does the work; real or fake, near or far."""

    tasks: Tasks
    generator: Generator
    trainer: Trainer
    estimator: AdvantageEstimator
    transport: WeightTransport
    critic: Trainer | None = None

    async def close(self) -> None:
        """Close every role, whatever state it is in."""
        for role in (self.generator, self.tasks, self.trainer, self.critic):
            if role is not None:
                await role.close()


@dataclass(slots=True, kw_only=True)
class Counters:
    """The controller's own state; a checkpoint keeps it."""

    step: int = 0  # the step at work, or the last committed one between steps
    num_groups: int = 0  # groups admitted so far: the next group's number
    trained_tokens: int = 0
    useful_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopContext:
    """Shared by the coroutines of one run."""

    plan: RunPlan
    roles: Roles
    books: Books
    lane: Lane
    clock: Clock
    stop_token_ids: tuple[int, ...] = ()
    counters: Counters = field(default_factory=Counters)
    waiting: WaitLabel = field(default_factory=WaitLabel)

    @contextmanager
    def stage(self, name: str, *, waits_for: str = "") -> Iterator[Span]:
        """The span of a stage; a wait inside it is booked as one for `waits_for`."""
        before, self.waiting.on = self.waiting.on, waits_for or name
        try:
            with self.lane.span(name) as span:
                yield span
        finally:
            self.waiting.on = before

    def skip(self, stage: str) -> None:
        """Book that a stage does not run in this step, and why."""
        why = self.plan.skipped.get(stage)
        if why is not None:
            self.books.book(StageSkipped(stage=stage, step=self.counters.step, why=why))

    async def within_deadline(self, stage: str, work: Awaitable[T]) -> T:
        """The result of `work`, or StageTimeoutError when the stage makes no end."""
        try:
            async with asyncio.timeout(self.plan.stage_timeout_s):
                return await work
        except TimeoutError:
            raise StageTimeoutError(
                f"step {self.counters.step}: stage {stage} made no end within"
                f" {self.plan.stage_timeout_s:.0f} s (run.stage_timeout_s), waiting for"
                f" {self.waiting.on}; look at that role's log, or raise the limit"
            ) from None
