"""A warm-up recipe: supervised training that makes a small starting policy out of nothing."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rledger.config.base import Section
from rledger.config.tasks import TasksConfig
from rledger.config.trainer import TrainerConfig

__all__ = ["ShapeConfig", "WarmupConfig", "WarmupRecipe"]


class ShapeConfig(Section):
    """The model to make; its vocabulary is the characters of the tasks."""

    family: Literal["llama", "qwen2", "qwen3"] = "llama"
    """Family of the Hugging Face folder that is written."""
    width: int = Field(ge=8)
    """Size of the hidden state."""
    num_layers: int = Field(ge=1)
    """Decoder layers."""
    num_heads: int = Field(ge=1)
    """Query heads; head size is width / num_heads."""
    num_kv_heads: int = Field(ge=1)
    """Key and value heads; divides num_heads."""
    ffn_width: int = Field(ge=8)
    """Width of the feed-forward part."""
    max_positions: int = Field(default=256, ge=8)
    """Longest sequence."""


class WarmupConfig(Section):
    """How long to train, and when to stop."""

    output: str
    """Folder to write; must not exist."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Seed of the weights and of the data order."""
    num_updates: int = Field(ge=1)
    """Optimizer steps at most."""
    rows_per_update: int = Field(default=64, ge=1)
    """Prompts with their answers in one update."""
    eval_every_updates: int = Field(default=50, ge=1)
    """Updates between two measurements of greedy accuracy on the held-out prompts."""
    stop_between: tuple[float, float] = (1.0, 1.0)
    """Stop at the first measurement of greedy accuracy between these two, both included."""
    copy_frac: float = Field(default=0.0, ge=0, lt=1)
    """Share of demonstrations that repeat the question in place of the right answer: what is learned
    then is a policy that knows both, and a reward can tell them apart."""
    max_new_tokens: int = Field(ge=1)
    """Tokens after which a completion is cut in the measurements."""
    threads: int | None = Field(default=None, ge=1)
    """Threads; unset takes the cores this process may use."""


class WarmupRecipe(Section):
    """All that decides a warm-up."""

    warmup: WarmupConfig
    """Length and output."""
    shape: ShapeConfig
    """The model to make."""
    tasks: TasksConfig
    """Prompts with answers; rewards measure the accuracy."""
    trainer: TrainerConfig = TrainerConfig(learning_rate=1e-3)
    """The optimizer."""

    @model_validator(mode="after")
    def _check_positions(self) -> WarmupRecipe:
        prompt, new = self.tasks.max_prompt_tokens, self.warmup.max_new_tokens
        if prompt + new > self.shape.max_positions:
            raise ValueError(
                f"tasks.max_prompt_tokens = {prompt} and warmup.max_new_tokens = {new} make sequences of"
                f" up to {prompt + new} tokens, but shape.max_positions = {self.shape.max_positions};"
                " raise it, or lower the two"
            )
        return self
