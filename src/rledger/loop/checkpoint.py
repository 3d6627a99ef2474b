"""Checkpoints that are whole or not there: written aside, sealed by a manifest, moved by one rename.

A folder `step-00000012` exists only complete: its files are on disk before the rename, and `manifest.json`
lists the size and digest of each. A process killed at any byte leaves at most a folder `writing-*`, which
the next start removes. Nothing older is deleted before the newer one is sealed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rledger.errors import CheckpointError

__all__ = ["Checkpoint", "CheckpointStore"]

_NAME = re.compile(r"^step-(\d{8})$")
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A sealed checkpoint."""

    step: int
    folder: Path


class CheckpointStore:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, step: int, write: Callable[[Path], None]) -> int:
        """Let `write` fill a folder, seal it as the checkpoint of `step`; returns its bytes.

        Raises CheckpointError when the disk refuses; the checkpoints before are untouched.
        """
        target = self.folder / f"step-{step:08d}"
        aside = self.folder / f"writing-{step:08d}-{os.getpid()}"
        if target.exists():
            raise CheckpointError(f"{target} exists; a checkpoint is never written over")
        try:
            aside.mkdir(parents=True)
            write(aside)
            num_bytes = _seal(aside)
            os.rename(aside, target)
            _sync_folder(self.folder)
        except (OSError, CheckpointError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            cause = (
                error.__cause__ or error
            )  # a role says where it wrote, which nobody needs to know
            raise CheckpointError(
                f"the checkpoint of step {step} could not be written to {self.folder}:"
                f" {getattr(cause, 'strerror', None) or cause}; free some space, and the same command"
                f" resumes. {self._standing()}"
            ) from error
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        self._remove_old()
        return num_bytes

    def latest(self, step: int | None = None) -> Checkpoint | None:
        """The newest checkpoint (or that of `step`), verified; None when there is none at all.

        Raises CheckpointError when it does not match its manifest, or `step` has none.
        """
        found = self._all()
        if not found:
            return None
        if step is not None:
            steps = [c.step for c in found]
            if step not in steps:
                raise CheckpointError(
                    f"{self.folder} has no checkpoint of step {step}, but of {steps}"
                )
            found = [found[steps.index(step)]]
        _verify(found[-1].folder)
        return found[-1]

    def latest_step(self) -> int:
        """Step of the newest checkpoint, unverified; -1 when there is none."""
        found = self._all()
        return found[-1].step if found else -1

    def remove_unfinished(self) -> None:
        """Remove what a killed process left half written. Only the run's owner may call this."""
        for path in self.folder.glob("writing-*"):
            shutil.rmtree(path)

    def _all(self) -> list[Checkpoint]:
        if not self.folder.is_dir():
            return []
        found = [
            (match, path) for path in self.folder.iterdir() if (match := _NAME.match(path.name))
        ]
        return sorted(
            (Checkpoint(step=int(match[1]), folder=path) for match, path in found),
            key=lambda c: c.step,
        )

    def _remove_old(self) -> None:
        for old in self._all()[: -self._keep]:
            # Rename first: a kill inside the removal must not leave a checkpoint with missing files.
            doomed = self.folder / f"writing-removed-{old.folder.name}"
            os.rename(old.folder, doomed)
            shutil.rmtree(doomed)

    def _standing(self) -> str:
        found = self._all()
        return (
            f"The checkpoint of step {found[-1].step} is whole."
            if found
            else "No earlier checkpoint exists."
        )


def _seal(folder: Path) -> int:
    """Write the manifest over all files of `folder` and force everything to disk. Returns bytes."""
    files: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = {
                "bytes": path.stat().st_size,
                "blake2b": _digest(path),
            }
            _sync_file(path)
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")
    _sync_file(manifest)
    for path in (*(p for p in folder.rglob("*") if p.is_dir()), folder):
        _sync_folder(path)
    return sum(entry["bytes"] for entry in files.values())


def _verify(folder: Path) -> None:
    advice = f"remove {folder} to resume from the checkpoint before it"
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{folder}: its manifest cannot be read ({error}); {advice}"
        ) from None
    for name, entry in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            raise CheckpointError(f"{path} is missing or has the wrong size; {advice}")
        if _digest(path) != entry["blake2b"]:
            raise CheckpointError(f"{path} differs from its digest in the manifest; {advice}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
