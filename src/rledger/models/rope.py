"""Rotary position embeddings and their scaling variants.

Legend for shapes: T tokens, M positions of the table, H head size.

Formulas: RoFormer (arXiv 2104.09864), Llama 3.1 for `llama3`, YaRN (arXiv 2309.00071). Features i
and i + H/2 form a pair, as in Hugging Face checkpoints.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from rledger.modelspec import LinearScaling, Llama3Scaling, ModelSpec, RopeScaling, YarnScaling

__all__ = ["inverse_frequencies", "rotary_table"]


def inverse_frequencies(
    theta: float, head_size: int, scaling: RopeScaling | None
) -> tuple[Tensor, float]:
    """[H/2] radians a position, float32 on the CPU, and the factor on cosine and sine."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device="cpu") / head_size
    plain = 1.0 / theta**exponents
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor, 1.0
    if isinstance(scaling, Llama3Scaling):
        return _llama3(plain, scaling), 1.0
    if isinstance(scaling, YarnScaling):
        return _yarn(theta, head_size, scaling)
    return plain, 1.0


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelength = 2 * math.pi / plain
    longest = scaling.original_max_position_embeddings / scaling.low_freq_factor
    shortest = scaling.original_max_position_embeddings / scaling.high_freq_factor
    rotations = scaling.original_max_position_embeddings / wavelength
    band = scaling.high_freq_factor - scaling.low_freq_factor
    keep = (rotations - scaling.low_freq_factor) / band
    blended = (1 - keep) * plain / scaling.factor + keep * plain
    scaled = torch.where(wavelength > longest, plain / scaling.factor, blended)
    return torch.where(wavelength < shortest, plain, scaled)


def _yarn(theta: float, head_size: int, scaling: YarnScaling) -> tuple[Tensor, float]:
    def dimension(rotations: float) -> float:
        """Feature pair that turns `rotations` times over the original context."""
        turns = scaling.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_size * math.log(turns) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    if low == high:
        high += 0.001
    pairs = torch.arange(head_size // 2, dtype=torch.float32, device="cpu")
    interpolate = ((pairs - low) / (high - low)).clamp(0, 1)
    wavelengths = theta ** (
        torch.arange(0, head_size, 2, dtype=torch.float32, device="cpu") / head_size
    )
    stretched = 1.0 / (scaling.factor * wavelengths)
    frequencies = stretched * interpolate + (1.0 / wavelengths) * (1 - interpolate)
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return frequencies, factor


def rotary_table(spec: ModelSpec, device: torch.device) -> tuple[Tensor, Tensor]:
    """[M, H] cosine and signed sine of every position below `spec.max_positions`, float32.

    A table instead of cosines on the fly: the bits of a row must not depend on how many there are.
    """
    key = (spec.rope_theta, spec.head_size, spec.rope_scaling, spec.max_positions)
    return _table(*key, device)


@lru_cache(maxsize=8)
def _table(
    theta: float, head_size: int, scaling: RopeScaling | None, positions: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False), torch.no_grad():
        frequencies, factor = inverse_frequencies(theta, head_size, scaling)
        angles = torch.arange(positions, dtype=torch.float32, device="cpu")[:, None] * frequencies
        cos, sin = angles.cos() * factor, angles.sin() * factor
        signed = torch.cat((-sin, sin), dim=1)
        return torch.cat((cos, cos), dim=1).to(device), signed.to(device)
