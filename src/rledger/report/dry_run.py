"""`rledger train --dry-run`: the resolved recipe, who set what, and what would run.

The text is itself a recipe: what is no TOML stands behind a `#`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from rledger.books import STAGES
from rledger.config.load import COMMAND_LINE, LoadedRecipe
from rledger.config.problems import source_of
from rledger.config.recipe import Recipe
from rledger.config.resolve import check_positions
from rledger.config.toml_text import toml_key, toml_value
from rledger.errors import UserError
from rledger.loop.plan import RunPlan, plan_run
from rledger.loop.run_folder import describe_folder
from rledger.modelspec import load_spec

__all__ = ["dry_run_text"]

_MAX_COMMENT_COLUMN = 48  # comments stand below each other, unless a value is longer than this


def dry_run_text(loaded: LoadedRecipe) -> str:
    """The whole of it. Nothing is created; of the model only config.json is read."""
    lines = list(_section(loaded.recipe, "", "", loaded))
    lines += [
        f"# {line}".rstrip()
        for text in _outlook(loaded.recipe)
        for line in text.splitlines() or [""]
    ]
    return "\n".join(lines) + "\n"


def _section(
    section: BaseModel, header: str, prefix: str, loaded: LoadedRecipe, brackets: str = "[]"
) -> Iterator[str]:
    """The values of a section, then the sections in it: TOML wants them in that order."""
    rows: list[tuple[str, str]] = []
    nested: list[tuple[str, BaseModel, str, str]] = []  # header, section, prefix, brackets
    for name in type(section).model_fields:
        value = getattr(section, name)
        key = f"{prefix}{name}"
        path = f"{header}.{name}".lstrip(".")
        if isinstance(value, BaseModel):
            nested.append((path, value, f"{key}.", "[]"))
        elif isinstance(value, tuple) and any(isinstance(entry, BaseModel) for entry in value):
            nested += [(path, e, f"{key}.{i}.", "[[]]") for i, e in enumerate(value)]
        else:
            rows.append((f"{toml_key(name)} = {toml_value(value)}", _origin(key, loaded)))
    if rows:
        half = len(brackets) // 2
        yield f"{brackets[:half]}{header}{brackets[half:]}"
        width = max((len(row) for row, _ in rows if len(row) <= _MAX_COMMENT_COLUMN), default=0)
        for row, origin in rows:
            yield f"{row:<{width}}  # {origin}"
        yield ""
    for path, child, child_prefix, child_brackets in nested:
        yield from _section(child, path, child_prefix, loaded, child_brackets)


def _origin(key: str, loaded: LoadedRecipe) -> str:
    source = source_of(key, loaded.sources)
    if source is None:
        return "default"
    return source if source == COMMAND_LINE else f"from {source}"


def _outlook(recipe: Recipe) -> Iterator[str]:
    plan = plan_run(recipe)
    rows = plan.num_prompts_per_step * plan.group_size
    updates = f"{plan.num_updates_per_step} update" + "s" * (plan.num_updates_per_step > 1)
    yield "What runs"
    yield (
        f"  {plan.num_steps} steps of {plan.num_prompts_per_step} prompts x {plan.group_size}"
        f" trajectories = {rows} rows, {updates} a step"
    )
    yield f"  folder  {describe_folder(Path(recipe.run.root) / recipe.run.name, recipe)}"
    yield f"  model   {_model(recipe)}"
    yield ""
    yield "Stages"
    width = max(map(len, STAGES))
    for stage in STAGES:
        yield f"  {stage:<{width}}  {_when(stage, plan)}"


def _when(stage: str, plan: RunPlan) -> str:
    if stage in plan.skipped:
        return f"does not run: {plan.skipped[stage]}"
    if stage == "save_checkpoint":
        return _every(plan.checkpoint_every_steps) + "at the end, and on Ctrl-C"
    if stage == "testing":
        first = "before training, " if plan.evaluation.before_training else ""
        return first + _every(plan.evaluation.every_steps) + "at the end"
    return "each step"


def _every(steps: int) -> str:
    return "" if steps == 0 else "after each step, " if steps == 1 else f"every {steps} steps, "


def _model(recipe: Recipe) -> str:
    try:
        spec = load_spec(recipe.model.path)
    except UserError as error:
        return f"the run would stop: {error}"
    problem = check_positions(recipe, spec.max_positions)
    if problem is not None:
        return f"the run would stop: {problem}"
    return f"{recipe.model.path}: {spec.family}, {_millions(spec.num_parameters())} parameters"


def _millions(number: int) -> str:
    return f"{number / 1e6:.4g} million" if number >= 1e6 else f"{number:,}".replace(",", " ")
