"""Further receivers of metrics, each imported only when the recipe asks for it."""

from __future__ import annotations

from pathlib import Path

from rledger.books.metrics import MetricsSink
from rledger.config.sinks import SinksConfig

__all__ = ["build_sinks"]


def build_sinks(config: SinksConfig, folder: Path) -> list[MetricsSink]:
    """The sinks that `config` names, for the run in `folder`, which lends them its name.

    Raises ConfigError, naming the pip extra, when a sink's package is not installed.
    """
    sinks: list[MetricsSink] = []
    if config.tensorboard:
        from rledger.report.sinks.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(folder / "tensorboard"))
    if config.wandb is not None:
        from rledger.report.sinks.wandb import WandbSink

        sinks.append(WandbSink(config.wandb, folder))
    if config.mlflow is not None:
        from rledger.report.sinks.mlflow import MLflowSink

        sinks.append(MLflowSink(config.mlflow, folder.name))
    return sinks
