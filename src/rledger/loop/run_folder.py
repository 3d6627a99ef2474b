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
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rledger.config.recipe import Recipe
from rledger.config.toml_text import toml_value
from rledger.errors import RunFolderError

__all__ = ["RunFolder", "describe_folder"]

_RECIPE = "recipe.json"
_LOCK = "lock"
# What may differ when a run goes on: how long it lasts and what is kept, never what it computes.
_MAY_DIFFER = ("run.num_steps", "run.root", "run.stage_timeout_s", "checkpoint.", "sinks.")


class RunFolder:
    """Owns `runs/<name>` while open; a second process is refused.

    Raises RunFolderError when the folder belongs to another recipe or another process works in it.
    """

    def __init__(self, path: Path, recipe: Recipe) -> None:
        self.path = path
        self.existed = (path / _RECIPE).exists()
        if _is_foreign(path):
            raise RunFolderError(_foreign(path))
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / _LOCK).open("a+", encoding="utf-8")
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be written ({error.strerror}); set run.root to a folder that can"
            ) from None
        try:
            self._take_lock()
        except BaseException:
            self._lock.close()
            raise
        try:
            self._claim(recipe)
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.seek(0)
            owner = self._lock.read().strip() or "unknown"
            raise RunFolderError(
                f"{self.path} is in use by process {owner}; wait for it to end, or choose another"
                " run.name"
            ) from None
        # Names the owner to people; the lock itself needs no byte, so a full disk is no matter here.
        with suppress(OSError):
            self._lock.truncate(0)
            self._lock.write(str(os.getpid()))
            self._lock.flush()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    def write_model(self, write: Callable[[Path], None]) -> None:
        """Let `write` make the folder `model`, in place of that of a shorter run."""
        aside = self.path / ".model-writing"
        shutil.rmtree(aside, ignore_errors=True)
        write(aside)
        shutil.rmtree(self.model, ignore_errors=True)
        os.rename(aside, self.model)

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
        if self.existed and _has_history(self.path):
            problem = _other_configuration(self.path, recipe)
            if problem is not None:
                raise RunFolderError(problem)
        # A run that never began has nothing to lose: it takes the recipe that corrects the first.
        resolved = recipe.model_dump(mode="json")
        _write_aside(self.path / _RECIPE, json.dumps(resolved, indent=2) + "\n")


def describe_folder(path: Path, recipe: Recipe) -> str:
    """What a run of `recipe` would find at `path`, in one line; touches nothing."""
    if _is_foreign(path):
        return f"the run would stop: {_foreign(path)}"
    if not (path / _RECIPE).exists():
        return f"{path}, new"
    if not _has_history(path):
        return f"{path}, prepared before and never begun"
    problem = _other_configuration(path, recipe)
    if problem is not None:
        return f"the run would stop: {problem}"
    steps = sorted(p.name.removeprefix("step-") for p in (path / "checkpoints").glob("step-*"))
    if not steps:
        return f"{path}, exists without a checkpoint: begins again"
    last = int(steps[-1])
    if last >= recipe.run.num_steps:
        return f"{path}, finished at step {last}; raise run.num_steps to go on"
    return f"{path}, resumes after step {last}"


def _has_history(path: Path) -> bool:
    """Whether anything was measured or saved here."""
    metrics = path / "metrics.jsonl"
    begun = metrics.exists() and metrics.stat().st_size > 0
    return begun or any((path / "checkpoints").glob("step-*"))


def _is_foreign(path: Path) -> bool:
    """Whether something lies at `path` that is no run folder; a start that failed may leave a lock."""
    if not path.is_dir():
        return path.exists()
    names = {entry.name for entry in path.iterdir()}
    return _RECIPE not in names and any(
        n != _LOCK and not n.startswith(f".{_RECIPE}") for n in names
    )


def _foreign(path: Path) -> str:
    return f"{path} exists and is no run folder (it has no {_RECIPE}); choose another run.name or run.root"


def _other_configuration(path: Path, recipe: Recipe) -> str | None:
    """How the run at `path` differs from `recipe` in what it computes; None where it does not."""
    try:
        old = json.loads((path / _RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return f"{path / _RECIPE} cannot be read ({error}); choose another run.name"
    differing = _differences(old, recipe.model_dump(mode="json"))
    if not differing:
        return None
    lines = "".join(f"\n  {line}" for line in differing)
    return (
        f"{path} belongs to a run with another configuration:{lines}\n"
        "choose another run.name (on the command line: run.name=NEW), or restore these values"
    )


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
    """Replace a small file in one move, so that a kill leaves the old or the new one.

    Raises RunFolderError when the disk refuses; the old one stays.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise RunFolderError(
            f"{path} cannot be written ({error.strerror}); free some space, or set run.root to another"
            " disk. What was there before is untouched"
        ) from error


def _differences(old: Any, new: Any, key: str = "") -> list[str]:
    if any(key == name or (name.endswith(".") and key.startswith(name)) for name in _MAY_DIFFER):
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for name in {**old, **new}:
            found += _differences(old.get(name), new.get(name), f"{key}.{name}".lstrip("."))
        return found
    return [] if old == new else [f"{key}: {toml_value(old)} in the run, {toml_value(new)} now"]
