"""What a checkpoint of a run holds, and how a run goes on from it.

step-00000012/
  controller.json   counters, stop position of the data, KL controller
  trainer/          weights, optimizer, schedule, random states
  critic/           the same, where there is one
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Protocol

from rledger.errors import CheckpointError
from rledger.loop.checkpoint import CheckpointStore
from rledger.loop.context import LoopContext

__all__ = ["RunState", "Savepoints"]

_FORMAT = 1


class RunState(Protocol):
    """Keeps and gives back the state of a run; `Savepoints` on disk, nothing in a simulation."""

    def save(self, context: LoopContext) -> int: ...

    def restore(self, context: LoopContext) -> bool: ...


class Savepoints:
    """Saves and restores the whole state of a run through a CheckpointStore."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def save(self, context: LoopContext) -> int:
        """Save the state after the step at work; returns bytes. Raises CheckpointError."""
        return self._store.save(context.counters.step, lambda folder: _write(context, folder))

    def restore(self, context: LoopContext) -> bool:
        """Load the newest checkpoint into the roles; False when there is none."""
        checkpoint = self._store.latest()
        if checkpoint is None:
            return False
        _read(context, checkpoint.folder)
        return True


def _write(context: LoopContext, folder: Path) -> None:
    roles = context.roles
    state = {
        "format": _FORMAT,
        "counters": dataclasses.asdict(context.counters),
        "tasks": roles.tasks.state_dict(),
        "estimator": roles.estimator.state_dict(),
    }
    (folder / "controller.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
    for name, model in (("trainer", roles.trainer), ("critic", roles.critic)):
        if model is not None:
            (folder / name).mkdir()
            model.save(folder / name)


def _read(context: LoopContext, folder: Path) -> None:
    state = json.loads((folder / "controller.json").read_text(encoding="utf-8"))
    if state["format"] != _FORMAT:
        raise CheckpointError(
            f"{folder} has checkpoint format {state['format']}, this version reads {_FORMAT}; use the"
            " RLedger that wrote it"
        )
    roles = context.roles
    counters: dict[str, Any] = state["counters"]
    for name, value in counters.items():
        setattr(context.counters, name, value)
    roles.tasks.load_state_dict(state["tasks"])
    roles.estimator.load_state_dict(state["estimator"])
    for name, model in (("trainer", roles.trainer), ("critic", roles.critic)):
        if model is None:
            continue
        if not (folder / name).is_dir():
            raise CheckpointError(
                f"{folder} holds no {name}; it was written by another kind of run"
            )
        model.load(folder / name)
