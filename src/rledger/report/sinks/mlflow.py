"""Metrics to MLflow."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rledger.config.sinks import MLflowConfig
from rledger.report.sinks.packages import require

__all__ = ["MLflowSink"]

# MLflow takes letters, digits, _ - . space : and / in names.
_FOREIGN = re.compile(r"[^\w\-. :/]")


class MLflowSink:
    """One MLflow run."""

    name = "mlflow"

    def __init__(self, config: MLflowConfig, run_name: str) -> None:
        mlflow = require("mlflow", "mlflow")
        if config.tracking_uri is not None:
            mlflow.set_tracking_uri(config.tracking_uri)
        mlflow.set_experiment(config.experiment)
        self._mlflow = mlflow
        mlflow.start_run(run_name=run_name)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        # "mean@4" becomes "mean_at_4"; other signs that MLflow refuses become underscores.
        renamed = {_FOREIGN.sub("_", k.replace("@", "_at_")): v for k, v in metrics.items()}
        self._mlflow.log_metrics(renamed, step=step)

    def close(self) -> None:
        self._mlflow.end_run()
