"""From admitted prompts to scored groups: the `gen` and `reward` stages.

A completion is scored as soon as it ends, while others still decode; what is left of the scoring when
the last token is made is the `reward` stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rledger.books import DropReason, GroupAdmitted, Span
from rledger.errors import DataError
from rledger.loop.context import LoopContext
from rledger.loop.fates import book_dropped, book_trajectory
from rledger.schedule.filtering import drop_reason
from rledger.schedule.seeds import derive_seed
from rledger.types import (
    Completion,
    Failure,
    GenerationRequest,
    Group,
    Prompt,
    SamplingParams,
    Score,
    Trajectory,
)

__all__ = ["Take", "collect_take", "gather_all", "generate_all"]

T = TypeVar("T")

# First number of a seed's path: training rollouts, greedy baselines and evaluation never share seeds.
_TRAIN, _BASELINE = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """The groups that one step trains on."""

    groups: tuple[Group, ...]
    baselines: tuple[
        tuple[Trajectory, ...], ...
    ]  # per group: none, or its greedy trajectory (ReMax)

    @property
    def baseline_rewards(self) -> list[float] | None:
        """One greedy reward per group, where the advantage asked for them."""
        outcomes = [t.outcome for of_group in self.baselines for t in of_group]
        return [o.value for o in outcomes if isinstance(o, Score)] or None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Admitted:
    group: Group  # trajectories still empty
    requests: tuple[GenerationRequest, ...]
    baseline: GenerationRequest | None


async def collect_take(context: LoopContext, step: int) -> Take:
    """Generate and score until `num_prompts_per_step` groups can be trained on.

    A group with too few survivors, or (with dynamic sampling) without signal, is dropped with its reason
    and another prompt takes its place. Raises DataError when that goes on for `max_rounds` rounds.
    """
    plan = context.plan
    kept: list[Group] = []
    baselines: list[tuple[Trajectory, ...]] = []
    last_failure: Failure | None = None
    for _ in range(plan.algorithm.dynamic_sampling.max_rounds):
        with context.lane.span("admit"):
            admitted = _admit(context, step, plan.num_prompts_per_step - len(kept))
        scored = await _rollout(context, admitted)
        for entry, trajectories in zip(admitted, scored, strict=True):
            members, extra = trajectories[: plan.group_size], trajectories[plan.group_size :]
            group = replace(entry.group, trajectories=tuple(members))
            last_failure = _first_failure(trajectories) or last_failure
            reason = _why_dropped(context, group, extra)
            if reason is not None:
                book_dropped(context, group, extra, reason)
                continue
            kept.append(group)
            baselines.append(tuple(extra))
        if len(kept) == plan.num_prompts_per_step:
            return Take(groups=tuple(kept), baselines=tuple(baselines))
    failure = (
        f" The last failure: {last_failure.reason}: {last_failure.message}" if last_failure else ""
    )
    raise DataError(
        f"step {step}: after {plan.algorithm.dynamic_sampling.max_rounds} rounds of prompts only {len(kept)} of"
        f" {plan.num_prompts_per_step} groups can be trained on; the books name the reason of each drop"
        f" (rledger report). Fix the reward, choose tasks that the policy sometimes solves, or raise"
        f" algorithm.dynamic_sampling.max_rounds.{failure}"
    )


async def generate_all(
    context: LoopContext, stage: str, pairs: Sequence[tuple[Prompt, GenerationRequest]], span: Span
) -> list[asyncio.Task[Trajectory]]:
    """Generate a trajectory per (prompt, request); returns when the last token is made.

    Each completion goes to its reward as soon as it ends: the results are the scorings still at work,
    in the order given. What was generated is counted on `span`.
    """
    scoring = await context.within_deadline(
        stage, gather_all(_generate(context, prompt, request, span) for prompt, request in pairs)
    )
    span.add(rows=len(pairs))
    return scoring


async def gather_all(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """All results in order; the first exception cancels the rest and is raised once they have ended."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _admit(context: LoopContext, step: int, count: int) -> list[_Admitted]:
    """Take prompts from the data set, give each a group id and the seeds of its members."""
    plan, counters = context.plan, context.counters
    params = plan.sampling.params(context.stop_token_ids)
    admitted = []
    for prompt in context.roles.tasks.next_prompts(count):
        number = counters.num_groups
        counters.num_groups += 1
        group_id = f"g{number:08d}"
        requests = tuple(
            _request(
                f"{group_id}/{member}",
                group_id,
                prompt,
                params,
                derive_seed(plan.seed, _TRAIN, number, member),
            )
            for member in range(plan.group_size)
        )
        baseline = None
        if plan.needs_greedy_baseline:
            greedy = replace(params, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0)
            baseline = _request(
                f"{group_id}/baseline",
                group_id,
                prompt,
                greedy,
                derive_seed(plan.seed, _BASELINE, number),
            )
        context.books.book(
            GroupAdmitted(
                group_id=group_id,
                prompt_id=prompt.id,
                group_size=plan.group_size + (baseline is not None),
                step=step,
                policy_version=context.roles.generator.policy_version,
            )
        )
        group = Group(id=group_id, prompt=prompt, trajectories=())
        admitted.append(_Admitted(group=group, requests=requests, baseline=baseline))
    return admitted


