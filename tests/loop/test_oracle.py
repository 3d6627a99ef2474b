"""The Controller computes what the loop written straight down computes, bit by bit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rledger.books import Books
from rledger.launch.inline import build_roles, train
from rledger.loop.plan import plan_run
from tests.oracle_loop import straight_line

ALGORITHMS = {
    "grpo": (),
    "ppo": ("algorithm.advantage.type=gae",),
    "grpo_with_kl": ("algorithm.kl.type=loss", "algorithm.old_logprobs=recompute"),
}


def _straight(loaded: Any, num_steps: int) -> list[str]:
    lane = Books.in_memory().lane("main")
    roles = build_roles(loaded.recipe, plan_run(loaded.recipe), lane)

    async def run() -> list[str]:
        try:
            return await straight_line(roles, loaded.recipe, num_steps)
        finally:
            await roles.close()

    return asyncio.run(run())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_five_steps_of_the_controller_equal_the_straight_line_bitwise(
    make_recipe: Callable[..., Any], algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = make_recipe(
        "run.num_steps=5", "evaluation.before_training=false", *ALGORITHMS[algorithm]
    )
    digests: list[str] = []
    from rledger.trainer.trainer import DecoderTrainer

    commit = DecoderTrainer.commit

    def recording(self: Any) -> int:
        digests.append(self.weights_digest())
        return commit(self)

    with monkeypatch.context() as patch:
        patch.setattr(DecoderTrainer, "commit", recording)
        assert train(loaded).finished
    straight = _straight(loaded, 5)
    assert digests == straight
    assert len(set(straight)) == 5  # every step changed the weights
