"""How values reach a recipe: TOML, the command line, "none", and tables without a type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rledger.config.advantage import GaeAdvantage, GrpoAdvantage
from rledger.config.tasks import FunctionReward, LastIntegerReward


def test_values_are_read_as_toml_and_else_as_text(make_recipe: Callable[..., Any]) -> None:
    recipe = make_recipe(
        "trainer.learning_rate=2e-5", "run.deterministic=false", "trainer.schedule=cosine",
        'sampling.stop_strings=["a", "b"]', "--run.num_steps=7", "run.seed = 3",
    ).recipe  # fmt: skip
    assert recipe.trainer.learning_rate == 2e-5
    assert recipe.run.deterministic is False
    assert recipe.trainer.schedule == "cosine"
    assert recipe.sampling.stop_strings == ("a", "b")
    assert (recipe.run.num_steps, recipe.run.seed) == (7, 3)


def test_a_key_that_takes_text_takes_a_number_as_text(make_recipe: Callable[..., Any]) -> None:
    recipe = make_recipe("run.name=2024", "tasks.system_prompt=1.50", "model.path=007").recipe
    assert (recipe.run.name, recipe.tasks.system_prompt) == ("2024", "1.50")
    assert recipe.model.path == "007"


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("trainer.max_grad_norm", ("trainer", "max_grad_norm")),
        ("algorithm.value_clip", ("algorithm", "value_clip")),
        ("algorithm.loss.dual_clip", ("algorithm", "loss", "dual_clip")),
        ("run.threads_per_role", ("run", "threads_per_role")),
        ("sinks.wandb", ("sinks", "wandb")),
    ],
)
def test_none_turns_off_what_may_be_off(
    make_recipe: Callable[..., Any], key: str, path: tuple[str, ...]
) -> None:
    node = make_recipe("sinks.wandb.project=x", f"{key}=none").recipe
    for part in path:
        node = getattr(node, part)
    assert node is None


def test_a_table_without_a_type_is_of_the_default_one(make_recipe: Callable[..., Any]) -> None:
    advantage = make_recipe("algorithm.advantage={norm_by_std=false}").recipe.algorithm.advantage
    assert advantage == GrpoAdvantage(norm_by_std=False)
    reward = make_recipe('tasks.data.reward={answer_pattern="[0-9]+"}').recipe.tasks.data.reward
    assert reward == LastIntegerReward(answer_pattern="[0-9]+")


def test_an_override_of_a_section_replaces_it_with_its_sources(
    make_recipe: Callable[..., Any],
) -> None:
    loaded = make_recipe('tasks.data={type="arithmetic_sums", template="{a} {b}"}')
    assert loaded.recipe.tasks.data.max_operand == 50
    data = {key for key in loaded.sources if key.startswith("tasks.data")}
    assert data == {"tasks.data.type", "tasks.data.template"}
    assert loaded.sources["tasks.data.type"] == "command line"
    assert loaded.sources["run.num_steps"].endswith("recipe.toml")


def test_an_override_adds_to_a_section(make_recipe: Callable[..., Any]) -> None:
    recipe = make_recipe("algorithm.advantage.type=gae", "algorithm.advantage.lam=0.9").recipe
    assert recipe.algorithm.advantage == GaeAdvantage(lam=0.9)
    assert isinstance(recipe.tasks.data.reward, FunctionReward)
