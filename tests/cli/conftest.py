"""The command line as a user meets it: status, what it printed, and what it left on the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rledger.cli import main


@dataclass(frozen=True)
class Spoken:
    """What a command answered."""

    status: int
    out: str
    err: str


@pytest.fixture
def rledger(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Spoken]:
    """`rledger("train", recipe, ...)` in an empty current folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Spoken:
        capfd.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse
            status = int(stop.code or 0)
        out, err = capfd.readouterr()
        return Spoken(status, out, err)

    return run


@pytest.fixture
def recipe(make_recipe: Callable[..., Any], tmp_path: Path) -> Path:
    """The small recipe as a file."""
    make_recipe()
    return tmp_path / "recipe.toml"


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with its digest, to see that nothing was touched."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
