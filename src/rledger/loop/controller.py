"""The closed loop.

    prompts -> gen -> reward -> [old_log_prob] [ref] [values] -> adv -> [update_critic] update_actor
       ^                                                                              |
       +------------ update_weights <------------------ commit <----------------------+

| coroutine     | consumes               | waits for              | unblocked by                 |
|---------------|------------------------|------------------------|------------------------------|
| run           | steps                  | each stage, in order   | the stage's role             |
| collect_take  | prompts                | completions, rewards   | generator, reward workers    |
| evaluate      | held-out prompts       | completions, rewards   | generator, reward workers    |

At `max_policy_age = 0` the stages of a step follow each other in program order; a stage in brackets runs
only when the algorithm needs it. Every role call stands inside the span of its stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rledger.books import Resumed, StepCommitted
from rledger.loop.batching import build_batch
from rledger.loop.context import LoopContext
from rledger.loop.evaluate import evaluate
from rledger.loop.fates import book_trained
from rledger.loop.measure import batch_metrics, check_age
from rledger.loop.recorder import StepRecorder
from rledger.loop.rollout import Take, collect_take
from rledger.loop.savepoint import RunState
from rledger.loop.shutdown import StopSignal
from rledger.schedule.packing import split_updates
from rledger.types import Batch

__all__ = ["Controller", "RunOutcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """How a run ended."""

    step: int  # committed steps
    finished: bool  # False: stopped on request, and resumable
    advanced: bool  # whether this attempt committed a step


class Controller:
    """Drives the roles of `context` until the plan is done or a stop is asked for."""

    def __init__(
        self,
        context: LoopContext,
        *,
        recorder: StepRecorder,
        savepoints: RunState,
        stop: StopSignal,
    ) -> None:
        self._context = context
        self._recorder = recorder
        self._savepoints = savepoints
        self._stop = stop
        self._saved_step = 0

    async def run(self) -> RunOutcome:
        """Resume or begin, then step until done. Raises whatever a stage raises, after booking it."""
        context, plan = self._context, self._context.plan
        counters = context.counters
        self._savepoints.restore(context)
        self._saved_step = counters.step
        # Booked in the first attempt too: what an earlier one did after its last checkpoint is void.
        version = context.roles.trainer.policy_version
        context.books.book(Resumed(step=counters.step, policy_version=version))
        begun_at = counters.step
        await self._begin()
        while counters.step < plan.num_steps and not self._stop.requested:
            before = replace(counters)
            counters.step += 1
            version = context.roles.trainer.policy_version
            with context.lane.step(counters.step, version):
                take = await collect_take(context, counters.step)
                batch, metrics = await self._prepare(take)
                consumed, update_metrics = await self._update(batch)
                self._commit(take, batch, consumed)
                await self._publish()
                if self._saves():
                    self._save()
                tested = await evaluate(context) if plan.evaluates_after(counters.step) else {}
            self._recorder.record(
                context, take.groups, batch, before, {**metrics, **update_metrics, **tested}
            )
        if counters.step > self._saved_step:  # the stop was asked for after the step had its chance
            self._save()
        return RunOutcome(
            step=counters.step,
            finished=counters.step >= plan.num_steps,
            advanced=counters.step > begun_at,
        )

    async def _begin(self) -> None:
        """Give the generator the trainer's weights, and measure the policy before it is trained.

        Booked as step 0, the start of this attempt.
        """
        context = self._context
        first = context.counters.step == 0
        with context.lane.step(0, context.roles.trainer.policy_version):
            await self._publish()
            tested = (
                await evaluate(context) if first and context.plan.evaluation.before_training else {}
            )
        if first:
            self._recorder.record_start(context, tested)

    async def _prepare(self, take: Take) -> tuple[Batch, Mapping[str, float]]:
        """old_log_prob, ref, values and adv: all that an update needs to know."""
        context, plan, roles = self._context, self._context.plan, self._context.roles
        with context.lane.span("build_batch", state="copy") as span:
            batch = build_batch(take.groups, take.baseline_rewards)
            check_age(batch, roles.trainer.policy_version, max_policy_age=0)
            span.add(rows=batch.num_rows, tokens=batch.num_tokens)
        for stage in plan.skipped:
            context.skip(stage)
        if plan.old_logprobs == "recompute":
            with context.stage("old_log_prob", waits_for="trainer") as span:
                span.add(tokens=batch.num_tokens)
                batch = await context.within_deadline(
                    "old_log_prob", roles.trainer.compute_logprobs(batch)
                )
        elif plan.old_logprobs == "generator":
            batch = replace(batch, old_logprobs=batch.generator_logprobs)
        if plan.needs_ref_logprobs:
            with context.stage("ref", waits_for="trainer") as span:
                span.add(tokens=batch.num_tokens)
                batch = await context.within_deadline(
                    "ref", roles.trainer.compute_ref_logprobs(batch)
                )
        if roles.critic is not None:
            with context.stage("values", waits_for="critic") as span:
                span.add(tokens=batch.num_tokens)
                batch = await context.within_deadline("values", roles.critic.compute_values(batch))
        with context.stage("adv") as span:
            batch, metrics = roles.estimator(batch)
            span.add(tokens=batch.num_tokens)
        with context.lane.span("measure"):
            own = batch_metrics(
                batch,
                roles.trainer.policy_version,
                self._recorder.max_prompt_tokens,
                plan.group_size,
            )
        return batch, {**own, **metrics}

    async def _update(self, batch: Batch) -> tuple[list[str], dict[str, float]]:
        """update_critic and update_actor; returns the row ids that the actor really consumed."""
        context, roles = self._context, self._context.roles
        consumed: list[str] = []
        history: list[Mapping[str, float]] = []
        parts = split_updates(batch, context.plan.num_updates_per_step)
        for stage, model in (("update_critic", roles.critic), ("update_actor", roles.trainer)):
            if model is None:
                continue
            with context.stage(stage, waits_for="trainer") as span:
                for part in parts:
                    stats = await context.within_deadline(stage, model.forward_backward(part))
                    step = await context.within_deadline(stage, model.optim_step())
                    prefix = "actor" if model is roles.trainer else "critic"
                    history.append(
                        {
                            **stats.metrics,
                            f"{prefix}/grad_norm": step.grad_norm,
                            f"{prefix}/lr": step.learning_rate,
                        }
                    )
                    if model is roles.trainer:
                        consumed.extend(stats.row_ids)
                span.add(
                    tokens=batch.num_tokens,
                    loss_tokens=batch.num_loss_tokens,
                    num_updates=len(parts),
                )
        return consumed, self._recorder.reduce(history)

    def _commit(self, take: Take, batch: Batch, consumed: list[str]) -> None:
        """The step's groups have become a part of the policy; nothing of them is used again."""
        context = self._context
        with context.lane.span("commit"):
            version = context.roles.trainer.commit()
            book_trained(context, take.groups, take.baselines, batch, consumed)
            context.books.book(
                StepCommitted(
                    step=context.counters.step,
                    policy_version=version,
                    group_ids=tuple(group.id for group in take.groups),
                )
            )

    async def _publish(self) -> None:
        context, roles = self._context, self._context.roles
        with context.stage("update_weights", waits_for="generator") as span:
            moved = await context.within_deadline(
                "update_weights",
                roles.transport.publish(
                    roles.trainer, [roles.generator], roles.trainer.policy_version
                ),
            )
            span.add(bytes=moved)

    def _saves(self) -> bool:
        return self._context.plan.saves_after(self._context.counters.step) or self._stop.requested

    def _save(self) -> None:
        with self._context.stage("save_checkpoint") as span:
            span.add(bytes=self._savepoints.save(self._context))
        self._saved_step = self._context.counters.step
