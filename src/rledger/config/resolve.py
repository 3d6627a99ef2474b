"""Checks that need more than one section, in one place; each problem names the keys and the fix."""

from __future__ import annotations

from collections.abc import Callable

from rledger.config.recipe import Recipe
from rledger.errors import ConfigError

__all__ = ["check_positions", "check_recipe"]


def check_recipe(recipe: Recipe) -> list[str]:
    """All contradictions of a recipe, empty when there is none."""
    problems = []
    for check in _CHECKS:
        problem = check(recipe)
        if problem is not None:
            problems.append(problem)
    return problems


def check_positions(recipe: Recipe, max_positions: int) -> str | None:
    """Whether the longest sequence that the recipe allows fits the model; the model's folder knows
    `max_positions`. None where it does."""
    evaluated = recipe.evaluation.max_new_tokens
    longest = max(
        ("sampling.max_new_tokens", recipe.sampling.max_new_tokens),
        ("evaluation.max_new_tokens", evaluated or 0),
        key=lambda named: named[1],
    )
    prompt = recipe.tasks.max_prompt_tokens
    if prompt + longest[1] <= max_positions:
        return None
    return (
        f"tasks.max_prompt_tokens = {prompt} and {longest[0]} = {longest[1]} make sequences of up to"
        f" {prompt + longest[1]} tokens, but the model in {recipe.model.path} has {max_positions}"
        f" positions (max_position_embeddings in its config.json); lower the two to"
        f" {max_positions} together"
    )


def _group_size(recipe: Recipe) -> str | None:
    advantage = recipe.algorithm.advantage
    if advantage.group_relative and recipe.run.group_size < 2:
        return (
            f"run.group_size = {recipe.run.group_size} with algorithm.advantage.type = {advantage.type}:"
            " a single trajectory has nothing to be compared with, so every advantage would be 0;"
            " set run.group_size to at least 2, or choose an advantage that is not group-relative"
        )
    return None


def _min_group_size(recipe: Recipe) -> str | None:
    minimum = recipe.algorithm.min_group_size
    if minimum is not None and minimum > recipe.run.group_size:
        return (
            f"algorithm.min_group_size = {minimum} is more than run.group_size = {recipe.run.group_size}:"
            " every group would be dropped; lower it or raise run.group_size"
        )
    return None


def _updates(recipe: Recipe) -> str | None:
    updates, groups = recipe.trainer.num_updates_per_step, recipe.run.num_prompts_per_step
    if updates > groups:
        return (
            f"trainer.num_updates_per_step = {updates} is more than run.num_prompts_per_step = {groups}:"
            " an update would get no group; lower the one or raise the other"
        )
    return None


def _old_logprobs(recipe: Recipe) -> str | None:
    try:
        recipe.algorithm.resolve_old_logprobs(recipe.trainer.num_updates_per_step)
    except ConfigError as error:
        return str(error)
    return None


def _truncation(recipe: Recipe) -> str | None:
    """A truncated sampler gives probability 0 to tokens; a ratio against it assumes full support."""
    sampling = recipe.sampling
    truncates = [
        name
        for name, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0))
        if getattr(sampling, name) != neutral
    ]
    if truncates and recipe.algorithm.old_logprobs == "generator":
        named = " and ".join(f"sampling.{name}" for name in truncates)
        return (
            f"{named} truncates the distribution, but algorithm.old_logprobs = generator corrects with"
            " ratios that assume full support; use neutral sampling (top_p 1.0, top_k 0, min_p 0.0), or"
            " set algorithm.old_logprobs to auto or recompute"
        )
    return None


def _age(recipe: Recipe) -> str | None:
    if recipe.run.max_policy_age > 0:
        return (
            f"run.max_policy_age = {recipe.run.max_policy_age}: this version trains synchronously only;"
            " set it to 0"
        )
    return None


def _micro_batch(recipe: Recipe) -> str | None:
    longest = recipe.tasks.max_prompt_tokens + recipe.sampling.max_new_tokens
    budget = recipe.trainer.micro_batch_tokens
    if budget < longest:
        return (
            f"trainer.micro_batch_tokens = {budget} cannot hold one trajectory of up to {longest} tokens"
            " (tasks.max_prompt_tokens + sampling.max_new_tokens); raise it, or lower those limits"
        )
    return None


def _overlong(recipe: Recipe) -> str | None:
    buffer = recipe.algorithm.overlong.buffer_tokens
    if buffer >= recipe.sampling.max_new_tokens:
        return (
            f"algorithm.overlong.buffer_tokens = {buffer} is not below sampling.max_new_tokens ="
            f" {recipe.sampling.max_new_tokens}: every completion would be penalised; lower it"
        )
    return None


_CHECKS: tuple[Callable[[Recipe], str | None], ...] = (
    _group_size,
    _min_group_size,
    _updates,
    _old_logprobs,
    _truncation,
    _age,
    _micro_batch,
    _overlong,
)
