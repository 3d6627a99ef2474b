"""The folder of a run: created once, resumed or refused, never written over.

runs/<name>/
  recipe.json          the resolved configuration
  books/               every second and token, one file per attempt
  metrics.jsonl        one row per step
  trajectories.jsonl   a sample of what was generated
  checkpoints/         sealed checkpoints
  model/               the trained policy as a Hugging Face folder
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from rledger.config.recipe import Recipe
from rledger.errors import RunFolderError

__all__ = ["RunFolder"]

_RECIPE = "recipe.json"
# What may differ when a run goes on: how long it lasts and what is kept, never what it computes.
_MAY_DIFFER = ("run.num_steps", "run.root", "run.stage_timeout_s", "checkpoint.", "sinks.")


class RunFolder:
    """Owns `runs/<name>` while open; a second process is refused.

    Raises RunFolderError when the folder belongs to another recipe or another process works in it.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path = path
        self.existed = (path / _RECIPE).exists()
        if path.exists() and not self.existed and any(path.iterdir()):
            raise RunFolderError(
                f"{path} exists and is no run folder (it has no {_RECIPE}); choose another run.name or"
                " run.root"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be written ({error.strerror}); set run.root"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise RunFolderError(
                f"{path} is in use by process {owner}; wait for it to end, or choose another run.name"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        try:
            self._claim(recipe)
        except BaseException:
            self.close()
            raise

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    def rewind(self, step: int) -> None:
        """Take the rows of steps after `step` out of the readings: they did not happen on the surviving
        timeline. The books keep everything."""
        for name in ("metrics.jsonl", "trajectories.jsonl"):
            path = self.path / name
            if path.exists():
                _write_aside(path, "".join(_rows_until(path, step)))

    def close(self) -> None:
        self._lock.close()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _claim(self, recipe: Recipe) -> None:
        resolved = recipe.model_dump(mode="json")
        if self.existed:
            differing = _differences(json.loads((self.path / _RECIPE).read_text("utf-8")), resolved)
            if differing:
                listing = "\n".join(f"  {line}" for line in differing)
                raise RunFolderError(
                    f"{self.path} belongs to a run with another configuration:\n{listing}\n"
                    "choose another run.name (e.g. run.name=NEW on the command line), or restore these values"
                )
        _write_aside(self.path / _RECIPE, json.dumps(resolved, indent=2) + "\n")


def _rows_until(path: Path, step: int) -> list[str]:
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a line that a kill tore
        if row["step"] <= step:
            kept.append(line)
    return kept


def _write_aside(path: Path, text: str) -> None:
    """Replace a small file in one move, so that a kill leaves the old or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(aside, path)


def _differences(old: Any, new: Any, key: str = "") -> list[str]:
    if any(key == name or (name.endswith(".") and key.startswith(name)) for name in _MAY_DIFFER):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for name in {**old, **new}:
            found += _differences(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
        return found
    return [] if old == new else [f"{key}: {old!r} there, {new!r} here"]
