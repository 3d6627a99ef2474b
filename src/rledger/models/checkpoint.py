"""Hugging Face folders, in and out: config.json, safetensors (sharded when large), tokenizer files.

Reading checks every name and shape before the first weight is copied. Writing is atomic: the folder
appears whole, under its name, or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rledger.errors import CheckpointError, ModelError
from rledger.models.decoder import Decoder
from rledger.models.names import (
    check_hf_state,
    export_hf_state,
    from_hf,
    load_hf_state,
    to_hf,
)
from rledger.modelspec import ModelSpec, TensorSpec, load_spec, read_json

__all__ = [
    "COMPANION_FILES",
    "INDEX_NAME",
    "atomic_folder",
    "export_hf_state",
    "from_hf",
    "load_decoder",
    "load_hf_state",
    "save_decoder",
    "save_state",
    "to_hf",
    "write_json",
    "write_model",
]

INDEX_NAME = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000
# What a folder needs besides config.json and weights, as transformers names it.
COMPANION_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def load_decoder(
    folder: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    value_head: bool = False,
) -> Decoder:
    """The decoder of a Hugging Face folder, its weights converted to `dtype` on `device`.

    With `value_head` the language-model head is left out; a value head (`score`) that the folder
    lacks starts at zero, so that the critic's first values are 0. Raises ModelError, naming file
    and tensor.
    """
    folder = Path(folder)
    spec = load_spec(folder)
    files = _weight_files(folder)
    wanted = spec.tensors(value_head=value_head)
    sources: dict[str, tuple[Path, tuple[int, ...]]] = {}
    for path in files:
        sources.update(_read_shapes(path))
    if not value_head and "score.weight" in sources:
        raise ModelError(
            f"{sources['score.weight'][0]}: tensor score.weight is a value head: this is a critic. "
            "Use the folder of a language model."
        )
    fresh_value_head = value_head and "score.weight" not in sources
    if fresh_value_head:
        wanted = tuple(tensor for tensor in wanted if tensor.kind != "value_head")
    ignored = _ignored(spec, value_head)
    found = {name: shape for name, (_, shape) in sources.items() if name not in ignored}
    found = {
        name: shape for name, shape in found.items() if not name.endswith("rotary_emb.inv_freq")
    }
    _check(wanted, found, sources, folder)
    decoder = Decoder(spec, value_head=value_head, dtype=dtype, device=device)
    targets = export_hf_state(decoder)
    with torch.no_grad():
        for path in files:
            _copy_file(path, targets, found)
        if fresh_value_head:
            targets["score.weight"].zero_()
            targets["score.bias"].zero_()
    return decoder


def _ignored(spec: ModelSpec, value_head: bool) -> tuple[str, ...]:
    """Tensors that a folder may hold and this decoder has no use for."""
    # Some writers store the tied head a second time; transformers ties it as we do.
    return ("lm_head.weight",) if value_head or spec.tied_embeddings else ()


def _check(
    wanted: tuple[TensorSpec, ...],
    found: Mapping[str, tuple[int, ...]],
    sources: Mapping[str, tuple[Path, tuple[int, ...]]],
    folder: Path,
) -> None:
    """check_hf_state, tensor by tensor of each file, so that the message names the file."""
    by_name = {tensor.name: tensor for tensor in wanted}
    for name, shape in found.items():
        tensor = by_name.get(name)
        if tensor is None or tensor.shape != shape:
            one = () if tensor is None else (tensor,)
            check_hf_state(one, {name: shape}, where=str(sources[name][0]))
    check_hf_state(wanted, found, where=str(folder))


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{index}: has no weight_map. Fetch the model again.")
        files = [folder / name for name in sorted(set(weight_map.values()))]
        for path in files:
            if not path.is_file():
                raise ModelError(
                    f"{path}: named by {INDEX_NAME} but missing. Fetch the model again."
                )
        return files
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    foreign = sorted(
        path.name for pattern in ("*.bin", "*.gguf", "*.pt") for path in folder.glob(pattern)
    )
    holds = (
        f" It holds {', '.join(foreign[:3])}, which is not read: convert it to safetensors."
        if foreign
        else ""
    )
    raise ModelError(
        f"{folder}: has no model.safetensors and no {INDEX_NAME}.{holds} Fetch the model again."
    )


def _read_shapes(path: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: (path, tuple(file.get_slice(name).get_shape())) for name in names}
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{path}: no readable safetensors file ({error}). Fetch the model again."
        ) from error


def _copy_file(
    path: Path, targets: Mapping[str, Tensor], found: Mapping[str, tuple[int, ...]]
) -> None:
    with safe_open(path, framework="pt") as file:
        names = file.keys()
        for name in names:
            if name not in found:
                continue
            tensor = file.get_tensor(name)
            if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
                raise ModelError(
                    f"{path}: tensor {name} is {tensor.dtype}; "
                    "quantised weights cannot be trained. Use the model's float32 or bfloat16 folder."
                )
            targets[name].copy_(tensor)


def save_decoder(
    decoder: Decoder,
    folder: str | Path,
    *,
    source_folder: str | Path | None = None,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write the decoder as a Hugging Face folder that transformers loads; see `save_state`.

    A critic becomes a token classifier of one label (`<Family>ForTokenClassification`).
    """
    save_state(
        decoder.spec,
        export_hf_state(decoder, dtype),
        folder,
        source_folder=source_folder,
        max_shard_bytes=max_shard_bytes,
    )


