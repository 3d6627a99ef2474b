"""[trainer]: optimizer, micro-batches, memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from rledger.config.base import Section

__all__ = ["CriticConfig", "OptimizerConfig", "Schedule", "TrainerConfig"]

Schedule = Literal["constant", "linear", "cosine"]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class OptimizerConfig(Section):
    """AdamW (https://arxiv.org/abs/1711.05101) and its learning rate over the run."""

    learning_rate: NonNegativeFloat = 1e-6
    """Learning rate after the warm-up."""
    schedule: Schedule = "constant"
    """What follows the warm-up: constant, or linear or cosine down to min_lr_frac at the end of the run."""
    warmup_updates: NonNegativeInt = 0
    """Updates over which the learning rate rises linearly from 0."""
    min_lr_frac: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Share of the learning rate that a decaying schedule ends at."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay of matrices; norms and biases have none."""
    beta1: Decay = 0.9
    """Decay of the running mean of the gradient."""
    beta2: Decay = 0.999
    """Decay of the running mean of its square."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the running square."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Longer gradients are scaled down to this norm; none never scales."""


class CriticConfig(OptimizerConfig):
    """The critic's own optimizer. A critic starts as the policy with a value head of zeros."""

    learning_rate: NonNegativeFloat = 1e-5
    """Learning rate of the critic after the warm-up."""


class TrainerConfig(OptimizerConfig):
    """How the policy, and a critic where there is one, learn. The optimizer here is the policy's."""

    num_updates_per_step: PositiveInt = 1
    """Optimizer steps that the groups of a step are divided among."""
    micro_batch_tokens: PositiveInt = 4096
    """Tokens computed at once, a prompt counted once for the completions that share it. It bounds
    memory and changes no gradient."""
    activation_checkpointing: bool = False
    """Keep only each layer's input and compute the rest again: less memory, a quarter more work."""
    critic: CriticConfig = CriticConfig()
    """The critic, for advantages that need one."""
