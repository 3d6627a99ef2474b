"""The `testing` stage: the policy on held-out prompts, always the same ones with the same seeds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from rledger.books import Span
from rledger.errors import DataError
from rledger.loop.context import LoopContext
from rledger.loop.plan import RunPlan
from rledger.loop.rollout import gather_all, generate_all
from rledger.schedule.seeds import derive_seed
from rledger.tasks.evaluation import evaluation_metrics
from rledger.types import Failure, GenerationRequest, Prompt, Score, Trajectory

__all__ = ["evaluate"]

_EVALUATION = 3  # first number of a seed's path, see rollout


async def evaluate(context: LoopContext) -> Mapping[str, float]:
    """`val-core/<task>/acc/...` for each task, with a bootstrap interval over prompts.

    A failed reward is no wrong answer: such samples are left out, and counted. Raises
    DataError when a task has no scored sample at all.
    """
    with context.stage("testing", waits_for="generator") as span:
        return await _evaluate(context, span)


async def _evaluate(context: LoopContext, span: Span) -> Mapping[str, float]:
    plan, config = context.plan, context.plan.evaluation
    prompts = _first_of_each_task(context.roles.tasks.eval_prompts(), config.num_prompts)
    if not prompts:
        return {}
    params = replace(
        plan.sampling.params(context.stop_token_ids),
        max_new_tokens=config.max_new_tokens or plan.sampling.max_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=0,
        min_p=0.0,
    )
    pairs = [
        (
            prompt,
            GenerationRequest(
                id=f"eval-{index}/{sample}",
                group_id=f"eval-{index}",
                prompt_token_ids=prompt.token_ids,
                sampling=params,
                seed=derive_seed(plan.seed, _EVALUATION, index, sample),
            ),
        )
        for index, prompt in enumerate(prompts)
        for sample in range(config.samples_per_prompt)
    ]
    scoring = await generate_all(context, "testing", pairs, span)
    trajectories = await context.within_deadline("testing", gather_all(scoring))
    metrics: dict[str, float] = {}
    samples = config.samples_per_prompt
    by_task: dict[str, list[list[Trajectory]]] = defaultdict(list)
    for index, prompt in enumerate(prompts):
        by_task[prompt.task].append(trajectories[index * samples : (index + 1) * samples])
    for task, of_task in by_task.items():
        metrics |= _summary(task, of_task, plan)
    return metrics


def _summary(task: str, trajectories: list[list[Trajectory]], plan: RunPlan) -> dict[str, float]:
    outcomes = [[_outcome(t) for t in of_prompt] for of_prompt in trajectories]
    flat = [outcome for of_prompt in outcomes for outcome in of_prompt]
    failures = [outcome for outcome in flat if isinstance(outcome, Failure)]
    if len(failures) == len(flat):
        raise DataError(
            f"evaluation of {task}: not one of {len(flat)} rewards succeeded; the last failed with"
            f" {failures[-1].reason}: {failures[-1].message}"
        )
    return evaluation_metrics(
        task,
        outcomes,
        [[t.text for t in of_prompt] for of_prompt in trajectories],
        seed=plan.seed,
        confidence=plan.evaluation.confidence,
    )


def _first_of_each_task(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """The first `count` held-out prompts of every task, all of them where `count` is None."""
    seen: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        seen[prompt.task] += 1
        if count is None or seen[prompt.task] <= count:
            chosen.append(prompt)
    return chosen


def _outcome(trajectory: Trajectory) -> Score | Failure:
    assert trajectory.outcome is not None, f"{trajectory.id} was not scored"
    return trajectory.outcome
