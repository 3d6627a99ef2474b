"""The recipes unchanged on one CUDA device. The whole file takes less than eight minutes there:

python -m pytest tests/gpu -m gpu
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rledger.config.load import load_recipe
from rledger.launch.inline import train

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a CUDA device, torch sees none"
    ),
]


def _rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_the_demo_learns_on_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    loaded = load_recipe("recipes/demo.toml", [f"run.root={tmp_path}", "run.num_steps=40"])
    assert train(loaded).finished
    accuracies = [
        row["val-core/spell_backward/acc/mean@1"]
        for row in _rows(tmp_path / "demo")
        if "val-core/spell_backward/acc/mean@1" in row
    ]
    assert 0.25 <= accuracies[0] <= 0.45
    assert accuracies[-1] > 0.7


def _smollm2_shape(folder: Path) -> Path:
    """SmolLM2-135M, or random weights of its shape with a character tokenizer where it is not at hand."""
    real = ROOT / "models" / "smollm2-135m"
    if real.is_dir():
        return real
    from rledger.models.char_tokenizer import char_vocabulary, write_char_tokenizer
    from rledger.models.init import write_random_model
    from rledger.modelspec import spec_from_config

    spec = spec_from_config(
        {
            "model_type": "llama", "vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
            "max_position_embeddings": 8192, "rope_theta": 100000.0, "tie_word_embeddings": True,
            "bos_token_id": None, "eos_token_id": 0,
        }
    )  # fmt: skip
    write_random_model(folder, spec, seed=1, dtype=torch.bfloat16)
    write_char_tokenizer(folder, char_vocabulary([chr(i) for i in range(32, 127)]))
    return folder


@pytest.mark.parametrize("advantage", ["grpo", "gae"])
def test_the_smollm2_recipe_runs_on_cuda_and_both_sides_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advantage: str
) -> None:
    monkeypatch.chdir(ROOT)
    model = _smollm2_shape(tmp_path / "model")
    loaded = load_recipe(
        "recipes/smollm2-arithmetic.toml",
        [
            f"run.root={tmp_path}", f"model.path={model}", "run.num_steps=3", "run.group_size=8",
            "evaluation.num_prompts=32", f"algorithm.advantage.type={advantage}",
            "checkpoint.export_hf=false",
        ],
    )  # fmt: skip
    assert train(loaded).finished
    rows = _rows(tmp_path / loaded.recipe.run.name)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    # bfloat16 on both sides: probabilities of generator and trainer differ by rounding alone
    assert all(row["training/rollout_probs_diff_mean"] < 0.02 for row in rows[1:])
    assert all(row["time/unaccounted_frac"] < 0.01 for row in rows[1:])


def test_a_killed_run_resumes_on_cuda_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    quiet = [f"run.root={tmp_path}", "evaluation.before_training=false"]
    assert train(load_recipe("recipes/demo.toml", [*quiet, "run.num_steps=4"])).step == 4
    shutil.rmtree(tmp_path / "demo" / "model")
    assert train(load_recipe("recipes/demo.toml", [*quiet, "run.num_steps=6"])).step == 6
    assert [row["step"] for row in _rows(tmp_path / "demo")] == list(range(7))
