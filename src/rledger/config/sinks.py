"""The table `[sinks]`: where metrics go besides `<run>/metrics.jsonl`, which is always written."""

from __future__ import annotations

from rledger.config.base import Section

__all__ = ["MLflowConfig", "SinksConfig", "WandbConfig"]


class WandbConfig(Section):
    """Weights & Biases; needs `pip install 'rledger[wandb]'`."""

    project: str
    """Project that the run is filed under."""
    entity: str | None = None
    """User or team; unset takes the account's default."""
    offline: bool = False
    """Keep the run on this machine; `wandb sync` uploads it later."""


class MLflowConfig(Section):
    """MLflow; needs `pip install 'rledger[mlflow]'`."""

    experiment: str
    """Experiment that the run is filed under."""
    tracking_uri: str | None = None
    """Tracking server or folder; unset takes MLflow's own default."""


class SinksConfig(Section):
    """Further receivers of the metrics. One that fails is reported and put aside."""

    tensorboard: bool = False
    """Write event files to `<run>/tensorboard`; needs `pip install 'rledger[tensorboard]'`."""
    wandb: WandbConfig | None = None
    """Send metrics to Weights & Biases."""
    mlflow: MLflowConfig | None = None
    """Send metrics to MLflow."""
