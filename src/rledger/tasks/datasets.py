"""Rows of a data set by index, in two splits that share no question.

A training row is made when its index is asked for; held-out rows are made once. The splits are
disjoint by construction, and `train_row` checks it again on the text: a training row that asks what
a held-out row asks is None, and the order passes over it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rledger.config.tasks import ArithmeticSumsData, JsonlData, ReasoningGymData
from rledger.errors import DataError

__all__ = [
    "ArithmeticSums",
    "Dataset",
    "Row",
    "fill_template",
    "fingerprint_of",
    "random_order",
    "reward_settings",
]

_NUM_FINGERPRINT_ROWS = 8
_NUM_ROWS_TO_CHECK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question and what scoring its answers needs."""

    id: str  # "spell_backward/train/000017"
    where: str  # for messages: "train.jsonl:17"
    question: str  # what the model is asked, without system prompt and chat template
    answer: str | None  # None where the data set has no reference answer
    payload: Mapping[str, object]  # JSON values


class Dataset(Protocol):
    """A task's rows, known by index."""

    @property
    def task(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def num_train_rows(self) -> int:
        """Rows of an epoch, those that are passed over included."""
        ...

    def train_row(self, index: int) -> Row | None:
        """Row 0 <= index < num_train_rows; None where its question is held out."""
        ...

    def eval_rows(self) -> Sequence[Row]:
        """The held-out rows."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the rows change."""
        ...

    @property
    def num_rows_to_check(self) -> int:
        """Training rows worth checking before a run starts; the others are when they are drawn."""
        ...


def reward_settings(config: ReasoningGymData | JsonlData | ArithmeticSumsData) -> dict[str, Any]:
    """The reward section of a data set as JSON values, for the reward processes."""
    settings = config.reward.model_dump(mode="json")
    if isinstance(config, ReasoningGymData):
        return settings | {"name": config.name, "params": config.params}
    return settings


def random_order(seed: Sequence[int], count: int) -> npt.NDArray[np.int64]:
    """[count] a permutation that is a function of the seed alone, in every version of numpy.

    Sorts the raw stream of a counter-based generator; only raw streams are promised never to
    change.
    """
    generator = np.random.Philox(np.random.SeedSequence(list(seed)))
    return np.argsort(generator.random_raw(count), kind="stable")


def fill_template(template: str, values: Mapping[str, object], where: str, key: str) -> str:
    """The template with its names replaced. Raises DataError naming the row and the known names."""
    try:
        return template.format_map(values)
    except KeyError as error:
        known = ", ".join(sorted(values))
        raise DataError(
            f"{where}: {key} asks for {error}, which the row does not have; it has: {known}"
        ) from None


def fingerprint_of(dataset: Dataset, *facts: object) -> str:
    """Digest of the facts, of all held-out rows and of the first training rows."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    first = [
        dataset.train_row(i) for i in range(min(_NUM_FINGERPRINT_ROWS, dataset.num_train_rows))
    ]
    for row in [*dataset.eval_rows(), *first]:
        text = None if row is None else [row.question, row.answer]
        digest.update(json.dumps(text).encode())
    return digest.hexdigest()[:16]


class ArithmeticSums:
    """Sums of two numbers from 0 to `max_operand`; a pair is held out in both orders."""

    def __init__(self, config: ArithmeticSumsData) -> None:
        self._config = config
        self.task = config.task
        self.weight = config.weight
        first, second = np.triu_indices(config.max_operand + 1)
        held_out: list[tuple[int, int]] = []
        excluded: set[tuple[int, int]] = set()
        for index in random_order((config.seed,), len(first)):
            if len(held_out) >= config.num_eval_prompts:
                break
            a, b = int(first[index]), int(second[index])
            excluded |= {(a, b), (b, a)}
            held_out.extend([(a, b), (b, a)] if a != b else [(a, b)])
        self._held_out = held_out[: config.num_eval_prompts]
        pairs = (
            (a, b) for a in range(config.max_operand + 1) for b in range(config.max_operand + 1)
        )
        self._train = [pair for pair in pairs if pair not in excluded]
        self._eval_rows = tuple(self._row("eval", i, pair) for i, pair in enumerate(self._held_out))
        self._eval_questions = {row.question for row in self._eval_rows}
        self.fingerprint = fingerprint_of(
            self, config.max_operand, config.seed, config.num_eval_prompts
        )

    @property
    def num_train_rows(self) -> int:
        return len(self._train)

    @property
    def num_rows_to_check(self) -> int:
        return min(_NUM_ROWS_TO_CHECK, self.num_train_rows)

    def train_row(self, index: int) -> Row | None:
        row = self._row("train", index, self._train[index])
        return None if row.question in self._eval_questions else row

    def eval_rows(self) -> Sequence[Row]:
        return self._eval_rows

    def _row(self, split: str, index: int, pair: tuple[int, int]) -> Row:
        a, b = pair
        question = self._config.template.format(a=a, b=b)
        answer = str(a + b)
        row_id = f"{self.task}/{split}/{index:06d}"
        return Row(
            id=row_id,
            where=f"sum {a} + {b}",
            question=question,
            answer=answer,
            payload={"question": question, "answer": answer},
        )
