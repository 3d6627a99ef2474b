"""The learning rate as a function of the update's number alone, so that nothing need be saved."""

from __future__ import annotations

import math

from rledger.config.trainer import OptimizerConfig

__all__ = ["learning_rate"]


def learning_rate(config: OptimizerConfig, update: int, num_updates: int) -> float:
    """Rate of update 1, 2, ... of `num_updates`.

    It rises linearly from 0 over `warmup_updates`, reaching the full rate with the last of them,
    then stays, or falls linearly or along half a cosine to `min_lr_frac` of it at the last update.
    """
    if update <= config.warmup_updates:
        return config.learning_rate * update / config.warmup_updates
    if config.schedule == "constant":
        return config.learning_rate
    span = max(num_updates - config.warmup_updates, 1)
    done = min((update - config.warmup_updates) / span, 1.0)
    left = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate * (config.min_lr_frac + (1.0 - config.min_lr_frac) * left)
