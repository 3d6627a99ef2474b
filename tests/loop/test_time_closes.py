"""The time of a real step closes, and what nobody booked shows as unaccounted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rledger.books import SpanRecord
from rledger.books.balance import time_balance
from rledger.books.reader import read_books
from rledger.launch.inline import train
from rledger.loop import controller as controller_module
from rledger.trainer.trainer import DecoderTrainer


def _balances(run: Path, num_steps: int) -> list[Any]:
    spans = [r for r in read_books(run).surviving() if isinstance(r, SpanRecord)]
    return [time_balance(spans, step, "main") for step in range(1, num_steps + 1)]


def test_a_sleep_planted_between_stages_shows_as_unaccounted_there_and_nowhere_else(
    make_recipe: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = controller_module.split_updates
    calls = []

    def sleepy(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            time.sleep(0.2)
        return real(*arguments, **named)

    monkeypatch.setattr(controller_module, "split_updates", sleepy)
    train(make_recipe("run.name=sleepy", "evaluation.before_training=false"))
    unaccounted = [b.unaccounted_s for b in _balances(tmp_path / "runs" / "sleepy", 3)]
    assert 0.2 <= unaccounted[1] < 0.25
    assert max(unaccounted[0], unaccounted[2]) < 0.02


def test_a_stage_that_raises_still_books_its_time(
    make_recipe: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(self: Any, batch: Any) -> Any:
        time.sleep(0.1)
        raise RuntimeError("planted")

    monkeypatch.setattr(DecoderTrainer, "forward_backward", failing)
    with pytest.raises(RuntimeError, match="planted"):
        train(make_recipe("run.name=raising", "evaluation.before_training=false"))
    spans = [
        r
        for r in read_books(tmp_path / "runs" / "raising").surviving()
        if isinstance(r, SpanRecord)
    ]
    (stage,) = [s for s in spans if s.name == "update_actor"]
    assert stage.raised
    assert stage.seconds >= 0.1
    (step,) = [s for s in spans if s.name == "step" and s.step == 1]
    assert step.raised


def test_the_trained_rows_are_those_that_the_model_really_computed(
    make_recipe: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that loses a row while the loop believes it trained breaks the data account."""
    from rledger.books.balance import data_balance
    from rledger.schedule.packing import select_rows

    real = DecoderTrainer.forward_backward

    async def losing(self: Any, batch: Any) -> Any:
        return await real(self, select_rows(batch, range(batch.num_rows - 1)))

    quiet = ("run.num_steps=1", "evaluation.before_training=false")
    train(make_recipe("run.name=whole", *quiet))
    assert (
        data_balance(read_books(tmp_path / "runs" / "whole").surviving(), closed=True).imbalances
        == []
    )
    with monkeypatch.context() as patch:
        patch.setattr(DecoderTrainer, "forward_backward", losing)
        train(make_recipe("run.name=losing", *quiet))
    balance = data_balance(read_books(tmp_path / "runs" / "losing").surviving(), closed=True)
    assert len(balance.imbalances) > 0
