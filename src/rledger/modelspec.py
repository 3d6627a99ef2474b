"""A model's config.json as a typed description and a table of its tensors. No torch.

Legend for shapes: V vocabulary, D width, L layers, N query heads, K key/value heads, H head size,
F width of the feed-forward part.

Reads the layout of transformers 5 (`rope_parameters`, `dtype`) and the one before it (`rope_theta`,
`rope_scaling`, `torch_dtype`). Missing keys take the defaults of the family's transformers class.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rledger.errors import ModelError

__all__ = [
    "FAMILIES",
    "DynamicScaling",
    "Family",
    "LinearScaling",
    "Llama3Scaling",
    "ModelSpec",
    "RopeScaling",
    "TensorKind",
    "TensorSpec",
    "YarnScaling",
    "load_spec",
    "read_json",
    "spec_from_config",
]

Family = Literal["llama", "qwen2", "qwen3"]
FAMILIES: dict[Family, str] = {
    "llama": "Llama (SmolLM2 is one)",
    "qwen2": "Qwen2 and Qwen2.5",
    "qwen3": "Qwen3 dense",
}

TensorKind = Literal[
    "embedding",
    "attention_norm",
    "q",
    "k",
    "v",
    "q_norm",
    "k_norm",
    "attention_out",
    "mlp_norm",
    "gate",
    "up",
    "down",
    "final_norm",
    "head",
    "value_head",
]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK scaling that begins past `max_positions`, which we never leave: here it changes nothing.

    Beyond that length a token's rotation would depend on how long its sequence becomes later, so a
    generator with a cache and a trainer without one could not agree.
    """

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths divided by `factor`, short ones kept, the band between them blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): a ramp from extrapolation to interpolation, sharper attention.

    `attention_factor` None means 0.1 ln(factor) + 1.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


RopeScaling: TypeAlias = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling

