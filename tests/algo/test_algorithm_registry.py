"""Schemas and implementations name each other: a new algorithm is one file and one schema entry."""

from __future__ import annotations

import importlib
import typing

import pytest

from rledger.algo.advantage import ADVANTAGES
from rledger.algo.loss import LOSSES
from rledger.config import advantage as advantage_schemas
from rledger.config import policy_loss as loss_schemas
from rledger.config.advantage import Advantage, AdvantageSection
from rledger.config.policy_loss import PolicyLoss, PolicyLossSection


def members(union):
    """type -> schema of a tagged union."""
    classes = typing.get_args(typing.get_args(union)[0])
    return {typing.get_args(c.model_fields["type"].annotation)[0]: c for c in classes}


CASES = [
    ("advantage", "advantages", ADVANTAGES, Advantage, AdvantageSection, advantage_schemas),
    ("loss", "loss", LOSSES, PolicyLoss, PolicyLossSection, loss_schemas),
]


@pytest.mark.parametrize(("package", "function", "registry", "union", "base", "schemas"), CASES)
def test_registry_and_schemas_name_the_same_algorithms(
    package, function, registry, union, base, schemas
):
    assert set(registry) == set(members(union))
    for name, implementation in registry.items():
        module = importlib.import_module(f"rledger.algo.{package}.{name}")
        assert implementation is getattr(module, function)
        assert module.__all__ == [function]
        assert (module.__doc__ or "").strip()
        assert typing.get_type_hints(implementation)["config"] is members(union)[name]


@pytest.mark.parametrize(("package", "function", "registry", "union", "base", "schemas"), CASES)
def test_every_schema_is_a_member_of_its_union_under_its_own_name(
    package, function, registry, union, base, schemas
):
    declared = {
        c
        for c in vars(schemas).values()
        if isinstance(c, type) and issubclass(c, base) and c is not base
    }
    assert declared == set(members(union).values())
    for name, schema in members(union).items():
        assert schema.model_fields["type"].default == name


def test_what_each_advantage_needs():
    schemas = members(Advantage)
    relative = {name for name, c in schemas.items() if c.group_relative}
    assert relative == {
        "grpo", "rloo", "reinforce_plus_plus_baseline", "opo", "gpg", "gdpo", "grpo_passk",
    }  # fmt: skip
    assert {name for name, c in schemas.items() if c.needs_critic} == {"gae"}
    assert {name for name, c in schemas.items() if c.needs_greedy_baseline} == {"remax"}
