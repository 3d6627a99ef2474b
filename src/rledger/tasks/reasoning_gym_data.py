"""Rows of reasoning-gym: row i of a data set is a function of its parameters, its seed and i."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import reasoning_gym
from reasoning_gym.factory import DATASETS

from rledger.config.tasks import ReasoningGymData
from rledger.errors import DataError
from rledger.tasks.datasets import Row, fill_template, fingerprint_of
from rledger.tasks.payload_codec import encode_value

__all__ = ["ReasoningGymRows"]

# Rows looked through for held-out rows of different text, per held-out row.
_NUM_LOOKED_THROUGH = 8
_NUM_ROWS_TO_CHECK = 64

_OURS = ("seed", "size")  # parameters that are no part of `params`

# Some of their rows follow the order of a set of strings, which changes with each interpreter
# (found by comparing 150 rows of each data set of reasoning-gym 0.1.25 under two hash seeds).
_HASH_ORDERED = frozenset(
    {
        "codeio",
        "intermediate_integration",
        "isomorphic_strings",
        "knight_swap",
        "polynomial_multiplication",
        "ransom_note",
        "word_ladder",
    }
)


class ReasoningGymRows:
    """Held-out rows come from the first indices, training rows from those after them."""

    def __init__(self, config: ReasoningGymData) -> None:
        self._config = config
        self.task = config.task
        self.weight = config.weight
        self._num_first = config.num_eval_prompts * _NUM_LOOKED_THROUGH
        self._dataset = _create(config, self._num_first + config.num_train_prompts)
        self._eval_rows = self._distinct_rows()
        self._eval_questions = {row.question for row in self._eval_rows}

    @property
    def num_train_rows(self) -> int:
        return self._config.num_train_prompts

    @property
    def num_rows_to_check(self) -> int:
        return min(_NUM_ROWS_TO_CHECK, self.num_train_rows)

    @cached_property
    def fingerprint(self) -> str:
        config = self._config
        return fingerprint_of(
            self, config.name, config.params, config.seed, config.num_train_prompts
        )

    def train_row(self, index: int) -> Row | None:
        row = self._row("train", index, self._num_first + index)
        return None if row.question in self._eval_questions else row

    def eval_rows(self) -> Sequence[Row]:
        return self._eval_rows

    def _distinct_rows(self) -> tuple[Row, ...]:
        wanted = self._config.num_eval_prompts
        rows: dict[str, Row] = {}
        for index in range(self._num_first):
            if len(rows) == wanted:
                break
            row = self._row("eval", index, index)
            rows.setdefault(row.question, row)
        if len(rows) < wanted:
            raise DataError(
                f"reasoning-gym data set {self._config.name!r} gave only {len(rows)} different "
                f"prompts in {self._num_first} rows; lower tasks.data.num_eval_prompts = {wanted} "
                "or widen tasks.data.params"
            )
        return tuple(rows.values())

    def _row(self, split: str, number: int, index: int) -> Row:
        config = self._config
        where = f"row {index} of reasoning-gym {config.name!r}"
        entry = self._dataset[index]
        values = entry["metadata"] | {"question": entry["question"]}
        shown = fill_template(config.template, values, where, "tasks.data.template")
        answer = None if entry["answer"] is None else str(entry["answer"])
        if answer is None and config.reward.type not in ("reasoning_gym", "function"):
            raise DataError(
                f"{where}: no reference answer for the {config.reward.type} reward; set "
                'tasks.data.reward.type = "reasoning_gym"'
            )
        try:
            kept = encode_value(entry)
        except TypeError as error:
            raise DataError(f"{where}: {error}; choose another data set") from None
        return Row(
            id=f"{self.task}/{split}/{number:06d}",
            where=where,
            question=shown,
            answer=answer,
            payload={"question": shown, "answer": answer, "entry": kept},
        )


def _create(config: ReasoningGymData, size: int) -> Any:
    name = config.name
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3) or sorted(DATASETS)
        raise DataError(
            f"reasoning-gym has no data set {name!r}; set tasks.data.name to one it has, such as: "
            + ", ".join(near)
        )
    if name in _HASH_ORDERED and sys.flags.hash_randomization:
        raise DataError(
            f"the rows of reasoning-gym {name!r} change from process to process; start with "
            "PYTHONHASHSEED=0 set, or choose another data set"
        )
    known = [field for field in DATASETS[name][1].__dataclass_fields__ if field not in _OURS]
    for key in config.params:
        if key not in known:
            raise DataError(
                f"reasoning-gym {name!r} has no parameter {key!r}; tasks.data.params may have: "
                + ", ".join(known)
            )
    try:
        return reasoning_gym.create_dataset(name, **config.params, seed=config.seed, size=size)
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(
            f"reasoning-gym {name!r} refuses its parameters: {error}; change tasks.data.params"
        ) from error
