"""Metrics to Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rledger.config.sinks import WandbConfig
from rledger.report.sinks.packages import require

__all__ = ["WandbSink"]


class WandbSink:
    """One run; a resumed run goes on under the same id, which is the run's name."""

    name = "wandb"

    def __init__(self, config: WandbConfig, folder: Path) -> None:
        wandb = require("wandb", "wandb")
        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            name=folder.name,
            id=folder.name,
            resume="allow",
            dir=str(folder),
            mode="offline" if config.offline else "online",
        )

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()
