"""Hugging Face folders: written by transformers and read by us, and the other way round."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from model_oracles import VARIANTS, oracle, packed
from safetensors.torch import load_file, save_file

import rledger.models.checkpoint as checkpoint
from rledger.errors import CheckpointError, ModelError
from rledger.models.checkpoint import load_decoder, save_decoder, save_state
from rledger.models.digest import weights_digest
from rledger.models.init import random_decoder, write_random_model
from rledger.models.names import export_hf_state, from_hf, load_hf_state, to_hf
from rledger.modelspec import load_spec, spec_from_config

TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Same names, dtypes and bits."""
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a
    )


def folder_of(path: Path, **changes: Any) -> Path:
    write_random_model(path, spec_from_config(TINY | changes), seed=3)
    return path


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) remove tensors of model.safetensors; __ in a keyword stands for a dot."""
    state = load_file(folder / "model.safetensors")
    for key, tensor in changes.items():
        name = key.replace("__", ".")
        if tensor is None:
            del state[name]
        else:
            state[name] = tensor
    save_file(state, folder / "model.safetensors")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_equal_to_the_byte(variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = oracle(variant).to(dtype)
    model.save_pretrained(tmp_path / "theirs")
    decoder = load_decoder(tmp_path / "theirs", dtype=dtype)
    for name, source in (("with source", tmp_path / "theirs"), ("without", None)):
        save_decoder(decoder, tmp_path / name, source_folder=source)
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
        assert type(again) is type(model)
        assert equal(again.state_dict(), model.state_dict())
        assert load_spec(tmp_path / name) == decoder.spec
        if dtype == torch.float32:  # .to(bfloat16) also rounds their rotary frequencies in memory
            token_ids = torch.randint(97, (1, 30))
            assert torch.equal(again(token_ids).logits, model(token_ids).logits)


def test_shards_are_written_and_read(tmp_path: Path) -> None:
    model = oracle("qwen3")
    model.save_pretrained(tmp_path / "theirs", max_shard_size="50KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 2
    decoder = load_decoder(tmp_path / "theirs")
    save_decoder(decoder, tmp_path / "ours", max_shard_bytes=50_000)
    sizes = [path.stat().st_size for path in (tmp_path / "ours").glob("*.safetensors")]
    assert len(sizes) > 2 and max(sizes) < 55_000
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert equal(again.state_dict(), model.state_dict())


@pytest.mark.parametrize("variant", ["llama biases", "qwen2 tied", "qwen3"])
def test_names_go_out_and_come_back(variant: str) -> None:
    decoder = random_decoder(spec_from_config(oracle(variant).config.to_dict()), seed=1)
    ours = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
    theirs = to_hf(decoder.spec, ours)
    assert equal(from_hf(decoder.spec, theirs), ours)
    assert list(theirs) != list(ours)


def test_export_shares_memory_with_the_decoder_in_its_own_dtype() -> None:
    decoder = random_decoder(spec_from_config(TINY), seed=1)
    views = export_hf_state(decoder)
    copies = export_hf_state(decoder, torch.bfloat16)
    before = copies["model.layers.0.self_attn.k_proj.weight"].clone()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(1)
    fused = decoder.get_parameter("layers.0.qkv_proj.weight")
    assert torch.equal(views["model.layers.0.self_attn.k_proj.weight"], fused[8:12])
    assert torch.equal(copies["model.layers.0.self_attn.k_proj.weight"], before)


def test_loading_a_state_is_all_or_nothing() -> None:
    spec = spec_from_config(TINY)
    decoder, other = random_decoder(spec, seed=1), random_decoder(spec, seed=2)
    before = {name: tensor.clone() for name, tensor in export_hf_state(decoder).items()}
    state = export_hf_state(other)
    bad = state | {"model.norm.weight": torch.ones(9)}
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \[9\].*asks for \[8\]"):
        load_hf_state(decoder, bad)
    assert equal(export_hf_state(decoder), before)
    load_hf_state(decoder, state)
    assert equal(export_hf_state(decoder), state)


def test_digest_follows_bits_and_nothing_else() -> None:
    spec = spec_from_config(TINY | {"hidden_size": 256, "intermediate_size": 700})
    state = export_hf_state(random_decoder(spec, seed=1, dtype=torch.bfloat16))
    shuffled = {name: state[name].clone() for name in reversed(list(state))}
    assert weights_digest(shuffled) == weights_digest(state)
    seen = {weights_digest(state)}
    for name in ("model.norm.weight", "model.layers.1.mlp.down_proj.weight", "lm_head.weight"):
        changed = dict(shuffled)
        changed[name] = shuffled[name].clone()
        changed[name].view(torch.int16).view(-1)[-1] ^= 1  # the last bit of the last value
        seen.add(weights_digest(changed))
    weight = state["model.layers.0.mlp.down_proj.weight"].clone()
    weight[[3, 40]] = weight[[40, 3]]
    seen.add(weights_digest(shuffled | {"model.layers.0.mlp.down_proj.weight": weight}))
    seen.add(weights_digest({name: tensor.float() for name, tensor in state.items()}))
    assert len(seen) == 6


def test_critic_becomes_a_token_classifier(tmp_path: Path) -> None:
    folder_of(tmp_path / "policy")
    critic = load_decoder(tmp_path / "policy", value_head=True)
    token_ids, positions = torch.randint(11, (9,)), torch.arange(9)
    hidden = critic.forward_hidden(token_ids, positions, packed([9]))
    assert torch.equal(critic.values(hidden), torch.zeros(9))
    assert critic.value_head is not None
    with torch.no_grad():
        critic.value_head.weight.normal_()
        critic.value_head.bias.fill_(0.5)
    save_decoder(critic, tmp_path / "critic", source_folder=tmp_path / "policy")
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "critic")
    expected = theirs(token_ids[None]).logits[0, :, 0]
    again = load_decoder(tmp_path / "critic", value_head=True)
    assert equal(export_hf_state(again), export_hf_state(critic))
    values = again.values(again.forward_hidden(token_ids, positions, packed([9])))
    assert (values - expected).abs().max() < 1e-5
    with pytest.raises(ModelError, match=r"score\.weight is a value head"):
        load_decoder(tmp_path / "critic")


def test_companions_are_copied_and_the_dtype_is_told(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "source")
    (source / "tokenizer.json").write_text("{}")
    (source / "README.md").write_text("not ours to copy")
    decoder = load_decoder(source)
    save_decoder(decoder, tmp_path / "copy", source_folder=source, dtype=torch.bfloat16)
    names = {path.name for path in (tmp_path / "copy").iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert json.loads((tmp_path / "copy/config.json").read_text())["torch_dtype"] == "bfloat16"
    other = random_decoder(spec_from_config(TINY | {"hidden_size": 12}), seed=1)
    with pytest.raises(ModelError, match="describes another model"):
        save_decoder(other, tmp_path / "other", source_folder=source)
    assert not (tmp_path / "other").exists()


def test_a_stored_copy_of_the_tied_head_is_ignored(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", tie_word_embeddings=True)
    expected = export_hf_state(load_decoder(folder))
    edit_weights(
        folder,
        lm_head__weight=expected["model.embed_tokens.weight"],
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(2),
    )
    assert equal(export_hf_state(load_decoder(folder)), expected)


Q_PROJ = "model__layers__1__self_attn__q_proj__weight"
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "missing": (
        {Q_PROJ: None},
        r"model: tensor .*1\.self_attn\.q_proj\.weight \[8, 8\] is missing",
    ),
    "shape": (
        {Q_PROJ: torch.zeros(8, 6)},
        r"model\.safetensors: tensor .*q_proj\.weight has shape \[8, 6\], .*asks for \[8, 8\]",
    ),
    "extra": (
        {"model__layers__0__self_attn__q_norm__weight": torch.ones(4)},
        r"model\.safetensors: tensor .*q_norm\.weight \[4\] has no place",
    ),
    "integers": (
        {"model__norm__weight": torch.ones(8, dtype=torch.int8)},
        r"model\.norm\.weight is torch\.int8; quantised",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_wrong_tensor_is_named_with_its_file(case: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    changes, message = BROKEN[case]
    edit_weights(folder, **changes)
    with pytest.raises(ModelError, match=message):
        load_decoder(folder)


def test_folders_without_readable_weights_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"model\.safetensors: no readable safetensors file"):
        load_decoder(folder)
    weights.rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"has no model\.safetensors.*pytorch_model\.bin"):
        load_decoder(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "model-1.safetensors"}}))
    with pytest.raises(
        ModelError, match=r"model-1\.safetensors: named by .*index\.json but missing"
    ):
        load_decoder(folder)
    index.write_text("{}")
    with pytest.raises(ModelError, match="has no weight_map"):
        load_decoder(folder)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ModelError, match="model: exists and is not empty"):
        folder_of(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (tmp_path / "empty").mkdir()
    assert load_spec(folder_of(tmp_path / "empty")) == load_spec(folder)


@pytest.mark.parametrize("good_calls", [0, 1])
def test_a_full_disk_leaves_nothing_behind(
    good_calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def full_disk(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > good_calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "save_file", full_disk)
    decoder = random_decoder(spec_from_config(TINY), seed=1)
    with pytest.raises(CheckpointError, match=r"out: .*No space left.*Free disk space"):
        save_decoder(decoder, tmp_path / "out", max_shard_bytes=500)
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_is_no_model_is_not_written(tmp_path: Path) -> None:
    spec = spec_from_config(TINY)
    state = export_hf_state(random_decoder(spec, seed=1))
    del state["model.norm.weight"]
    with pytest.raises(ModelError, match=r"model\.norm\.weight \[8\] is missing"):
        save_state(spec, state, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
