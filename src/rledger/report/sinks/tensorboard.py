"""Metrics as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rledger.report.sinks.packages import require

__all__ = ["TensorBoardSink"]


class TensorBoardSink:
    """Writes scalars with TensorBoard's own writer; torch is not needed."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        writer = require("tensorboard.summary", "tensorboard")
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = writer.Writer(str(folder))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
