"""The trainer's part of a checkpoint: master weights, moments and counters, to the bit.

state.json             format, policy_version, num_updates_done
weights.safetensors    masters, by the decoder's parameter names
optimizer.safetensors  mean.<name> and square.<name>

The folder's own atomicity is the caller's; here every file is flushed before the call returns.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rledger.errors import CheckpointError
from rledger.trainer.optimizer import MasterWeights

__all__ = ["load_state", "save_state"]

_FORMAT = 1


def save_state(folder: Path, weights: MasterWeights, policy_version: int) -> None:
    """Write the three files. Raises CheckpointError when the disk refuses."""
    state = {
        "format": _FORMAT,
        "policy_version": policy_version,
        "num_updates_done": weights.num_updates_done,
    }
    try:
        _save_tensors(weights.masters, folder / "weights.safetensors")
        _save_tensors(_moments(weights), folder / "optimizer.safetensors")
        (folder / "state.json").write_text(json.dumps(state) + "\n", encoding="utf-8")
        _flush(folder / "state.json")
        _flush(folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder}: the trainer's state could not be written ({error}); the checkpoint before it"
            " is untouched. Free disk space and resume"
        ) from error


def load_state(folder: Path, weights: MasterWeights) -> int:
    """Read the three files into `weights`, in place; the policy version comes back.

    All or nothing: names and shapes are checked before the first copy. Raises CheckpointError.
    """
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        masters = load_file(folder / "weights.safetensors")
        moments = load_file(folder / "optimizer.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder}: the trainer's state cannot be read ({error}); resume from an earlier checkpoint"
        ) from error
    if state["format"] != _FORMAT:
        raise CheckpointError(
            f"{folder} has format {state['format']}, this version reads {_FORMAT}; use the RLedger"
            " that wrote it"
        )
    for found, wanted in ((masters, weights.masters), (moments, _moments(weights))):
        _check(folder, found, wanted)
    with torch.no_grad():
        for found, wanted in ((masters, weights.masters), (moments, _moments(weights))):
            for name, target in wanted.items():
                target.copy_(found[name])
    weights.num_updates_done = int(state["num_updates_done"])
    weights.drop_gradient()
    weights.write_back()
    return int(state["policy_version"])


def _moments(weights: MasterWeights) -> dict[str, Tensor]:
    means = {f"mean.{name}": tensor for name, tensor in weights.means.items()}
    return means | {f"square.{name}": tensor for name, tensor in weights.squares.items()}


def _check(folder: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    for name in sorted({*found, *wanted}):
        shapes = [tuple(t[name].shape) if name in t else None for t in (found, wanted)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(
                f"{folder}: tensor {name} has shape {shapes[0]} there and {shapes[1]} in this model;"
                " the checkpoint belongs to another model: resume with its recipe"
            )


def _save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu() for name, tensor in tensors.items()}, path)
    _flush(path)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
