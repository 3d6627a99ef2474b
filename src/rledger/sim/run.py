"""A whole run in virtual time: the real controller, fakes for every role, books in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rledger.books import Books
from rledger.books.records import Record
from rledger.config.algorithm import AlgorithmConfig
from rledger.config.evaluation import EvaluationConfig
from rledger.config.sampling import SamplingConfig
from rledger.generator.fake import FakeGenerator, GenerationPace
from rledger.loop.context import LoopContext, Roles
from rledger.loop.controller import Controller, RunOutcome
from rledger.loop.plan import RunPlan
from rledger.loop.recorder import StepRecorder
from rledger.loop.shutdown import StopSignal
from rledger.sim.virtual import VirtualClock, run_virtual
from rledger.tasks.fake import FakeTasks
from rledger.trainer.fake import FakeAdvantages, FakePace, FakeTrainer
from rledger.weights import InProcessTransport

__all__ = ["SimulatedRun", "default_plan", "simulate"]


@dataclass(slots=True, kw_only=True)
class SimulatedRun:
    """What a simulation leaves behind."""

    outcome: RunOutcome
    records: list[Record]
    rows: list[tuple[int, dict[str, float]]] = field(default_factory=list)  # (step, metrics)
    seconds: float = 0.0  # of virtual time


def default_plan(num_steps: int, *, seed: int = 1) -> RunPlan:
    """A small GRPO plan."""
    return RunPlan(
        seed=seed,
        num_steps=num_steps,
        num_prompts_per_step=4,
        group_size=4,
        num_updates_per_step=1,
        sampling=SamplingConfig(max_new_tokens=32),
        old_logprobs="current",
        needs_ref_logprobs=False,
        needs_values=False,
        needs_greedy_baseline=False,
        algorithm=AlgorithmConfig(),
        evaluation=EvaluationConfig(every_steps=max(1, num_steps // 10)),
        checkpoint_every_steps=0,
        export_hf=False,
        stage_timeout_s=3600.0,
    )


def simulate(
    plan: RunPlan,
    *,
    generation_pace: GenerationPace | None = None,
    training_pace: FakePace | None = None,
    failure_frac: float = 0.0,
) -> SimulatedRun:
    """Run `plan` with fakes. Equal arguments give equal records, whatever the machine does."""
    clock = VirtualClock()
    books = Books.in_memory(clock.now_s)
    lane = books.lane("main")
    roles = Roles(
        tasks=FakeTasks(clock, seed=plan.seed, failure_frac=failure_frac),
        generator=FakeGenerator(clock, pace=generation_pace),
        trainer=FakeTrainer(clock, pace=training_pace, has_reference=plan.needs_ref_logprobs),
        critic=FakeTrainer(clock, pace=training_pace, is_critic=True)
        if plan.needs_values
        else None,
        estimator=FakeAdvantages(),
        transport=InProcessTransport(),
    )
    context = LoopContext(
        plan=plan,
        roles=roles,
        books=books,
        lane=lane,
        clock=clock,
        stop_token_ids=roles.tasks.stop_token_ids,
    )
    rows = _Rows()
    controller = Controller(
        context,
        recorder=StepRecorder(books, lane, metrics=rows),
        savepoints=_NothingSaved(),
        stop=StopSignal(),
    )

    async def run() -> RunOutcome:
        try:
            return await controller.run()
        finally:
            await roles.close()

    outcome = run_virtual(run(), clock, lane, context.waiting)
    return SimulatedRun(
        outcome=outcome, records=books.records, rows=rows.rows, seconds=clock.now_s()
    )


class _Rows:
    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None:
        self.rows.append((step, dict(metrics)))


class _NothingSaved:
    def save(self, context: LoopContext) -> int:
        return 0

    def restore(self, context: LoopContext) -> bool:
        return False
