"""`rledger train --dry-run`: the resolved recipe, who set what, and what would run."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rledger.books import STAGES
from rledger.config.load import LoadedRecipe
from rledger.loop.plan import RunPlan, plan_run

__all__ = ["render_dry_run"]


def render_dry_run(loaded: LoadedRecipe, console: Console | None = None) -> None:
    """Print it; nothing is created and no model is read."""
    console = console or Console()
    console.print(Group(_recipe(loaded), Text(), _stages(plan_run(loaded.recipe))))


def _recipe(loaded: LoadedRecipe) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False)
    section = ""
    for key, value in _leaves(loaded.recipe):
        head = key.split(".")[0]
        if head != section:
            section = head
            table.add_row(Text(f"[{section}]", style="bold"), "", "")
        source = loaded.sources.get(key, "")
        style = "" if source else "dim"
        table.add_row(
            Text(f"  {key}", style=style),
            Text(_show(value), style=style),
            Text(source, style="cyan"),
        )
    return table


def _leaves(section: BaseModel, prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        key = f"{prefix}.{name}".lstrip(".")
        if isinstance(value, BaseModel):
            found += _leaves(value, key)
        else:
            found.append((key, value))
    return found


def _show(value: Any) -> str:
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        return f"{len(value)} entries"
    return repr(value)


def _stages(plan: RunPlan) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False)
    rows = plan.num_prompts_per_step * plan.group_size
    updates = f"{plan.num_updates_per_step} update" + "s" * (plan.num_updates_per_step > 1)
    table.add_row(
        Text("what runs", style="bold"),
        f"{plan.num_steps} steps of {plan.num_prompts_per_step} prompts x {plan.group_size} trajectories"
        f" = {rows} rows, {updates} a step",
    )
    notes = {
        "save_checkpoint": f"every {plan.checkpoint_every_steps} steps, and at the end"
        if plan.checkpoint_every_steps
        else "at the end",
        "testing": f"every {plan.evaluation.every_steps} steps, and at the end"
        if plan.evaluation.every_steps
        else "at the end",
    }
    for stage in STAGES:
        why = plan.skipped.get(stage)
        if why is None:
            table.add_row(Text(f"  {stage}"), notes.get(stage, "each step"))
        else:
            table.add_row(
                Text(f"  {stage}", style="dim"), Text(f"does not run: {why}", style="dim")
            )
    return table
