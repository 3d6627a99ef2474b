"""[generator]: the engine that samples completions."""

from __future__ import annotations

from pydantic import Field

from rledger.config.base import Section

__all__ = ["GeneratorConfig"]


class GeneratorConfig(Section):
    """The native engine: continuous batching over a paged cache of keys and values."""

    max_running_requests: int = Field(default=128, ge=1)
    """Requests that are decoded together; more wait. In deterministic mode each step computes this many
    rows, used or not."""
    kv_cache_bytes: int = Field(default=2**30, ge=1)
    """Budget of the cache of keys and values. When it is full the youngest requests give their blocks
    back and are computed again later; none fails."""
    prefill_chunk_tokens: int = Field(default=1024, ge=16)
    """Prompt tokens that one forward pass computes at most, between two decode steps."""
