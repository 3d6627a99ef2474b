"""The `[algorithm]` table: defaults, what it derives, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from rledger.config.algorithm import AlgorithmConfig
from rledger.errors import ConfigError


def parse(**table):
    return AlgorithmConfig.model_validate(table)


def test_the_default_is_grpo_without_a_reference_policy():
    config = AlgorithmConfig()
    assert config.advantage.type == "grpo"
    assert config.advantage.norm_by_std
    assert config.loss.type == "ppo"
    assert (config.loss.clip_low, config.loss.clip_high, config.loss.dual_clip) == (0.2, 0.2, 3.0)
    assert config.effective_aggregation == "token_mean"
    assert not config.needs_ref_logprobs
    assert config.effective_min_group_size == 2


def test_a_table_without_type_is_of_the_defaults_type():
    config = parse(advantage={"norm_by_std": False}, loss={"clip_high": 0.28})
    assert config.advantage.type == "grpo"
    assert config.loss.clip_high == 0.28
    with pytest.raises(ValidationError, match=r"kl\.none\.coef"):
        parse(kl={"coef": 0.1})


def test_auto_aggregation_is_the_losses_own_and_a_named_one_is_obeyed():
    for loss in ("gspo", "sapo", "geo_mean"):
        assert parse(loss={"type": loss}).effective_aggregation == "seq_mean_token_mean"
        named = parse(loss={"type": loss}, aggregation="token_mean")
        assert named.effective_aggregation == "token_mean"


def test_the_aggregation_scale_goes_with_its_aggregation_only():
    parse(aggregation="seq_mean_token_sum_norm", aggregation_scale=1024)
    with pytest.raises(ValidationError, match="needs aggregation_scale"):
        parse(aggregation="seq_mean_token_sum_norm")
    with pytest.raises(ValidationError, match="has no effect with aggregation = token_mean"):
        parse(aggregation_scale=1024)


def test_old_logprobs_resolve_by_the_number_of_updates():
    auto = AlgorithmConfig()
    assert auto.resolve_old_logprobs(1) == "current"
    assert auto.resolve_old_logprobs(2) == "recompute"
    assert parse(kl={"type": "reward"}).resolve_old_logprobs(1) == "recompute"
    assert parse(kl={"type": "loss"}).resolve_old_logprobs(1) == "current"
    for source in ("recompute", "generator"):
        assert parse(old_logprobs=source).resolve_old_logprobs(4) == source
    with pytest.raises(ConfigError, match=r"algorithm\.old_logprobs"):
        parse(old_logprobs="current").resolve_old_logprobs(2)


def test_kl_in_the_reward_needs_old_logprobs():
    with pytest.raises(ValidationError, match="set old_logprobs to auto, recompute or generator"):
        parse(kl={"type": "reward"}, old_logprobs="current")
    with pytest.raises(ValidationError):
        parse(kl={"type": "reward", "estimator": "k3+"})  # there is no gradient to correct


def test_group_relative_advantages_refuse_groups_of_one():
    with pytest.raises(ValidationError, match=r"min_group_size = 1 with advantage\.type = grpo"):
        parse(min_group_size=1)
    assert parse(advantage={"type": "gae"}).effective_min_group_size == 1
    assert parse(min_group_size=3).effective_min_group_size == 3


@pytest.mark.parametrize(
    "loss",
    [
        {"type": "ppo", "clip_low": 1.5},
        {"type": "ppo", "clip_high": 0.0},
        {"type": "ppo", "dual_clip": 1.0},
        {"type": "clip_cov", "cov_low": 2.0, "cov_high": 1.0},
        {"type": "kl_cov", "share": 0.0},
        {"type": "dro"},
        {"type": "nope"},
        {"type": "ppo", "cliprange": 0.2},
    ],
    ids=str,
)
def test_bad_losses_are_refused(loss):
    with pytest.raises(ValidationError):
        parse(loss=loss)


def test_the_resolved_table_parses_to_itself():
    config = parse(advantage={"type": "gdpo", "weights": {"a": 1.0}}, kl={"type": "loss"})
    assert AlgorithmConfig.model_validate(config.model_dump()) == config


def test_every_field_is_described():
    undocumented = []
    todo, seen = [AlgorithmConfig], set()
    while todo:
        section = todo.pop()
        if section in seen:
            continue
        seen.add(section)
        for name, field in section.model_fields.items():
            if name != "type" and not field.description:
                undocumented.append(f"{section.__name__}.{name}")
            todo += [
                c for c in _classes(field.annotation) if issubclass(c, AlgorithmConfig.__base__)
            ]
    assert len(seen) > 25
    assert undocumented == []


def _classes(annotation):
    if isinstance(annotation, type):
        return [annotation]
    parts = getattr(annotation, "__args__", ())
    return [c for part in parts for c in _classes(part)]


def test_schemas_and_group_selection_import_no_torch():
    code = (
        "import sys, rledger.config.algorithm, rledger.schedule.filtering; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
