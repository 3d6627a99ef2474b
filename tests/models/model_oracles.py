"""Small random transformers models of each family: the oracle of the tests in this folder."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

from rledger.models.decoder import Decoder
from rledger.models.names import load_hf_state
from rledger.modelspec import spec_from_config

CLASSES: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 100.0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 100.0,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head size": ("llama", {"head_dim": 20}),
    "llama no grouping": ("llama", {"num_key_value_heads": 6}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}},
    ),
    "llama dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 1e4}},
    ),
    "llama llama3": ("llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 tied, biases": (
        "qwen3",
        {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True},
    ),
    "qwen3 yarn": ("qwen3", {"head_dim": 16, "rope_parameters": YARN | {"attention_factor": 1.2}}),
    "qwen3 yarn untruncated": (
        "qwen3",
        {
            "head_dim": 32,
            "rope_parameters": YARN | {"truncate": False, "beta_fast": 8.0, "beta_slow": 2.0},
        },
    ),
}


def oracle(variant: str) -> Any:
    """A transformers model whose every tensor is random, biases and norms included."""
    family, changes = VARIANTS[variant]
    config_class, model_class = CLASSES[family]
    torch.manual_seed(len(variant))
    model = model_class(config_class(**SMALL | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.copy_(1 + torch.randn_like(parameter) / 3)
    return model


def ours(model: Any) -> Decoder:
    spec = spec_from_config(model.config.to_dict())
    decoder = Decoder(spec)
    tied = {"lm_head.weight"} if spec.tied_embeddings else set()
    load_hf_state(decoder, {n: t for n, t in model.state_dict().items() if n not in tied})
    return decoder


def packed(lengths: list[int]) -> Any:
    """Plain causal attention over sequences laid end to end, written from the definition."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        out = []
        for q_s, k_s, v_s in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True):
            scores = torch.einsum("qnh,knh->nqk", q_s, k_s) / q.shape[-1] ** 0.5
            future = torch.ones(len(q_s), len(q_s), dtype=torch.bool).triu(1)
            weights = scores.masked_fill(future, -torch.inf).softmax(-1)
            out.append(torch.einsum("nqk,knh->qnh", weights, v_s))
        return torch.cat(out)

    return attend