def _request(
    request_id: str, group_id: str, prompt: Prompt, params: SamplingParams, seed: int
) -> GenerationRequest:
    return GenerationRequest(
        id=request_id,
        group_id=group_id,
        prompt_token_ids=prompt.token_ids,
        sampling=params,
        seed=seed,
    )


async def _rollout(context: LoopContext, admitted: Sequence[_Admitted]) -> list[list[Trajectory]]:
    """The scored trajectories of each admitted group, the greedy baseline last."""
    requests = [
        [*entry.requests, *([entry.baseline] if entry.baseline else [])] for entry in admitted
    ]
    pairs = [
        (entry.group.prompt, request)
        for entry, of_group in zip(admitted, requests, strict=True)
        for request in of_group
    ]
    with context.stage("gen", waits_for="generator") as span:
        scoring = await generate_all(context, "gen", pairs, span)
    with context.stage("reward", waits_for="reward"):
        flat = iter(await context.within_deadline("reward", gather_all(scoring)))
    with context.lane.span("book_groups"):
        scored = [[next(flat) for _ in of_group] for of_group in requests]
        for entry, trajectories in zip(admitted, scored, strict=True):
            for trajectory in trajectories:
                book_trajectory(context, entry.group.prompt, trajectory)
    return scored


async def _generate(
    context: LoopContext, prompt: Prompt, request: GenerationRequest, span: Span
) -> asyncio.Task[Trajectory]:
    """Await the completion, hand it to the reward, and return without waiting for that."""
    start_s = context.lane.now_s()
    completion = await context.roles.generator.generate(request)
    context.lane.track(
        "generate", request.id, start_s, context.lane.now_s(), tokens=len(completion.token_ids)
    )
    span.add(tokens=len(completion.token_ids))
    return asyncio.create_task(_score(context, prompt, request, completion))


async def _score(
    context: LoopContext, prompt: Prompt, request: GenerationRequest, completion: Completion
) -> Trajectory:
    tasks = context.roles.tasks
    trajectory = Trajectory(
        id=request.id,
        group_id=request.group_id,
        completions=(completion,),
        text=tasks.decode(completion.token_ids.tolist()),
    )
    with context.lane.tracking("reward", request.id):
        outcome = await tasks.score(prompt, trajectory)
    return replace(trajectory, outcome=outcome)


def _why_dropped(
    context: LoopContext, group: Group, baseline: Sequence[Trajectory]
) -> DropReason | None:
    if any(isinstance(t.outcome, Failure) for t in baseline):
        return DropReason.TOO_FEW_SURVIVORS
    reason = drop_reason(group, context.plan.algorithm)
    return None if reason is None else DropReason(reason)


def _first_failure(trajectories: Sequence[Trajectory]) -> Failure | None:
    return next((t.outcome for t in trajectories if isinstance(t.outcome, Failure)), None)
