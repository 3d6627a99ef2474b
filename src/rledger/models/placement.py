"""The one place that chooses device, dtype and threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch

from rledger.errors import ConfigError

__all__ = ["DTYPES", "Placement", "choose_placement"]

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a role computes: its device, the dtype of its matmuls, its CPU threads."""

    device: torch.device
    compute_dtype: torch.dtype
    threads: int

    def apply_threads(self) -> None:
        """Set torch's intra-op threads of the process; a role calls it before it computes."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)


def choose_placement(
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    threads: int | None = None,
) -> Placement:
    """Resolve "auto": CUDA where there is one; bfloat16 where the hardware multiplies it natively.

    `threads` None takes the CPUs that this process may run on. Raises ConfigError for a device that
    torch does not see, an unknown dtype, or fewer than one thread.
    """
    chosen = _device(device)
    if dtype == "auto":
        compute_dtype = torch.bfloat16 if _multiplies_bfloat16(chosen) else torch.float32
    elif dtype in DTYPES:
        compute_dtype = DTYPES[dtype]
    else:
        raise ConfigError(
            f"model.dtype: {dtype!r} is unknown; use 'auto' or one of {', '.join(DTYPES)}."
        )
    if threads is None:
        threads = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, found {threads}.")
    return Placement(device=chosen, compute_dtype=compute_dtype, threads=threads)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"model.device: {name!r} is no torch device; use 'auto', 'cpu' or 'cuda'."
        ) from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"model.device: {name!r} was asked for, but torch sees "
            f"{torch.cuda.device_count()} CUDA devices. "
            "Use 'auto' or 'cpu', or install a CUDA build of torch."
        )
    return device


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        abilities = torch.cpu.get_capabilities()
        return any(abilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
    return False
