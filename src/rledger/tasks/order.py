"""The training order: endless, reshuffled each epoch, restored from a position alone."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rledger.errors import DataError
from rledger.tasks.datasets import Dataset, random_order

__all__ = ["TrainingOrder"]


class TrainingOrder:
    """Which row of which data set comes next.

    Epoch e of a task is a permutation of its rows, a function of (seed, task, e). Tasks take turns
    so that each has had its share of the prompts at any time; ties go to the first.
    """

    def __init__(self, datasets: Sequence[Dataset], seed: int) -> None:
        self._datasets = tuple(datasets)
        self._seed = seed
        self._positions = [0] * len(datasets)
        self._epochs: list[tuple[int, npt.NDArray[np.int64]] | None] = [None] * len(datasets)

    def next(self) -> tuple[Dataset, int]:
        """The data set to draw from and the row's index in it."""
        shares = [
            (position + 1) / dataset.weight
            for position, dataset in zip(self._positions, self._datasets, strict=True)
        ]
        turn = shares.index(min(shares))
        dataset = self._datasets[turn]
        epoch, place = divmod(self._positions[turn], dataset.num_train_rows)
        self._positions[turn] += 1
        cached = self._epochs[turn]
        if cached is None or cached[0] != epoch:
            seed = (self._seed, zlib.crc32(dataset.task.encode()), epoch)
            cached = (epoch, random_order(seed, dataset.num_train_rows))
            self._epochs[turn] = cached
        return dataset, int(cached[1][place])

    def state_dict(self) -> dict[str, Any]:
        """JSON values: the seed, and per task its epoch, position and data set."""
        tasks = {}
        for position, dataset in zip(self._positions, self._datasets, strict=True):
            tasks[dataset.task] = {
                "epoch": position // dataset.num_train_rows,
                "position": position,
                "fingerprint": dataset.fingerprint,
            }
        return {"seed": self._seed, "tasks": tasks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Raises DataError where the data or the seed are others."""
        if state["seed"] != self._seed:
            raise DataError(
                f"the data order was made with run.seed = {state['seed']}, now it is {self._seed}; "
                "resume with the old seed or start a new run"
            )
        tasks = state["tasks"]
        names = [dataset.task for dataset in self._datasets]
        if sorted(tasks) != sorted(names):
            raise DataError(
                f"the checkpoint draws prompts from {', '.join(sorted(tasks))}, the recipe from "
                f"{', '.join(sorted(names))}; resume with the old tasks.data or start a new run"
            )
        for dataset in self._datasets:
            if tasks[dataset.task]["fingerprint"] != dataset.fingerprint:
                raise DataError(
                    f"the rows of task {dataset.task!r} have changed since the checkpoint was "
                    "written, so its position means nothing in them; restore the data and "
                    "tasks.data, or start a new run"
                )
        self._positions = [int(tasks[name]["position"]) for name in names]
