"""Trains the policy and the critic: packed micro-batches, masters in float32, AdamW, checkpoints.

`build_trainer`, `build_critic` and `build_advantage_estimator` make the real roles of a recipe,
`rledger.trainer.fake.FakeTrainer` is the fake one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rledger.trainer.build import build_advantage_estimator, build_critic, build_trainer

__all__ = ["build_advantage_estimator", "build_critic", "build_trainer"]


def __getattr__(name: str) -> Any:
    # The fake lives in this package and must not bring torch along.
    if name in __all__:
        import rledger.trainer.build as build

        return getattr(build, name)
    raise AttributeError(name)
