"""Specs and tables of tensors against transformers, and what bad config.json files get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from model_oracles import CLASSES, LLAMA3, SMALL, VARIANTS, YARN

from rledger.errors import ModelError
from rledger.modelspec import load_spec, spec_from_config


def meta_model(family: str, changes: dict[str, Any]) -> Any:
    config_class, model_class = CLASSES[family]
    with torch.device("meta"):
        return model_class(config_class(**SMALL | changes))


@pytest.mark.parametrize("variant", VARIANTS)
def test_table_equals_transformers_state_dict(variant: str) -> None:
    model = meta_model(*VARIANTS[variant])
    spec = spec_from_config(model.config.to_dict())
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if spec.tied_embeddings:
        del expected["lm_head.weight"]
    table = spec.tensors()
    assert {tensor.name: tensor.shape for tensor in table} == expected
    assert [tensor.name for tensor in table] == list(expected)
    assert spec.num_parameters() == model.num_parameters()


@given(
    family=st.sampled_from(sorted(CLASSES)),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    half_head=st.integers(1, 9),
    layers=st.integers(1, 3),
    tied=st.booleans(),
    bias=st.booleans(),
)
def test_table_equals_transformers_for_any_shape(
    family: str, kv_heads: int, group: int, half_head: int, layers: int, tied: bool, bias: bool
) -> None:
    changes: dict[str, Any] = {
        "hidden_size": 12 * kv_heads * group,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "head_dim": 2 * half_head,
        "num_hidden_layers": layers,
        "tie_word_embeddings": tied,
    }
    if family == "qwen2":
        del changes["head_dim"]
    else:
        changes["attention_bias"] = bias
    model = meta_model(family, changes)
    spec = spec_from_config(model.config.to_dict())
    assert sum(tensor.size for tensor in spec.tensors()) == model.num_parameters()


def test_critic_table_equals_token_classifier() -> None:
    with torch.device("meta"):
        model = transformers.Qwen3ForTokenClassification(
            transformers.Qwen3Config(**SMALL, num_labels=1)
        )
    table = spec_from_config(model.config.to_dict()).tensors(value_head=True)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert {tensor.name: tensor.shape for tensor in table} == expected


def test_matmul_parameters_count_the_head_once() -> None:
    tied = spec_from_config(SMALL | {"model_type": "llama", "tie_word_embeddings": True})
    untied = spec_from_config(SMALL | {"model_type": "llama"})
    # q and o [48, 48], k and v [16, 48], three of [80, 48] in 3 layers, and the head [97, 48]
    assert tied.num_matmul_parameters == 3 * (2 * 48 * 48 + 2 * 16 * 48 + 3 * 80 * 48) + 97 * 48
    assert untied.num_matmul_parameters == tied.num_matmul_parameters


@pytest.mark.parametrize("variant", VARIANTS)
def test_config_survives_the_way_through_our_layout(variant: str) -> None:
    family, changes = VARIANTS[variant]
    config = CLASSES[family][0](**SMALL | changes)
    spec = spec_from_config(config.to_dict())
    assert spec_from_config(spec.to_config()) == spec
    again = CLASSES[family][0](**spec.to_config())
    assert spec_from_config(again.to_dict()) == spec


@pytest.mark.parametrize("table", [LLAMA3, YARN])
def test_both_layouts_of_rope_settings_say_the_same(table: dict[str, Any]) -> None:
    new = SMALL | {"model_type": "llama", "rope_parameters": table}
    scaling = {k: v for k, v in table.items() if k not in ("rope_theta", "rope_type")}
    old = SMALL | {
        "model_type": "llama",
        "rope_theta": table["rope_theta"],
        "rope_scaling": scaling | {"type": table["rope_type"]},
    }
    assert spec_from_config(new) == spec_from_config(old)
    assert spec_from_config(new).rope_theta == 100.0


def test_stop_tokens_of_generation_config_are_added(tmp_path: Path) -> None:
    config = SMALL | {"model_type": "qwen2", "eos_token_id": 5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert load_spec(tmp_path).eos_token_ids == (5, 7)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "family": ({"model_type": "gpt2"}, "model_type 'gpt2'.*llama.*qwen2.*qwen3"),
    "no family": ({"model_type": None}, "model_type None"),
    "missing key": ({"hidden_size": None}, "hidden_size must be a positive integer, found None"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "window": ({"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window"),
    "partial": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "kv heads": ({"num_key_value_heads": 4}, "num_key_value_heads: 4 does not divide.*6"),
    "odd head": ({"head_dim": 7}, "head_dim: 7 is odd"),
    "scaling": ({"rope_scaling": {"type": "longrope"}}, "rope_type: 'longrope'.*yarn"),
    "scaling key": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": 4}},
        "mrope_section: unknown for rope_type 'linear'",
    ),
    "scaling value": ({"rope_scaling": {"type": "linear", "factor": "2"}}, "must be a number"),
    "scaling lacks": ({"rope_scaling": {"type": "linear"}}, "lacks a key.*factor"),
    "eps": ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_decoder_lacks_is_refused_by_name(case: str) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        spec_from_config(SMALL | {"model_type": "llama"} | changes)


def test_missing_and_foreign_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent: no such model folder.*model\.path"):
        load_spec(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_spec(tmp_path)
    (tmp_path / "config.json").write_text("[1, 2")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read as JSON"):
        load_spec(tmp_path)
