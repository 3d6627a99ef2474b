"""What a recipe asks of the loop, decided before anything starts: a pure function, printable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rledger.config.algorithm import AlgorithmConfig, OldLogprobsSource
from rledger.config.evaluation import EvaluationConfig
from rledger.config.recipe import Recipe
from rledger.config.sampling import SamplingConfig

__all__ = ["RunPlan", "plan_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The loop's orders. `skipped` names each stage that will not run, and why."""

    seed: int
    num_steps: int
    num_prompts_per_step: int
    group_size: int
    num_updates_per_step: int
    sampling: SamplingConfig
    old_logprobs: OldLogprobsSource
    needs_ref_logprobs: bool
    needs_values: bool
    needs_greedy_baseline: bool
    algorithm: AlgorithmConfig
    evaluation: EvaluationConfig
    checkpoint_every_steps: int
    export_hf: bool
    stage_timeout_s: float
    skipped: Mapping[str, str] = field(default_factory=dict)

    def evaluates_after(self, step: int) -> bool:
        """Whether `testing` runs at the end of this step; the last step is always tested."""
        every = self.evaluation.every_steps
        return step == self.num_steps or (every > 0 and step % every == 0)

    def saves_after(self, step: int) -> bool:
        """Whether `save_checkpoint` runs at the end of this step; the last step is always saved."""
        every = self.checkpoint_every_steps
        return step == self.num_steps or (every > 0 and step % every == 0)


def plan_run(recipe: Recipe) -> RunPlan:
    """The plan of a checked recipe (`config.resolve.check_recipe` has found no problem in it)."""
    run, algorithm = recipe.run, recipe.algorithm
    num_updates = recipe.trainer.num_updates_per_step
    source = algorithm.resolve_old_logprobs(num_updates)
    needs_values = algorithm.advantage.needs_critic
    skipped = {}
    if source == "current":
        skipped["old_log_prob"] = "one update a step: the ratio is 1 by construction"
    elif source == "generator":
        skipped["old_log_prob"] = "the generator's log-probabilities stand for it (bypass)"
    if not algorithm.needs_ref_logprobs:
        skipped["ref"] = "no KL term"
    if not needs_values:
        skipped["values"] = skipped["update_critic"] = (
            f"advantage {algorithm.advantage.type} needs no critic"
        )
    return RunPlan(
        seed=run.seed,
        num_steps=run.num_steps,
        num_prompts_per_step=run.num_prompts_per_step,
        group_size=run.group_size,
        num_updates_per_step=num_updates,
        sampling=recipe.sampling,
        old_logprobs=source,
        needs_ref_logprobs=algorithm.needs_ref_logprobs,
        needs_values=needs_values,
        needs_greedy_baseline=algorithm.advantage.needs_greedy_baseline,
        algorithm=algorithm,
        evaluation=recipe.evaluation,
        checkpoint_every_steps=recipe.checkpoint.every_steps,
        export_hf=recipe.checkpoint.export_hf,
        stage_timeout_s=run.stage_timeout_s,
        skipped=skipped,
    )
