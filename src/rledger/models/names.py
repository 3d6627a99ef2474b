"""Our parameter names and Hugging Face's, both ways; fused matrices split and joined.

ours                            Hugging Face (under model.layers.<i>)
embedding                       model.embed_tokens.weight
layers.<i>.attention_norm       input_layernorm
layers.<i>.qkv_proj             self_attn.q_proj, k_proj, v_proj, stacked in this order
layers.<i>.q_norm, k_norm       self_attn.q_norm, k_norm
layers.<i>.out_proj             self_attn.o_proj
layers.<i>.mlp_norm             post_attention_layernorm
layers.<i>.gate_up_proj         mlp.gate_proj, up_proj, stacked in this order
layers.<i>.down_proj            mlp.down_proj
final_norm                      model.norm
head                            lm_head (absent when tied to the embedding)
value_head                      score
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rledger.errors import ModelError
from rledger.models.decoder import Decoder
from rledger.modelspec import ModelSpec, TensorSpec

__all__ = ["check_hf_state", "export_hf_state", "from_hf", "load_hf_state", "to_hf"]

_OF_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "qkv_proj",
    "self_attn.k_proj": "qkv_proj",
    "self_attn.v_proj": "qkv_proj",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "self_attn.o_proj": "out_proj",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "gate_up_proj",
    "mlp.up_proj": "gate_up_proj",
    "mlp.down_proj": "down_proj",
}
_OUTSIDE = {
    "model.embed_tokens.weight": "embedding",
    "model.norm.weight": "final_norm.weight",
    "lm_head.weight": "head.weight",
    "score.weight": "value_head.weight",
    "score.bias": "value_head.bias",
}


def _ours(tensor: TensorSpec) -> str:
    if tensor.layer is None:
        return _OUTSIDE[tensor.name]
    path, _, ending = tensor.name.removeprefix(f"model.layers.{tensor.layer}.").rpartition(".")
    return f"layers.{tensor.layer}.{_OF_LAYER[path]}.{ending}"


def _parts(spec: ModelSpec, value_head: bool) -> dict[str, list[TensorSpec]]:
    """Our name -> the checkpoint tensors stacked in it, in order."""
    parts: dict[str, list[TensorSpec]] = {}
    for tensor in spec.tensors(value_head=value_head):
        parts.setdefault(_ours(tensor), []).append(tensor)
    return parts


def to_hf(spec: ModelSpec, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Hugging Face names for a state of our names; the tensors are views of those in `state`.

    A critic's state is known by its `value_head.weight`. Raises ModelError when one is missing.
    """
    out: dict[str, Tensor] = {}
    for name, parts in _parts(spec, "value_head.weight" in state).items():
        if name not in state:
            raise ModelError(f"the state lacks {name}; it belongs to another model.")
        views = torch.split(state[name], [part.shape[0] for part in parts])
        out.update(zip((part.name for part in parts), views, strict=True))
    return out


def from_hf(spec: ModelSpec, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names for a state of Hugging Face names; fused tensors are new, the others the same."""
    value_head = "score.weight" in state
    check_hf_state(
        spec.tensors(value_head=value_head), {n: tuple(t.shape) for n, t in state.items()}
    )
    out: dict[str, Tensor] = {}
    for name, parts in _parts(spec, value_head).items():
        tensors = [state[part.name] for part in parts]
        out[name] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return out


def check_hf_state(
    wanted: tuple[TensorSpec, ...],
    found: Mapping[str, tuple[int, ...]],
    *,
    where: str = "the state",
) -> None:
    """Raise ModelError, naming tensor and both shapes, unless `found` is exactly `wanted`."""
    names = {tensor.name for tensor in wanted}
    for tensor in wanted:
        if tensor.name not in found:
            raise ModelError(
                f"{where}: tensor {tensor.name} {list(tensor.shape)} is missing. "
                "The download is incomplete or config.json is another model's; fetch it again."
            )
        if found[tensor.name] != tensor.shape:
            raise ModelError(
                f"{where}: tensor {tensor.name} has shape {list(found[tensor.name])}, "
                f"config.json asks for {list(tensor.shape)}. "
                "Use the config.json that belongs to these weights."
            )
    for name in found:
        if name not in names:
            raise ModelError(
                f"{where}: tensor {name} {list(found[name])} has no place in this model. "
                "config.json (family, biases, tied embeddings) belongs to another model; "
                "use the one that belongs to these weights."
            )


def export_hf_state(decoder: Decoder, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """The weights under Hugging Face names, detached; views where `dtype` is the decoder's.

    A view changes with the next optimizer step: whoever keeps it copies it.
    """
    state = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
    if dtype is not None:
        state = {name: tensor.to(dtype) for name, tensor in state.items()}
    return to_hf(decoder.spec, state)


def load_hf_state(decoder: Decoder, state: Mapping[str, Tensor]) -> None:
    """Copy weights of Hugging Face names into the decoder, in place, with its dtype and device.

    All or nothing: names and shapes are checked before the first copy; else ModelError.
    """
    wanted = decoder.spec.tensors(value_head=decoder.has_value_head)
    check_hf_state(wanted, {name: tuple(tensor.shape) for name, tensor in state.items()})
    with torch.no_grad():
        for name, target in export_hf_state(decoder).items():
            target.copy_(state[name])
