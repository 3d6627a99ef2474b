"""Choice of device, dtype and threads."""

from __future__ import annotations

import os

import pytest
import torch

from rledger.errors import ConfigError
from rledger.models.placement import choose_placement


def test_auto_follows_the_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert choose_placement().compute_dtype == torch.bfloat16
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    placement = choose_placement()
    assert (placement.device.type, placement.compute_dtype) == ("cpu", torch.float32)
    assert placement.threads == len(os.sched_getaffinity(0))


def test_what_is_asked_for_is_taken() -> None:
    placement = choose_placement("cpu", "bfloat16", 1)
    assert (placement.device.type, placement.compute_dtype, placement.threads) == (
        "cpu",
        torch.bfloat16,
        1,
    )


def test_threads_are_applied() -> None:
    before = torch.get_num_threads()
    try:
        choose_placement("cpu", threads=1).apply_threads()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_what_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=r"model\.device: 'cuda'.*0 CUDA devices.*auto"):
        choose_placement("cuda")
    with pytest.raises(ConfigError, match=r"model\.device: 'warp' is no torch device"):
        choose_placement("warp")
    with pytest.raises(ConfigError, match=r"model\.dtype: 'int3'"):
        choose_placement("cpu", "int3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        choose_placement("cpu", threads=0)
