"""Every recipe in the repository is one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rledger.config.load import load_recipe, load_schema
from rledger.config.recipe import Recipe
from rledger.config.warmup import WarmupRecipe
from rledger.loop.plan import plan_run
from rledger.report.dry_run import dry_run_text

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("**/*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_a_recipe_of_the_repository_is_valid(path: Path) -> None:
    if "warmup" in tomllib.loads(path.read_text(encoding="utf-8")):
        load_schema(WarmupRecipe, path)
        return
    loaded = load_recipe(path)
    assert isinstance(loaded.recipe, Recipe)
    assert plan_run(loaded.recipe).num_steps >= 1
    assert tomllib.loads(dry_run_text(loaded))


def test_there_are_recipes() -> None:
    assert {"demo.toml", "smollm2-arithmetic.toml"} <= {path.name for path in RECIPES}
