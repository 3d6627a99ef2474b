"""Fixtures that several suites share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# As the command line does, before torch is loaded: suites may share the cores with other processes.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of random weights with a character tokenizer: 2 layers of width 32."""
    from rledger.models.char_tokenizer import char_vocabulary, write_char_tokenizer
    from rledger.models.checkpoint import save_decoder
    from rledger.models.init import random_decoder
    from rledger.modelspec import spec_from_config

    folder = tmp_path_factory.mktemp("tiny") / "model"
    vocabulary = char_vocabulary(["0123456789+=? abcdefghijklmnop"])
    spec = spec_from_config(
        {
            "model_type": "llama",
            "vocab_size": len(vocabulary),
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": 0,
        }
    )
    save_decoder(random_decoder(spec, seed=7), folder)
    write_char_tokenizer(folder, vocabulary)
    return folder


def count_zeros(prompt: str, completion: str, payload: Any) -> dict[str, float]:
    """A reward that a random policy gets in part, so that every group carries signal."""
    return {"score": completion.count("0") / 8, "length": float(len(completion))}


@pytest.fixture
def make_recipe(tiny_model: Path, tmp_path: Path) -> Callable[..., Any]:
    """`make_recipe("run.num_steps=3", ...)`: a small checked recipe on the tiny model."""
    from rledger.config.load import load_recipe

    text = f"""
[run]
name = "small"
root = "{tmp_path}/runs"
num_steps = 3
num_prompts_per_step = 4
group_size = 4
deterministic = true
threads_per_role = 1

[model]
path = "{tiny_model}"
dtype = "float32"
device = "cpu"

[tasks]
max_prompt_tokens = 16
num_workers = 1

[tasks.data]
type = "arithmetic_sums"
max_operand = 20
num_eval_prompts = 8
template = "{{a}}+{{b}}="
[tasks.data.reward]
type = "function"
path = "tests.conftest:count_zeros"

[sampling]
max_new_tokens = 8

[generator]
max_running_requests = 16
kv_cache_bytes = 4000000

[trainer]
learning_rate = 1e-2
micro_batch_tokens = 128
"""
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")

    def make(*overrides: str) -> Any:
        return load_recipe(path, overrides)

    return make
