"""Every key of every section has a meaning, and a kind that a person can read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from rledger.config.explain import explain_key, recipe_keys
from rledger.config.schema import all_keys, field_kind, find_section, variant_of
from rledger.config.warmup import WarmupRecipe
from rledger.errors import ConfigError

PYTHON = re.compile(
    r"typing|Annotated|Literal|Optional|Union|NoneType|\bNone\b|\bTrue\b|\bFalse\b|\bstr\b|"
    r"\bint\b|\bfloat\b|\bbool\b|\bdict\b|\btuple\b|rledger\.|FieldInfo|<|\(|\["
)


@pytest.mark.parametrize("key", recipe_keys())
def test_every_key_has_meaning_kind_and_default(key: str) -> None:
    for entry in explain_key(key):
        assert len(entry.meaning) >= 6
        assert entry.meaning.endswith((".", ")", '"', "?")), entry.meaning
        assert PYTHON.search(entry.kind) is None, entry.kind
        assert entry.default is not None or entry.children
        assert all(child.meaning for child in entry.children)


@pytest.mark.parametrize("key", all_keys(WarmupRecipe))
def test_every_key_of_a_warm_up_has_a_description(key: str) -> None:
    *parents, last = key.split(".")
    for section in find_section(WarmupRecipe, parents):
        if last in section.model_fields and last != "type":
            assert section.model_fields[last].description
            assert PYTHON.search(field_kind(section.model_fields[last])) is None


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("run.num_steps", "a whole number at least 1"),
        ("run.deterministic", "true or false"),
        ("run.threads_per_role", 'a whole number at least 1, or "none"'),
        ("run.name", "text"),
        ("sampling.top_p", "a number above 0 and at most 1"),
        ("algorithm.advantage.gamma", "a number from 0 to 1"),
        ("trainer.schedule", 'one of "constant", "linear", "cosine"'),
        ("algorithm.kl.controller", 'one of "fixed", "adaptive"'),
        ("sampling.stop_strings", "a list; each entry is text"),
        ("algorithm.advantage.weights", "a table; each value is a number"),
        ("tasks.data.params", "a table; each value is free"),
        ("algorithm.kl", 'a section; its type is one of "none", "loss", "reward"'),
        ("sinks.wandb", 'a section, or "none"'),
    ],
)
def test_kinds_read_as_words(key: str, kind: str) -> None:
    assert [entry.kind for entry in explain_key(key)] == [kind]


def test_a_key_of_some_variants_names_them() -> None:
    (entry,) = explain_key("algorithm.advantage.gamma")
    assert entry.only_with == (
        'algorithm.advantage.type = "gae"',
        'algorithm.advantage.type = "reinforce_plus_plus"',
    )


def test_variants_with_defaults_of_their_own_are_told_apart() -> None:
    entries = explain_key("algorithm.loss.clip_low")
    by_loss = {name: e.default for e in entries for name in e.only_with}
    assert by_loss['algorithm.loss.type = "ppo"'] == "0.2"
    assert by_loss['algorithm.loss.type = "gspo"'] == "0.0003"


def test_a_type_lists_its_variants_with_their_meaning() -> None:
    (entry,) = explain_key("algorithm.loss.type")
    names = [f'"{variant_of(s)}"' for s in find_section(explain_root(), ["algorithm", "loss"])]
    assert [child.name for child in entry.children] == names
    assert entry.default == '"ppo"'
    (data,) = explain_key("tasks.data.type")
    assert data.default == "required"


def explain_root() -> Any:
    from rledger.config.recipe import Recipe

    return Recipe


def test_a_recipe_adds_value_and_source(make_recipe: Callable[..., Any]) -> None:
    loaded = make_recipe("run.num_steps=5")
    (given,) = explain_key("run.num_steps", loaded)
    assert (given.value, given.source) == ("5", "command line")
    (own,) = explain_key("run.group_size", loaded)
    assert own.value == "4" and own.source is not None and own.source.endswith("recipe.toml")
    (default,) = explain_key("trainer.beta1", loaded)
    assert (default.value, default.source) == ("0.9", "default")
    (unused,) = explain_key("algorithm.advantage.lam", loaded)
    assert unused.value == "not in use"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("learning_rate", "trainer.learning_rate"),
        ("trainer.learning_rte", "trainer.learning_rate"),
        ("run.gamma", "algorithm.advantage.gamma"),
        ("xyz", "sections: run, model, tasks"),
    ],
)
def test_an_unknown_key_names_what_is_near(key: str, near: str) -> None:
    with pytest.raises(ConfigError, match=near):
        explain_key(key)
