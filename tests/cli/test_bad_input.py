"""What bad input gets: a message naming file, key or row and the remedy, status 2, nothing changed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

Speak = Callable[..., Any]


def refused(spoken: Any, pattern: str) -> None:
    assert spoken.status == 2, spoken
    assert re.search(pattern, spoken.err), spoken.err
    assert "Traceback" not in spoken.err + spoken.out
    assert "Warning" not in spoken.err


def _edit_weights(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "model.safetensors"
    state = load_file(path)
    edit(state)
    save_file(state, path, metadata={"format": "pt"})


def _edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes), encoding="utf-8")


UP = "model.layers.1.mlp.up_proj.weight"
# name -> what is done to a good folder, and what the message says
BROKEN_MODELS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (
        shutil.rmtree,
        r"model: no such model folder\. Set model\.path to a local Hugging Face folder, or fetch one",
    ),
    "no config": (
        lambda f: (f / "config.json").unlink(),
        r"model: not a Hugging Face model folder, it has no config\.json\. Point model\.path at",
    ),
    "config is no JSON": (
        lambda f: (f / "config.json").write_text("{", encoding="utf-8"),
        r"model/config\.json: cannot be read as JSON \(.*Fetch the model again",
    ),
    "foreign family": (
        lambda f: _edit_json(f / "config.json", model_type="mamba"),
        r"config\.json: model_type 'mamba' is not a supported family\. Supported: llama.*qwen2.*qwen3",
    ),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        r"model: has no model\.safetensors and no model\.safetensors\.index\.json\. Fetch",
    ),
    "weights of another format": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        r"It holds pytorch_model\.bin, which is not read: convert it to safetensors",
    ),
    "weights cut short": (
        lambda f: (f / "model.safetensors").write_bytes(
            (f / "model.safetensors").read_bytes()[:3000]
        ),
        r"model\.safetensors: no readable safetensors file .*Fetch the model again",
    ),
    "no tokenizer": (
        lambda f: (f / "tokenizer.json").unlink(),
        r"model has no tokenizer\.json; write one with transformers",
    ),
    "tokenizer is none": (
        lambda f: (f / "tokenizer.json").write_text("{}", encoding="utf-8"),
        r"tokenizer\.json is not a tokenizer: .*copy it anew",
    ),
    "another model's tokenizer": (
        lambda f: (_edit_json(f / "config.json", vocab_size=20), _cut_embedding(f)),
        r"tokenizer\.json knows \d+ tokens, but config\.json gives the model a vocab_size of 20; use",
    ),
    "tensor of the wrong shape": (
        lambda f: _edit_weights(f, lambda s: s.update({"model.norm.weight": torch.ones(33)})),
        r"model\.safetensors: tensor model\.norm\.weight has shape \[33\], config\.json asks for \[32\]",
    ),
    "tensor missing": (
        lambda f: _edit_weights(f, lambda s: s.pop(UP)),
        rf"model: tensor {UP} \[64, 32\] is missing\. .*fetch it again",
    ),
    "tensor too many": (
        lambda f: _edit_weights(f, lambda s: s.update({"model.extra.weight": torch.ones(3)})),
        r"model\.safetensors: tensor model\.extra\.weight \[3\] has no place in this model\.",
    ),
    "quantised tensor": (
        lambda f: _edit_weights(f, lambda s: s.update({UP: s[UP].to(torch.int8)})),
        rf"tensor {UP} is torch\.int8; quantised weights cannot be trained",
    ),
}


def _cut_embedding(folder: Path) -> None:
    name = "model.embed_tokens.weight"
    _edit_weights(folder, lambda s: s.update({name: s[name][:20].clone()}))


@pytest.mark.parametrize("case", BROKEN_MODELS)
def test_a_model_folder_that_cannot_be_used(
    case: str, rledger: Speak, recipe: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    damage, pattern = BROKEN_MODELS[case]
    damage(folder)
    refused(rledger("train", recipe, f"model.path={folder}"), pattern)


ROW = '{"question": "1+1=", "answer": "2"}\n'
BROKEN_ROWS = {
    "no answer": (
        '{"question": "1+2="}\n',
        r"rows\.jsonl:2: no answer: .* Give the row its answer",
    ),
    "empty answer": (
        '{"question": "1+2=", "answer": " "}\n',
        r"rows\.jsonl:2: no answer: .*has an empty one",
    ),
    "nothing after the marker": (
        '{"question": "1+2=", "answer": "so it is ####"}\n',
        r"rows\.jsonl:2: nothing after the last ####; write the answer there",
    ),
    "no question": ('{"answer": "3"}\n', r"rows\.jsonl:2: no question: .*tasks\.data\.prompt_key"),
    "no JSON": ('{"question": "1+2=",\n', r"rows\.jsonl:2: not JSON .*write one object a line"),
    "no object": ("[1, 2]\n", r"rows\.jsonl:2: a list; write one JSON object a line"),
    "prompt too long": (
        '{"question": "1+1+1+1+1+1+1+1+1=", "answer": "9"}\n',
        r"rows\.jsonl:2: the prompt has 18 tokens, more than tasks\.max_prompt_tokens = 16; raise it"
        r" to at least 18, or set tasks\.overlong_prompts",
    ),
}


def _jsonl(path: Path) -> str:
    return f'tasks.data={{type="jsonl", path="{path}", reward={{type="exact"}}, eval_frac=0.0}}'


@pytest.mark.parametrize("case", BROKEN_ROWS)
def test_a_data_set_row_that_cannot_be_used(
    case: str, rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    row, pattern = BROKEN_ROWS[case]
    path = tmp_path / "rows.jsonl"
    path.write_text(ROW + row + ROW, encoding="utf-8")
    refused(rledger("train", recipe, _jsonl(path)), pattern)


def test_a_data_set_without_rows_or_file(rledger: Speak, recipe: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    refused(
        rledger("train", recipe, _jsonl(path)),
        r"rows\.jsonl cannot be read: No such file or directory; set tasks\.data\.path",
    )
    path.write_text("\n\n", encoding="utf-8")
    refused(rledger("train", recipe, _jsonl(path)), r"rows\.jsonl has no training row; add rows")


REWARDS = {
    "nowhere:score": r"'nowhere:score' of task .*: no module named 'nowhere'",
    "mine:score": r"module mine \(.*mine\.py\) has no 'score'; callables there: other",
    "mine:number": r"'number' in mine is not callable",
    "broken:score": r"importing broken raised SyntaxError: .*broken\.py, line 1",
    "raises:score": r"importing raises raised ZeroDivisionError: .*raises\.py:1",
}


@pytest.mark.parametrize("path", REWARDS)
def test_a_reward_path_that_does_not_import(
    path: str, rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text("number = 3\ndef other(p, c, r): return 1.0\n", "utf-8")
    (tmp_path / "broken.py").write_text("def score(:\n", encoding="utf-8")
    (tmp_path / "raises.py").write_text("1 / 0\n", encoding="utf-8")
    refused(rledger("train", recipe, f"tasks.data.reward.path={path}"), REWARDS[path])


@pytest.mark.parametrize(
    ("override", "pattern"),
    [
        ("run.group_size=1", "run.group_size = 1 with .*: a single trajectory has nothing to be"),
        ("trainer.micro_batch_tokens=23", "cannot hold one trajectory of up to 24 tokens"),
        ("trainer.num_updates_per_step=5", "an update would get no group; lower the one or raise"),
        ("sampling.max_new_tokens=49", r"sequences of up to 65 tokens, but the model in .* has 64"
         r" positions \(max_position_embeddings in its config\.json\); lower the two to 64 together"),
        ("evaluation.max_new_tokens=49", "evaluation.max_new_tokens = 49 make sequences of up to 65"),
        ("model.device=tpu", "model.device: 'tpu' is no torch device; use 'auto', 'cpu' or 'cuda'"),
    ],
)  # fmt: skip
def test_a_recipe_that_cannot_run(
    override: str, pattern: str, rledger: Speak, recipe: Path
) -> None:
    refused(rledger("train", recipe, override), pattern)


@pytest.mark.parametrize(
    "override",
    ["run.num_steps=x", "run.group_size=1", "model.path=nowhere", "sampling.max_new_tokens=49"],
)
def test_what_is_seen_before_the_start_leaves_no_run_folder(
    override: str, rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    assert rledger("train", recipe, override).status == 2
    assert not (tmp_path / "runs").exists()


def test_a_start_that_failed_does_not_claim_the_run_s_name(
    rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    wrong = "tasks.data.reward.path=nowhere:score"
    assert rledger("train", recipe, wrong, "run.num_steps=1").status == 2
    assert (tmp_path / "runs" / "small").exists()
    assert rledger("train", recipe, "run.num_steps=1").status == 0


def test_wrong_command_lines_are_refused_in_a_line(rledger: Speak, recipe: Path) -> None:
    for arguments, pattern in (
        (("train",), "the following arguments are required: recipe\n"),
        (("train", recipe, "--dryrun"), "unrecognized arguments: --dryrun"),
        (("train", recipe, "--dry-run", "x"), "unrecognized arguments: x"),
        (("trane",), "invalid choice: 'trane' .choose from 'train'"),
        (("model",), "the following arguments are required: ACTION"),
        (("report",), "the following arguments are required: run"),
    ):
        refused(rledger(*arguments), pattern)


def test_overrides_may_stand_behind_options(rledger: Speak, recipe: Path) -> None:
    spoken = rledger("train", recipe, "--dry-run", "run.seed=5", "--run.num_steps=9")
    assert spoken.status == 0
    assert re.search(r"^seed = 5 +# command line$", spoken.out, re.M)
    assert re.search(r"^num_steps = 9 +# command line$", spoken.out, re.M)
