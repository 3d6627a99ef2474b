"""What a wrong recipe is told: every problem at once, in words that need no knowledge of pydantic."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rledger.config.load import load_recipe, load_schema
from rledger.config.warmup import WarmupRecipe
from rledger.errors import ConfigError

JARGON = re.compile(
    r"Input |valid (string|integer|number|boolean|dictionary|tuple)|instance of|pydantic|"
    r"\btag\b|Section|Config\b|literal\[|None|True|False|Union|Optional|type=|\bloc\b|NoneType"
)
COMMAND = "(command line)"


def problems(make_recipe: Callable[..., Any], *overrides: str) -> list[str]:
    """The lines that a recipe with these overrides is refused with."""
    with pytest.raises(ConfigError) as caught:
        make_recipe(*overrides)
    head, *lines = str(caught.value).splitlines()
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    assert head.endswith(f"recipe.toml: {count}")
    assert JARGON.search("\n".join(lines)) is None, lines
    return [line.strip() for line in lines]


CASES = [
    ("run.num_steps=many", f'run.num_steps = "many" {COMMAND}: must be a whole number at least 1'),
    ("run.num_steps=0", f"run.num_steps = 0 {COMMAND}: must be a whole number at least 1"),
    ("run.num_steps=2.5", f"run.num_steps = 2.5 {COMMAND}: must be a whole number at least 1"),
    ("run.deterministic=maybe", f'run.deterministic = "maybe" {COMMAND}: must be true or false'),
    ("sampling.top_p=2", f"sampling.top_p = 2 {COMMAND}: must be a number above 0 and at most 1"),
    ("algorithm.advantage.type=gae algorithm.advantage.lam=2",
     f"algorithm.advantage.lam = 2 {COMMAND}: must be a number from 0 to 1"),
    ("trainer.learning_rate=inf",
     f"trainer.learning_rate = inf {COMMAND}: must be finite, a number at least 0"),
    ("trainer.max_grad_norm=big",
     f'trainer.max_grad_norm = "big" {COMMAND}: must be a number above 0, or "none"'),
    ("trainer.schedule=cosin", f'trainer.schedule = "cosin" {COMMAND}: must be one of "constant",'
     ' "linear", "cosine"; did you mean "cosine"?'),
    ("algorithm.aggregation=token_men", f'algorithm.aggregation = "token_men" {COMMAND}: must be one'
     ' of "token_mean", "token_sum", "seq_mean_token_sum", "seq_mean_token_sum_norm",'
     ' "seq_mean_token_mean", "auto"; did you mean "token_mean"?'),
    ("sampling.stop_strings=end",
     f'sampling.stop_strings = "end" {COMMAND}: must be a list; each entry is text'),
    ('sampling.stop_strings=["a",3]',
     f"sampling.stop_strings: entry 2 is 3 {COMMAND}: must be a list; each entry is text"),
    ("trainer=3", f"trainer = 3 {COMMAND}: must be a section"),
    ("run.nam=x", f"run.nam {COMMAND}: unknown key; did you mean run.name?"),
    ("run.learning_rate=1", f"run.learning_rate {COMMAND}: unknown key; did you mean"
     " trainer.critic.learning_rate or trainer.learning_rate?"),
    ("sinks.wandb.project=x sinks.wandb.foo=1",
     f"sinks.wandb.foo {COMMAND}: unknown key; known here: project, entity, offline"),
    ("algorithm.advantage.type=grop", f'algorithm.advantage.type = "grop" {COMMAND}: must be one of'
     ' "gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "opo",'
     ' "gpg", "gdpo", "grpo_passk"; did you mean "grpo"?'),
    ("algorithm.advantage.gamma=0.9", f"algorithm.advantage.gamma {COMMAND}: unknown key with"
     ' algorithm.advantage.type = "grpo"; it belongs to "gae" or "reinforce_plus_plus": remove the'
     " key, or choose that type"),
    ("tasks.data.reward.type=exact", 'tasks.data.reward.path (RECIPE): unknown key with'
     ' tasks.data.reward.type = "exact"; it belongs to "function": remove the key, or choose that'
     " type"),
    ("algorithm.loss.type=dro", "algorithm.loss.beta: missing. Weight of the penalty; it has no"
     " sensible default. It takes a number above 0."),
    ("algorithm.advantage.type=gdpo algorithm.advantage.weights.length=long",
     f'algorithm.advantage.weights.length = "long" {COMMAND}: must be a number'),
    ("run.name=a/b", f'run.name = "a/b" {COMMAND}: a run\'s name is a folder\'s: letters, digits, dot,'
     " dash and underscore, beginning with a letter or digit; folders above it go into run.root"),
    ("tasks.data.reward.path=rewards.score", f'tasks.data.reward.path = "rewards.score" {COMMAND}:'
     ' write it as "package.module:function"'),
    ("algorithm.aggregation=seq_mean_token_sum_norm", "algorithm: aggregation ="
     " seq_mean_token_sum_norm needs aggregation_scale: set it to the longest completion allowed"),
    ("algorithm.kl.type=loss algorithm.kl.estimator=k9", f'algorithm.kl.estimator = "k9" {COMMAND}:'
     ' must be one of "k1", "k2", "k3", "abs", "k1+", "k3+"'),
    # What needs two sections to be seen.
    ("run.group_size=1", "run.group_size = 1 with algorithm.advantage.type = grpo: a single trajectory"
     " has nothing to be compared with, so every advantage would be 0; set run.group_size to at least"
     " 2, or choose an advantage that is not group-relative"),
    ("trainer.num_updates_per_step=5", "trainer.num_updates_per_step = 5 is more than"
     " run.num_prompts_per_step = 4: an update would get no group; lower the one or raise the other"),
    ("trainer.micro_batch_tokens=20", "trainer.micro_batch_tokens = 20 cannot hold one trajectory of"
     " up to 24 tokens (tasks.max_prompt_tokens + sampling.max_new_tokens); raise it, or lower those"
     " limits"),
    ("algorithm.min_group_size=5", "algorithm.min_group_size = 5 is more than run.group_size = 4: every"
     " group would be dropped; lower it or raise run.group_size"),
    ("sampling.top_k=5 algorithm.old_logprobs=generator", "sampling.top_k truncates the distribution,"
     " but algorithm.old_logprobs = generator corrects with ratios that assume full support; use"
     " neutral sampling (top_p 1.0, top_k 0, min_p 0.0), or set algorithm.old_logprobs to auto or"
     " recompute"),
    ("algorithm.old_logprobs=current trainer.num_updates_per_step=2", "algorithm.old_logprobs = current"
     " with num_updates_per_step = 2: from the second update on the ratio is not 1; set"
     " algorithm.old_logprobs to auto or recompute"),
    ("run.max_policy_age=1", "run.max_policy_age = 1: this version trains synchronously only; set it to"
     " 0"),
    ("algorithm.overlong.buffer_tokens=8", "algorithm.overlong.buffer_tokens = 8 is not below"
     " sampling.max_new_tokens = 8: every completion would be penalised; lower it"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "message"), CASES, ids=[case[0] for case in CASES])
def test_a_problem_names_key_value_source_and_remedy(
    make_recipe: Callable[..., Any], tmp_path: Path, overrides: str, message: str
) -> None:
    expected = message.replace("RECIPE", str(tmp_path / "recipe.toml"))
    assert problems(make_recipe, *overrides.split(" ")) == [expected]


def test_all_problems_are_told_at_once(make_recipe: Callable[..., Any]) -> None:
    found = problems(
        make_recipe,
        "run.num_steps=0",
        "model.dtype=float64",
        "algorithm.loss.type=gspo",
        "algorithm.loss.dual_clip=3",
        "trainer.learningrate=1",
        "foo.bar=1",
    )
    assert [line.split(" ")[0] for line in found] == [
        "run.num_steps", "model.dtype", "algorithm.loss.dual_clip", "trainer.learningrate", "foo",
    ]  # fmt: skip


def test_contradictions_are_told_at_once(make_recipe: Callable[..., Any]) -> None:
    assert len(problems(make_recipe, "run.group_size=1", "trainer.micro_batch_tokens=8")) == 2


def test_an_empty_recipe_is_told_all_that_it_needs_and_what_that_means(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines] == [
        "run.name", "run.num_steps", "run.num_prompts_per_step", "run.group_size", "model.path",
        "tasks.data.type", "sampling.max_new_tokens",
    ]  # fmt: skip
    assert all(": missing. " in line and " It takes " in line for line in lines)
    assert JARGON.search("\n".join(lines)) is None


def test_a_data_section_without_a_type_is_told_the_types(
    make_recipe: Callable[..., Any], tmp_path: Path
) -> None:
    (line,) = problems(make_recipe, 'tasks.data={path="x.jsonl"}')
    assert line == (
        'tasks.data.type: missing. It takes one of "reasoning_gym", "jsonl", "arithmetic_sums",'
        ' "mixture".'
    )


def test_a_problem_inside_a_list_of_sections_names_its_entry(
    make_recipe: Callable[..., Any],
) -> None:
    (line,) = problems(
        make_recipe,
        'tasks.data={type="mixture", parts=[{type="arithmetic_sums"}, {type="arithmetic_sums",'
        ' task_name="b", max_operand=0}]}',
    )
    assert line == (
        f"tasks.data.parts.1.max_operand = 0 {COMMAND}: must be a whole number from 1 to 10000"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run\n", r"is not valid TOML: .*line 1, column 5.*; correct that line"),
        ('[run]\nname = "a"\nname = "b"\n', r"is not valid TOML: .*line 3.*; correct that line"),
        ("[warmup]\n", r"is a warm-up recipe; run it with `rledger warmup "),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_recipe(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.toml does not exist; name a TOML file"):
        load_recipe(tmp_path / "no.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory; name a TOML file"):
        load_recipe(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"\n')
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_recipe(tmp_path / "latin.toml")


@pytest.mark.parametrize("override", ["run.num_steps", "=3", ".=3", "run..name=x"])
def test_an_override_of_another_form_is_refused(
    make_recipe: Callable[..., Any], override: str
) -> None:
    with pytest.raises(ConfigError, match=r"is not of the form section\.key=value, such as"):
        make_recipe(override)


def test_an_override_below_a_value_is_refused(make_recipe: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"run\.name\.x: run\.name is a value, not a section"):
        make_recipe("run.name.x=1")


def test_a_warm_up_whose_sequences_do_not_fit_its_model_is_refused() -> None:
    path = Path(__file__).parents[2] / "recipes" / "demo-warmup.toml"
    with pytest.raises(
        ConfigError, match=r"up to 47 tokens, but shape\.max_positions = 40; raise it"
    ):
        load_schema(
            WarmupRecipe,
            path,
            ("shape.max_positions=40", "tasks.max_prompt_tokens=33", "warmup.max_new_tokens=14"),
        )
