"""A dry run prints a recipe: what it prints, read again, is the same run."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rledger.config.load import load_recipe
from rledger.config.toml_text import toml_key, toml_value
from rledger.report.dry_run import dry_run_text

MIXTURE = (
    'tasks.data={type="mixture", parts=[{type="arithmetic_sums", task_name="sums", weight=2.0},'
    ' {type="reasoning_gym", name="spell_backward", params={max_word_len=4, "odd key"=[1, "x"]}}]}'
)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (MIXTURE,),
        ("algorithm.advantage.type=gae", "algorithm.kl.type=reward", "trainer.max_grad_norm=none"),
        ("algorithm.advantage.type=gdpo", "algorithm.advantage.weights={length=0.5, score=1.0}"),
        (
            'tasks.system_prompt="""Say "it".\n\tAt once\\\\."""',
            'sampling.stop_strings=["\\n", "é"]',
        ),
        ("sinks.wandb.project=x", "tasks.chat_template_args.enable_thinking=false"),
    ],
)
def test_the_text_is_a_recipe_of_the_same_run(
    make_recipe: Callable[..., Any], tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    loaded = make_recipe(*overrides)
    path = tmp_path / "again.toml"
    path.write_text(dry_run_text(loaded), encoding="utf-8")
    assert load_recipe(path).recipe == loaded.recipe


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@settings(deadline=None)
@given(
    st.recursive(
        st.booleans()
        | st.integers(-(2**53), 2**53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
        ),
        max_leaves=8,
    )
)
def test_any_value_survives_as_toml(value: Any) -> None:
    assert tomllib.loads(f"{toml_key('a b')} = {toml_value(value)}") == {"a b": value}


def test_each_line_says_who_set_it(make_recipe: Callable[..., Any], tmp_path: Path) -> None:
    lines = dry_run_text(make_recipe("run.seed=7")).splitlines()
    assert "seed = 7                  # command line" in lines
    assert f"group_size = 4            # from {tmp_path / 'recipe.toml'}" in lines
    assert "max_policy_age = 0        # default" in lines
    assert lines.index("[algorithm.advantage]") > lines.index("[algorithm]")


def test_it_tells_stages_that_run_and_why_others_do_not(make_recipe: Callable[..., Any]) -> None:
    text = dry_run_text(make_recipe("evaluation.every_steps=2"))
    assert "#   3 steps of 4 prompts x 4 trajectories = 16 rows, 1 update a step" in text
    assert "#   old_log_prob     does not run: one update a step: the ratio is 1 by" in text
    assert "#   ref              does not run: no KL term" in text
    assert "#   testing          before training, every 2 steps, at the end" in text
    assert "#   model   " in text and "llama, 19 616 parameters" in text
    assert "\n#   folder  " in text and text.count(", new\n") == 1


def test_it_tells_what_would_stop_the_run(make_recipe: Callable[..., Any], tmp_path: Path) -> None:
    text = dry_run_text(make_recipe("model.path=nowhere"))
    assert "#   model   the run would stop: nowhere: no such model folder." in text
    text = dry_run_text(make_recipe("sampling.max_new_tokens=60"))
    assert (
        "the run would stop: tasks.max_prompt_tokens = 16 and sampling.max_new_tokens = 60" in text
    )
    folder = tmp_path / "runs" / "small"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("mine", encoding="utf-8")
    text = dry_run_text(make_recipe())
    assert "the run would stop: " in text and "exists and is no run folder" in text
