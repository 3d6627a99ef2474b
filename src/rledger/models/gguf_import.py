"""One GGUF file of a Llama model as a Hugging Face folder: weights dequantised, tokenizer rebuilt.

GGUF keeps the rows of q_proj and k_proj permuted within each head, so that a rotary pair lies side
by side (llama.cpp, convert_hf_to_gguf.py); here the permutation is undone. Weights are written in
float32, in which dequantising computes: nothing is lost beyond what quantising lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rledger.errors import ModelError
from rledger.models.checkpoint import write_json, write_model
from rledger.modelspec import ModelSpec, spec_from_config

__all__ = ["convert_gguf"]

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# llama.cpp's name for the split of text before byte-pair merges: does it part digits?
_DIGITS_APART = {"smollm": True, "gpt-2": False}
_NEEDED = (
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.rope.freq_base",
    "tokenizer.chat_template",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.model",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.unknown_token_id",
)
CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def convert_gguf(path: Path, folder: Path) -> ModelSpec:
    """Fill `folder`, which exists, with config.json, float32 safetensors and tokenizer files.

    Raises ModelError when the file is no GGUF of a Llama model with a byte-level BPE tokenizer, or
    the extra `gguf` is not installed.
    """
    try:
        from gguf import GGUFReader  # an extra: only this conversion needs it
        from gguf.quants import dequantize
    except ImportError as error:
        raise ModelError(
            "reading a GGUF file needs the package gguf: pip install 'rledger[gguf]'."
        ) from error
    reader = GGUFReader(path)
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta.get("general.architecture") != "llama":
        raise ModelError(
            f"{path}: GGUF architecture {meta.get('general.architecture')!r} is not llama."
        )
    missing = [key for key in _NEEDED if key not in meta]
    if missing:
        raise ModelError(f"{path}: GGUF metadata lack {', '.join(missing)}; use another file.")
    names = [tensor.name for tensor in reader.tensors]
    spec = spec_from_config(_config(meta, tied="output.weight" not in names), where=str(path))
    state: dict[str, Tensor] = {}
    for tensor in reader.tensors:
        name = _hf_name(tensor.name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _unpermute(values, spec.head_size)
        state[name] = torch.from_numpy(np.array(values, order="C"))  # out of the mapped file
    write_model(spec, state, folder)
    _write_tokenizer(meta, path, folder)
    return spec


def _config(meta: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    # GGUF keeps the number as float32; its shortest decimal form is what the author wrote.
    eps = float(str(np.float32(meta["llama.attention.layer_norm_rms_epsilon"])))
    return {
        "model_type": "llama",
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": eps,
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "tie_word_embeddings": tied,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def _hf_name(name: str) -> str:
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    match name.split("."):
        case ["blk", layer, part, ending] if part in _OF_LAYER:
            return f"model.layers.{layer}.{_OF_LAYER[part]}.{ending}"
    raise ModelError(f"GGUF tensor {name} has no place in a Llama model.")


def _unpermute(values: npt.NDArray[np.float32], head_size: int) -> npt.NDArray[np.float32]:
    """[rows, D] with each head's rows (pair, side) back in the order (side, pair)."""
    rows, columns = values.shape
    paired = values.reshape(rows // head_size, head_size // 2, 2, columns)
    return paired.swapaxes(1, 2).reshape(rows, columns)


def _write_tokenizer(meta: dict[str, Any], path: Path, folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json of a byte-level BPE tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    split = meta["tokenizer.ggml.pre"]
    if meta["tokenizer.ggml.model"] != "gpt2" or split not in _DIGITS_APART:
        raise ModelError(
            f"{path}: tokenizer {meta['tokenizer.ggml.model']!r} with split {split!r} is "
            f"unknown; known splits: {', '.join(_DIGITS_APART)}. Fetch the model from the Hugging Face hub."
        )
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    steps: list[Any] = (
        [pre_tokenizers.Digits(individual_digits=True)] if _DIGITS_APART[split] else []
    )
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    types = meta["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    role = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta["tokenizer.chat_template"],
    }
    config |= {key: tokens[meta[f"tokenizer.ggml.{name}_token_id"]] for key, name in role.items()}
    write_json(folder / "tokenizer_config.json", config)
