"""The prompts that all sides get: those of the SmolLM2 recipe, in the order our own loop draws them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT
from rledger.config.tasks import ArithmeticSumsData
from rledger.tasks.build import build_dataset
from rledger.tasks.datasets import Row
from rledger.tasks.order import TrainingOrder
from rledger.tasks.tokenizer import PromptTokenizer

__all__ = ["MODEL", "held_out_prompts", "training_prompts"]

MODEL = ROOT / "models" / "smollm2-135m"


def training_prompts(model: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """The first `count` prompts of a run with this seed: question, answer and token ids."""
    dataset = build_dataset(ArithmeticSumsData())
    order = TrainingOrder([dataset], seed)
    tokenizer = PromptTokenizer(model)
    prompts: list[dict[str, Any]] = []
    while len(prompts) < count:
        source, index = order.next()
        row = source.train_row(index)
        if row is not None:
            prompts.append(_prompt(tokenizer, row))
    return prompts


def held_out_prompts(model: Path) -> list[dict[str, Any]]:
    """The 256 held-out sums."""
    tokenizer = PromptTokenizer(model)
    return [_prompt(tokenizer, row) for row in build_dataset(ArithmeticSumsData()).eval_rows()]


def _prompt(tokenizer: PromptTokenizer, row: Row) -> dict[str, Any]:
    token_ids = tokenizer.encode_prompt(tokenizer.render(row.question))
    return {"question": row.question, "answer": row.answer, "token_ids": list(token_ids)}
