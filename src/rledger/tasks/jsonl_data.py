"""Rows of JSONL files. The files stay on disk: only where each line begins is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rledger.config.tasks import JsonlData
from rledger.errors import DataError
from rledger.tasks.datasets import Row, fill_template, fingerprint_of

__all__ = ["JsonlRows"]

_NUM_ROWS_TO_CHECK = 20_000  # seconds of tokenising


class JsonlRows:
    """A training file and its held-out rows; every line is checked when the data set is built."""

    def __init__(self, config: JsonlData) -> None:
        self._config = config
        self.task = config.task
        self.weight = config.weight
        self._path = Path(config.path)
        eval_rows: list[Row] = []
        if config.eval_path is not None:
            for number, _, line in _lines(Path(config.eval_path), "tasks.data.eval_path"):
                eval_rows.append(self._row("eval", Path(config.eval_path), number, line))
        digest = hashlib.sha256()
        self._places: list[tuple[int, int]] = []  # (line number, byte where it begins)
        for number, start, line in _lines(self._path, "tasks.data.path"):
            digest.update(line)
            row = self._row("train", self._path, number, line)
            if config.eval_path is None and _fraction_of(row.question) < config.eval_frac:
                eval_rows.append(self._row("eval", self._path, number, line))
            else:
                self._places.append((number, start))
        if not self._places:
            raise DataError(f"{self._path} has no training row; add rows or lower eval_frac")
        # Asking a held-out question twice would count it twice.
        self._eval_rows = tuple({row.question: row for row in reversed(eval_rows)}.values())[::-1]
        self._eval_questions = {row.question for row in self._eval_rows}
        self.fingerprint = fingerprint_of(
            self, digest.hexdigest(), config.prompt_key, config.answer_key, config.eval_frac
        )

    @property
    def num_train_rows(self) -> int:
        return len(self._places)

    @property
    def num_rows_to_check(self) -> int:
        return min(_NUM_ROWS_TO_CHECK, self.num_train_rows)

    def train_row(self, index: int) -> Row | None:
        number, start = self._places[index]
        with self._path.open("rb") as file:
            file.seek(start)
            line = file.readline()
        row = self._row("train", self._path, number, line)
        return None if row.question in self._eval_questions else row

    def eval_rows(self) -> Sequence[Row]:
        return self._eval_rows

    def _row(self, split: str, path: Path, number: int, line: bytes) -> Row:
        where = f"{path}:{number}"
        try:
            columns = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{where}: not JSON ({error}); write one object a line") from None
        if not isinstance(columns, dict):
            raise DataError(f"{where}: a {type(columns).__name__}; write one JSON object a line")
        config = self._config
        question = _text_of(columns, config.prompt_key, where, "prompt_key", "question")
        answer = _text_of(columns, config.answer_key, where, "answer_key", "answer")
        answer = answer.rpartition("####")[2].strip()
        if not answer:
            raise DataError(f"{where}: nothing after the last ####; write the answer there")
        values = columns | {"question": question}
        shown = fill_template(config.template, values, where, "tasks.data.template")
        return Row(
            id=f"{self.task}/{split}/{number:06d}",
            where=where,
            question=shown,
            answer=answer,
            payload={"question": shown, "answer": answer, "row": columns},
        )


def _text_of(columns: dict[str, Any], key: str, where: str, setting: str, what: str) -> str:
    value = columns.get(key)
    text = "" if value is None or isinstance(value, list | dict) else str(value).strip()
    if not text:
        found = "has an empty one" if key in columns else f"has the keys {', '.join(columns)}"
        raise DataError(
            f"{where}: no {what}: expected text under {key!r}, but the row {found}. Give the row "
            f"its {what}, remove it, or set tasks.data.{setting} to the key that holds it"
        )
    return text


def _lines(path: Path, setting: str) -> Iterator[tuple[int, int, bytes]]:
    """(line number from 1, byte where it begins, line) of the lines that are not blank."""
    start = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, start, line
                start += len(line)
    except OSError as error:
        raise DataError(
            f"data set {path} cannot be read: {error.strerror}; set {setting} to a JSONL file "
            "(relative paths start at the current folder)"
        ) from None


def _fraction_of(text: str) -> float:
    """A number in [0, 1) that depends on the text alone, so that equal questions share a split."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