def save_state(
    spec: ModelSpec,
    state: Mapping[str, Tensor],
    folder: str | Path,
    *,
    source_folder: str | Path | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write tensors of Hugging Face names as a Hugging Face folder.

    config.json, tokenizer and generation settings come from `source_folder`, the folder that the
    model was loaded from; without one, config.json is made from the spec and there is no tokenizer.
    Raises what `atomic_folder` raises.
    """
    with atomic_folder(folder) as building:
        write_model(
            spec, state, building, source_folder=source_folder, max_shard_bytes=max_shard_bytes
        )


def write_model(
    spec: ModelSpec,
    state: Mapping[str, Tensor],
    folder: Path,
    *,
    source_folder: str | Path | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Fill a folder that exists, as `save_state` does, without its atomicity."""
    check_hf_state(
        spec.tensors(value_head="score.weight" in state),
        {name: tuple(tensor.shape) for name, tensor in state.items()},
    )
    source = None if source_folder is None else Path(source_folder)
    config = _config(spec, state, source)
    write_json(folder / "config.json", config)
    if source is None:
        keys = ("bos_token_id", "eos_token_id", "pad_token_id")
        write_json(folder / "generation_config.json", {key: config[key] for key in keys})
    else:
        _copy_companions(source, folder)
    _write_weights(state, folder, max_shard_bytes)


@contextmanager
def atomic_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to fill: it takes the name `folder` when the block ends, or vanishes if that raises.

    Raises ModelError when `folder` exists and holds anything, CheckpointError when the disk
    refuses.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(
            f"{folder}: exists and is not empty; nothing was written over. Choose another folder."
        )
    building = folder.with_name(f".{folder.name}.building-{os.getpid()}")
    try:
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        yield building
        for path in building.iterdir():
            _sync(path)
        os.replace(building, folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder}: the model could not be written ({error}); nothing was left behind. "
            "Free disk space or choose another folder."
        ) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _config(spec: ModelSpec, state: Mapping[str, Tensor], source: Path | None) -> dict[str, Any]:
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    config = spec.to_config(dtype)
    if source is not None:
        if load_spec(source) != spec:
            raise ModelError(f"{source}: describes another model than the one to be saved.")
        architecture = config["architectures"]
        config = read_json(source / "config.json") | {"architectures": architecture}
        config["dtype" if "dtype" in config else "torch_dtype"] = dtype
    if "score.weight" in state:
        config["architectures"] = [
            name.replace("CausalLM", "TokenClassification") for name in config["architectures"]
        ]
        config["id2label"], config["label2id"] = {"0": "value"}, {"value": 0}
    return config


def _copy_companions(source: Path, target: Path) -> None:
    for name in COMPANION_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _write_weights(state: Mapping[str, Tensor], folder: Path, max_shard_bytes: int) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    filled_bytes = 0
    for name, tensor in state.items():
        if shards[-1] and filled_bytes + tensor.nbytes > max_shard_bytes:
            shards.append({})
            filled_bytes = 0
        shards[-1][name] = tensor.detach().cpu().contiguous()
        filled_bytes += tensor.nbytes
    if len(shards) == 1:
        save_file(shards[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, name))
    total_bytes = sum(tensor.nbytes for tensor in state.values())
    write_json(
        folder / INDEX_NAME, {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    )


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object, indented, as transformers lays its files out."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _sync(path: Path) -> None:
    """Flush a file or folder to the disk: a rename alone does not order the data before it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
