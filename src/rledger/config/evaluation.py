"""The table `[evaluation]`: when and how the policy is measured on held-out prompts."""

from __future__ import annotations

from pydantic import Field, model_validator

from rledger.config.base import Section

__all__ = ["EvaluationConfig"]


class EvaluationConfig(Section):
    """Held-out evaluation; greedy by default, so that one completion a prompt says it all."""

    every_steps: int = Field(default=0, ge=0)
    """Evaluate after each so many steps and after the last; 0 only after the last."""
    before_training: bool = True
    """Also evaluate the policy that training starts from."""
    num_prompts: int | None = Field(default=None, ge=1)
    """Held-out prompts used of each task, the first so many; unset takes all."""
    samples_per_prompt: int = Field(default=1, ge=1)
    """Completions per prompt; more than one needs a temperature above 0."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Keep the smallest set of tokens whose probabilities reach this sum."""
    max_new_tokens: int | None = Field(default=None, ge=1)
    """Tokens after which a completion is cut; unset takes that of training."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Coverage of the bootstrap interval over prompts."""

    @model_validator(mode="after")
    def _check_samples(self) -> EvaluationConfig:
        if self.samples_per_prompt > 1 and self.temperature == 0:
            raise ValueError(
                f"samples_per_prompt = {self.samples_per_prompt} greedy completions are all the "
                "same; set a temperature above 0 or samples_per_prompt = 1"
            )
        return self
