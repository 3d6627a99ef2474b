"""Optional sinks: lazily imported, named when missing, written to when there."""

from __future__ import annotations

import sys
import types

import pytest
from pydantic import ValidationError

from rledger.config.sinks import MLflowConfig, SinksConfig, WandbConfig
from rledger.errors import ConfigError
from rledger.report.sinks import build_sinks

ALL = {
    "tensorboard": SinksConfig(tensorboard=True),
    "wandb": SinksConfig(wandb=WandbConfig(project="p", offline=True)),
    "mlflow": SinksConfig(mlflow=MLflowConfig(experiment="e")),
}


@pytest.mark.parametrize("extra", ALL)
def test_a_missing_package_is_named_with_its_extra(extra: str, tmp_path, monkeypatch) -> None:
    for module in ("tensorboard.summary", "wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it raises ImportError
    with pytest.raises(
        ConfigError, match=rf"sinks\.{extra} is set.*pip install 'rledger\[{extra}\]'"
    ):
        build_sinks(ALL[extra], tmp_path)


def test_no_sink_is_opened_by_default(tmp_path) -> None:
    assert build_sinks(SinksConfig(), tmp_path) == []
    with pytest.raises(ValidationError):
        SinksConfig(wandb=WandbConfig())


class Recorder(types.ModuleType):
    """Stands for a package: notes each call on it and on what it returns."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple, dict]] = []

    def __getattr__(self, attribute: str):
        def call(*args, **kwargs):
            self.calls.append((attribute, args, kwargs))
            return self

        return call


@pytest.mark.parametrize(
    ("extra", "module", "expected"),
    [
        (
            "tensorboard",
            "tensorboard.summary",
            [("Writer", "add_scalar", "flush", "close"), ("actor/loss", 0.5, 3)],
        ),
        ("wandb", "wandb", [("init", "log", "finish"), ({"actor/loss": 0.5},)]),
        (
            "mlflow",
            "mlflow",
            [
                ("set_experiment", "start_run", "log_metrics", "end_run"),
                ({"actor/loss": 0.5},),
            ],
        ),
    ],
)
def test_a_sink_hands_each_value_on(extra, module, expected, tmp_path, monkeypatch) -> None:
    package = Recorder(module)
    monkeypatch.setitem(sys.modules, module, package)
    (sink,) = build_sinks(ALL[extra], tmp_path)
    assert sink.name == extra
    sink.write(3, {"actor/loss": 0.5})
    sink.close()
    names, written = expected
    assert tuple(name for name, _, _ in package.calls) == names
    assert any(args == written for _, args, _ in package.calls)


def test_names_that_mlflow_refuses_are_spelled_out(tmp_path, monkeypatch) -> None:
    package = Recorder("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", package)
    (sink,) = build_sinks(ALL["mlflow"], tmp_path)
    sink.write(1, {"val-core/t/acc/mean@1": 0.5, "odd(name)": 1.0})
    written = next(args[0] for name, args, _ in package.calls if name == "log_metrics")
    assert written == {"val-core/t/acc/mean_at_1": 0.5, "odd_name_": 1.0}


def test_tensorboard_event_files_hold_the_values(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (sink,) = build_sinks(ALL["tensorboard"], tmp_path)
    sink.write(1, {"actor/loss": 0.5})
    sink.write(2, {"actor/loss": 0.25})
    sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    tensors = events.Tensors("actor/loss")
    assert [event.step for event in tensors] == [1, 2]
