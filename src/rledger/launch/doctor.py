"""What this machine offers a run, and what stands in its way."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Finding", "examine"]

_PACKAGES = ("torch", "transformers", "safetensors", "reasoning-gym", "math-verify", "ray", "vllm")
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact. `advice` is empty where nothing needs to be done."""

    what: str
    value: str
    advice: str = ""


def examine(run_root: Path) -> list[Finding]:
    """Facts about Python, packages, processor, memory, shared memory and disk, in that order."""
    return [
        Finding(what="rledger", value=importlib.metadata.version("rledger")),
        Finding(what="python", value=f"{platform.python_version()} ({sys.executable})"),
        *_packages(),
        *_processor(),
        *_torch(),
        _memory(),
        _space("shared memory", Path("/dev/shm"), 1.0),
        _space("disk for runs", run_root, 5.0),
    ]


def _packages() -> list[Finding]:
    findings = []
    for name in _PACKAGES:
        try:
            findings.append(Finding(what=name, value=importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            needed = name in ("torch", "transformers", "safetensors")
            advice = "training needs it: pip install 'rledger[train]'" if needed else ""
            findings.append(Finding(what=name, value="not installed", advice=advice))
    return findings


def _processor() -> list[Finding]:
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    name, flags = _cpuinfo()
    wanted = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    present = [flag for flag in wanted if flag in flags]
    fast = any(flag in flags for flag in ("avx512_bf16", "amx_bf16"))
    return [
        Finding(what="processor", value=f"{name}, {usable} of {os.cpu_count()} cores usable"),
        Finding(
            what="instruction sets",
            value=" ".join(present) or "none of " + " ".join(wanted),
            advice="" if fast else "no bfloat16 instructions: model.dtype auto computes in float32",
        ),
    ]


def _cpuinfo() -> tuple[str, set[str]]:
    path = Path("/proc/cpuinfo")
    name, flags = platform.processor() or platform.machine(), set[str]()
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() in ("flags", "Features"):
                flags |= set(value.split())
    return name, flags


def _torch() -> list[Finding]:
    inherited = [
        f"{name}={os.environ[name]}"
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
        if name in os.environ
    ]
    environment = Finding(
        what="environment",
        value=" ".join(inherited) or "sets no threads",
        advice="threads come from run.threads_per_role instead" if inherited else "",
    )
    try:
        import torch
    except ModuleNotFoundError:
        return [environment]
    devices = [
        f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())
    ]
    return [
        environment,
        Finding(what="torch threads", value=f"{torch.get_num_threads()} until a role sets its own"),
        Finding(what="devices", value=", ".join(devices) or "cpu only"),
    ]


def _memory() -> Finding:
    path = Path("/proc/meminfo")
    if not path.exists():
        return Finding(what="memory", value="unknown on this system")
    fields = dict(
        line.split(":", 1) for line in path.read_text(encoding="utf-8").splitlines() if ":" in line
    )
    total, free = (int(fields[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    advice = "" if free >= 3 * _GIB else "the demo needs 3 GiB"
    return Finding(
        what="memory", value=f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free", advice=advice
    )


def _space(what: str, path: Path, needed_gib: float) -> Finding:
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = shutil.disk_usage(path)
    advice = "" if usage.free >= needed_gib * _GIB else f"less than {needed_gib:.0f} GiB free"
    return Finding(
        what=what,
        value=f"{usage.free / _GIB:.1f} of {usage.total / _GIB:.1f} GiB free at {path}",
        advice=advice,
    )
