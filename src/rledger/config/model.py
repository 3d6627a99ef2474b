"""[model]: which weights, where and in what precision."""

from __future__ import annotations

from typing import Literal

from rledger.config.base import Section

__all__ = ["ModelConfig"]


class ModelConfig(Section):
    """The model that is trained, and where its arithmetic happens."""

    path: str
    """Local Hugging Face folder of a supported family (Llama, Qwen2/2.5, Qwen3 dense)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of matrix products; "auto" is bfloat16 where the hardware multiplies it natively,
    else float32. Master weights are float32 either way."""
    device: str = "auto"
    """Torch device such as "cpu" or "cuda"; "auto" is CUDA where there is one, else the CPU."""
