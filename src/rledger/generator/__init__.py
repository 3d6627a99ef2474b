"""Prompt tokens in; completion tokens, log-probabilities and version spans out. Native engine and fake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rledger.books import Lane
    from rledger.config.generator import GeneratorConfig
    from rledger.generator.native import NativeGenerator
    from rledger.models.decoder import Decoder
    from rledger.models.placement import Placement

__all__ = ["build_generator"]


def build_generator(
    config: GeneratorConfig,
    model: str | Path | Decoder,
    *,
    placement: Placement,
    lane: Lane,
    decode: Callable[[Sequence[int]], str] | None = None,
    deterministic: bool = False,
) -> NativeGenerator:
    """The native engine for a Hugging Face folder or a decoder.

    Of a folder only config.json is read: the weights come with the first `load_weights`. A decoder's
    weights are taken at once, as policy version 0. `decode` turns token ids into text, for stop strings.
    """
    # Here and not above: the fake lives in this package and must not bring torch along.
    from rledger.generator.engine import Engine
    from rledger.generator.native import NativeGenerator
    from rledger.models.decoder import Decoder
    from rledger.models.names import export_hf_state
    from rledger.modelspec import load_spec

    spec = model.spec if isinstance(model, Decoder) else load_spec(model)
    engine = Engine(
        spec,
        config,
        placement=placement,
        lane=lane,
        decode=decode,
        deterministic=deterministic,
    )
    if isinstance(model, Decoder):
        engine.load_weights(export_hf_state(model), policy_version=0)
    return NativeGenerator(engine)
