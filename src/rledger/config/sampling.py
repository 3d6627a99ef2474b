"""How the training rollouts are sampled."""

from __future__ import annotations

from pydantic import Field

from rledger.config.base import Section
from rledger.types import SamplingParams

__all__ = ["SamplingConfig"]


class SamplingConfig(Section):
    """Sampling of training rollouts. The trainer applies the same temperature to its log-probabilities."""

    max_new_tokens: int = Field(ge=1)
    """Tokens after which a completion is cut (`finish_reason` "length")."""
    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits; rollouts must explore, so 0 (greedy) is for evaluation only."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the smallest set of tokens whose probabilities reach this sum."""
    top_k: int = Field(default=0, ge=0)
    """Keep this many most likely tokens; 0 keeps all."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Drop tokens less likely than this fraction of the most likely one."""
    stop_strings: tuple[str, ...] = ()
    """Text that ends a completion, besides the model's own end-of-turn token."""

    def params(self, stop_token_ids: tuple[int, ...]) -> SamplingParams:
        """The parameters that a request carries."""
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            stop_token_ids=stop_token_ids,
            stop_strings=self.stop_strings,
        )
