"""Models made from nothing: for tests, benchmarks, and policies that begin untrained."""

from __future__ import annotations

from pathlib import Path

import torch

from rledger.models.checkpoint import save_decoder
from rledger.models.decoder import Decoder
from rledger.modelspec import ModelSpec

__all__ = ["initialize", "random_decoder", "write_random_model"]

INIT_STD = 0.02  # transformers' `initializer_range`


def initialize(decoder: Decoder, seed: int) -> None:
    """Fill every weight: matrices normal with standard deviation 0.02, norms 1, biases 0.

    What is drawn depends on seed and shapes alone, on every device and in every dtype.
    """
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.dim() == 2:
                drawn = torch.empty(parameter.shape, dtype=torch.float32).normal_(
                    0.0, INIT_STD, generator=source
                )
                parameter.copy_(drawn)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def random_decoder(
    spec: ModelSpec,
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    value_head: bool = False,
) -> Decoder:
    """A decoder with the weights that `initialize` draws."""
    decoder = Decoder(spec, value_head=value_head, dtype=dtype, device=device)
    initialize(decoder, seed)
    return decoder


def write_random_model(
    folder: str | Path, spec: ModelSpec, seed: int, *, dtype: torch.dtype = torch.float32
) -> None:
    """Write a Hugging Face folder of random weights; the caller adds a tokenizer if need be."""
    save_decoder(random_decoder(spec, seed, dtype=dtype), folder)