_SCALINGS: dict[str, type[RopeScaling]] = {
    "linear": LinearScaling,
    "dynamic": DynamicScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a checkpoint under its Hugging Face name; a bias has the kind of its matrix."""

    name: str
    shape: tuple[int, ...]
    kind: TensorKind
    layer: int | None  # None outside the layers

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_bias(self) -> bool:
        return self.name.endswith(".bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What a decoder is made of. Two models of equal spec differ in their weights alone."""

    family: Family
    vocab_size: int  # V
    width: int  # D
    num_layers: int  # L
    num_heads: int  # N
    num_kv_heads: int  # K
    head_size: int  # H
    ffn_width: int  # F
    max_positions: int  # a position is below it
    rms_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    tied_embeddings: bool = False
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    @property
    def q_width(self) -> int:
        """N * H, features of all queries of a token."""
        return self.num_heads * self.head_size

    @property
    def kv_width(self) -> int:
        """K * H, features of all keys (or all values) of a token."""
        return self.num_kv_heads * self.head_size

    def tensors(self, *, value_head: bool = False) -> tuple[TensorSpec, ...]:
        """The tensors of a checkpoint, in the order of transformers' state dict.

        Tied embeddings stand once, as the embedding. With `value_head` the language-model head
        gives way to transformers' token classification head of one label (`score`).
        """
        table = [
            TensorSpec(
                "model.embed_tokens.weight", (self.vocab_size, self.width), "embedding", None
            )
        ]
        for layer in range(self.num_layers):
            table += self._layer_tensors(layer)
        table.append(TensorSpec("model.norm.weight", (self.width,), "final_norm", None))
        if value_head:
            table.append(TensorSpec("score.weight", (1, self.width), "value_head", None))
            table.append(TensorSpec("score.bias", (1,), "value_head", None))
        elif not self.tied_embeddings:
            table.append(TensorSpec("lm_head.weight", (self.vocab_size, self.width), "head", None))
        return tuple(table)

    def num_parameters(self, *, value_head: bool = False) -> int:
        """Elements of all tensors, tied embeddings once."""
        return sum(tensor.size for tensor in self.tensors(value_head=value_head))

    @property
    def num_matmul_parameters(self) -> int:
        """Weights that a token is multiplied with on its way to logits; the embedding only as head.

        Twice this number is the FLOPs of a token's forward pass without attention.
        """
        outside = ("embedding", "head", "value_head")
        inside = sum(t.size for t in self.tensors() if len(t.shape) == 2 and t.kind not in outside)
        return inside + self.vocab_size * self.width

    def _layer_tensors(self, layer: int) -> list[TensorSpec]:
        width, q_width, kv_width = self.width, self.q_width, self.kv_width
        table: list[TensorSpec] = []

        def linear(name: str, kind: TensorKind, rows: int, columns: int, bias: bool) -> None:
            path = f"model.layers.{layer}.{name}"
            table.append(TensorSpec(f"{path}.weight", (rows, columns), kind, layer))
            if bias:
                table.append(TensorSpec(f"{path}.bias", (rows,), kind, layer))

        def norm(name: str, kind: TensorKind, size: int) -> None:
            table.append(TensorSpec(f"model.layers.{layer}.{name}.weight", (size,), kind, layer))

        linear("self_attn.q_proj", "q", q_width, width, self.qkv_bias)
        linear("self_attn.k_proj", "k", kv_width, width, self.qkv_bias)
        linear("self_attn.v_proj", "v", kv_width, width, self.qkv_bias)
        linear("self_attn.o_proj", "attention_out", width, q_width, self.attention_out_bias)
        if self.qk_norm:
            norm("self_attn.q_norm", "q_norm", self.head_size)
            norm("self_attn.k_norm", "k_norm", self.head_size)
        linear("mlp.gate_proj", "gate", self.ffn_width, width, self.mlp_bias)
        linear("mlp.up_proj", "up", self.ffn_width, width, self.mlp_bias)
        linear("mlp.down_proj", "down", width, self.ffn_width, self.mlp_bias)
        norm("input_layernorm", "attention_norm", width)
        norm("post_attention_layernorm", "mlp_norm", width)
        return table

    def to_config(self, dtype: str = "float32") -> dict[str, Any]:
        """A config.json of this model, in the layout that transformers 4 and 5 both read."""
        names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
        scaling: dict[str, Any] | None = None
        if self.rope_scaling is not None:
            kind = next(name for name, cls in _SCALINGS.items() if type(self.rope_scaling) is cls)
            fields = asdict(self.rope_scaling).items()
            scaling = {"rope_type": kind} | {k: v for k, v in fields if v is not None}
        eos = self.eos_token_ids
        config: dict[str, Any] = {
            "architectures": [f"{names[self.family]}ForCausalLM"],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.width,
            "intermediate_size": self.ffn_width,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_size,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.rms_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": scaling,
            "tie_word_embeddings": self.tied_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos[0] if len(eos) == 1 else list(eos) or None,
            "pad_token_id": self.pad_token_id,
            "torch_dtype": dtype,
        }
        if self.family != "qwen2":
            config["attention_bias"] = self.qkv_bias
        if self.family == "llama":
            config["mlp_bias"] = self.mlp_bias
        return config


def load_spec(folder: str | Path) -> ModelSpec:
    """The spec of a Hugging Face folder: config.json and the stop tokens of generation_config.json.

    Raises ModelError, naming folder or key, when there is no such model or its family is unknown.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(
            f"{folder}: no such model folder. Set model.path to a local Hugging Face folder, "
            "or fetch one with `rledger model get smollm2-135m`."
        )
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder}: not a Hugging Face model folder, it has no config.json. "
            "Point model.path at the folder that holds config.json and *.safetensors."
        )
    config = read_json(path)
    generation = folder / "generation_config.json"
    extra = _token_ids(read_json(generation).get("eos_token_id")) if generation.is_file() else ()
    return spec_from_config(config, where=str(path), extra_eos_token_ids=extra)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises ModelError when it is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read as JSON ({error}). Fetch the model again."
        ) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: holds no JSON object. Fetch the model again.")
    return value


def spec_from_config(
    config: Mapping[str, Any],
    *,
    where: str = "config.json",
    extra_eos_token_ids: tuple[int, ...] = (),
) -> ModelSpec:
    """The spec of a parsed config.json; `where` names it in errors.

    Raises ModelError for an unknown family and for every feature that the decoder does not have.
    """
    reader = _ConfigReader(config, where)
    family = reader.family()
    reader.refuse_unsupported()
    num_heads = reader.integer("num_attention_heads")
    width = reader.integer("hidden_size")
    # Qwen3's class fixes the head size; the others derive it.
    head_size = reader.integer("head_dim", 128 if family == "qwen3" else width // num_heads)
    num_kv_heads = reader.integer("num_key_value_heads", num_heads if family == "llama" else None)
    if num_heads % num_kv_heads != 0:
        reader.fail(
            "num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads {num_heads}"
        )
    if head_size % 2 != 0:
        reader.fail("head_dim", f"{head_size} is odd; rotary embeddings need pairs of features")
    max_positions = reader.integer("max_position_embeddings", 2048 if family == "llama" else 32768)
    rope_theta, rope_scaling = reader.rope(max_positions)
    if isinstance(rope_scaling, YarnScaling):
        stretched = rope_scaling.original_max_position_embeddings * rope_scaling.factor
        max_positions = max(max_positions, int(stretched))
    attention_bias = bool(config.get("attention_bias", False)) and family != "qwen2"
    is_llama = family == "llama"
    eos = _token_ids(config.get("eos_token_id", 2 if is_llama else None))
    return ModelSpec(
        family=family,
        vocab_size=reader.integer("vocab_size"),
        width=width,
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        ffn_width=reader.integer("intermediate_size"),
        max_positions=max_positions,
        rms_eps=reader.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=attention_bias or family == "qwen2",
        attention_out_bias=attention_bias,
        mlp_bias=is_llama and bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        bos_token_id=config.get("bos_token_id", 1 if is_llama else None),
        eos_token_ids=tuple(dict.fromkeys(eos + extra_eos_token_ids)),
        pad_token_id=config.get("pad_token_id"),
    )


class _ConfigReader:
    """Typed access to a config.json; each failure names file and key."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where

    def fail(self, key: str, problem: str) -> None:
        raise ModelError(f"{self.where}: {key}: {problem}.")

    def family(self) -> Family:
        name = self.config.get("model_type")
        for family in FAMILIES:
            if name == family:
                return family
        known = "; ".join(f"{family} = {title}" for family, title in FAMILIES.items())
        raise ModelError(
            f"{self.where}: model_type {name!r} is not a supported family. Supported: {known}. "
            "Set model.path to a folder of one of these."
        )

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.config.get(key)
        if value is None:
            value = default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{self.where}: {key} must be a positive integer, found {value!r}.")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.config.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ModelError(f"{self.where}: {key} must be a positive number, found {value!r}.")
        return float(value)

    def refuse_unsupported(self) -> None:
        config = self.config
        if config.get("hidden_act", "silu") != "silu":
            self.fail("hidden_act", f"{config['hidden_act']!r} is not supported, only 'silu' is")
        if config.get("quantization_config") is not None:
            self.fail(
                "quantization_config",
                "quantised weights cannot be trained; use the original folder",
            )
        layer_types = config.get("layer_types") or []
        windowed = config.get("use_sliding_window") and config.get("sliding_window") is not None
        if any(kind != "full_attention" for kind in layer_types) or (windowed and not layer_types):
            self.fail(
                "use_sliding_window", "sliding-window attention is not supported; set it to false"
            )
        partial = config.get("partial_rotary_factor")
        if partial not in (None, 1, 1.0):
            self.fail("partial_rotary_factor", f"{partial!r} is not supported, only 1.0 is")

    def rope(self, max_positions: int) -> tuple[float, RopeScaling | None]:
        """Base and scaling; `rope_scaling` of the older layout wins where both are given."""
        key = "rope_scaling" if self.config.get("rope_scaling") else "rope_parameters"
        table = dict(self.config.get(key) or {})
        kind = table.pop("rope_type", table.get("type", "default"))
        table.pop("type", None)
        theta = float(table.pop("rope_theta", self.number("rope_theta", 10_000.0)))
        if table.pop("partial_rotary_factor", 1.0) != 1.0:
            self.fail(f"{key}.partial_rotary_factor", "only 1.0 is supported")
        if kind == "default":
            return theta, None
        if kind not in _SCALINGS:
            known = ", ".join(["default", *_SCALINGS])
            self.fail(f"{key}.rope_type", f"{kind!r} is not supported; supported are {known}")
        scaling = _SCALINGS[kind]
        fields = {name: value for name, value in table.items() if value is not None}
        known_fields = scaling.__dataclass_fields__
        if "original_max_position_embeddings" in known_fields:
            fields.setdefault("original_max_position_embeddings", max_positions)
        else:
            # transformers leaves the key in the table where it means nothing
            fields.pop("original_max_position_embeddings", None)
        for name, value in fields.items():
            if name not in known_fields:
                self.fail(
                    f"{key}.{name}",
                    f"unknown for rope_type {kind!r}; known: {', '.join(known_fields)}",
                )
            if not isinstance(value, int | float):
                self.fail(f"{key}.{name}", f"must be a number, found {value!r}")
        try:
            return theta, scaling(**fields)
        except TypeError as error:
            raise ModelError(
                f"{self.where}: {key} (rope_type {kind!r}) lacks a key: {error}."
            ) from error


def _token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
