"""The `testing` stage: the policy on held-out prompts, always the same ones with the same seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from rledger.errors import DataError
from rledger.loop.context import LoopContext
from rledger.loop.rollout import run_trajectories
from rledger.schedule.seeds import derive_seed
from rledger.tasks.evaluation import summarise
from rledger.types import Failure, GenerationRequest, Prompt, Score, Trajectory

__all__ = ["evaluate"]

_EVALUATION = 3  # first number of a seed's path, see rollout


async def evaluate(context: LoopContext) -> Mapping[str, float]:
    """`val-core/<task>/acc/...` for each task, with a bootstrap interval over prompts.

    A failed reward is no wrong answer: such samples are left out and counted as
    `val-aux/<task>/failed_frac`. Raises DataError when a task has no scored sample at all.
    """
    plan, config = context.plan, context.plan.evaluation
    prompts = context.roles.tasks.eval_prompts()
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
        for index, prompt in enumerate(prompts[: config.num_prompts])
        for sample in range(config.samples_per_prompt)
    ]
    trajectories = await run_trajectories(
        context, pairs, generated_in="testing", scored_in="testing"
    )
    by_task: dict[str, list[tuple[Prompt, Trajectory]]] = defaultdict(list)
    for (prompt, _), trajectory in zip(pairs, trajectories, strict=True):
        by_task[prompt.task].append((prompt, trajectory))
    metrics: dict[str, float] = {}
    for task, entries in by_task.items():
        metrics |= _summary(task, entries, plan.seed)
    return metrics


def _summary(task: str, entries: list[tuple[Prompt, Trajectory]], seed: int) -> dict[str, float]:
    scores: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[str]] = defaultdict(list)
    num_failed = 0
    message = ""
    for prompt, trajectory in entries:
        if isinstance(trajectory.outcome, Score):
            scores[prompt.id].append(trajectory.outcome.value)
            answers[prompt.id].append(trajectory.text)
        elif isinstance(trajectory.outcome, Failure):
            num_failed += 1
            message = f"{trajectory.outcome.reason}: {trajectory.outcome.message}"
    if not scores:
        raise DataError(
            f"evaluation of {task}: not one of {len(entries)} rewards succeeded ({message})"
        )
    metrics = summarise(task, list(scores.values()), list(answers.values()), seed=seed)
    return {**metrics, f"val-aux/{task}/failed_frac": num_failed / len(entries)}
