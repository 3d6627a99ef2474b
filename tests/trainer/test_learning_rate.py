"""The learning rate over a run."""

from __future__ import annotations

import pytest

from rledger.config.trainer import OptimizerConfig, TrainerConfig
from rledger.trainer.schedules import learning_rate


def rates(config: OptimizerConfig, num_updates: int) -> list[float]:
    return [learning_rate(config, update, num_updates) for update in range(1, num_updates + 1)]


def test_it_warms_up_linearly_and_stays() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_updates=4)
    assert rates(config, 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_it_falls_linearly_to_its_floor_at_the_last_update() -> None:
    config = OptimizerConfig(
        learning_rate=2.0, schedule="linear", warmup_updates=1, min_lr_frac=0.5
    )
    assert rates(config, 5) == pytest.approx([2.0, 1.75, 1.5, 1.25, 1.0])
    assert learning_rate(config, 9, 5) == 1.0  # a run that goes on stays at the floor


def test_it_falls_along_half_a_cosine() -> None:
    config = OptimizerConfig(learning_rate=1.0, schedule="cosine", warmup_updates=2)
    assert rates(config, 6) == pytest.approx([0.5, 1.0, 0.8535534, 0.5, 0.1464466, 0.0])


def test_the_critic_has_its_own() -> None:
    config = TrainerConfig()
    assert config.critic.learning_rate == 1e-5
    assert config.learning_rate == 1e-6
