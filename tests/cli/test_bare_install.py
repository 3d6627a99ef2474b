"""The base package in an environment of its own, without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `rledger` command of a fresh environment with the base package and nothing else."""
    place = tmp_path_factory.mktemp("bare")
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, source)
    shutil.copytree(
        REPOSITORY / "src",
        source / "src",
        ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"),
    )
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(place / "venv")], capture_output=True, check=False
    )
    if made.returncode != 0:  # some systems ship Python without ensurepip
        subprocess.run([sys.executable, "-m", "virtualenv", str(place / "venv")], check=True)
    done = subprocess.run(
        [str(place / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", str(source)],
        capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place / "venv" / "bin" / "rledger"


def _run(command: Path, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [str(command), *map(str, arguments)],
        capture_output=True, text=True, timeout=60, cwd=cwd, check=False, env=environment,
    )  # fmt: skip


def test_torch_is_not_there(bare: Path, tmp_path: Path) -> None:
    python = bare.with_name("python")
    for name in ("torch", "transformers", "safetensors", "ray"):
        assert _run(python, "-c", f"import {name}", cwd=tmp_path).returncode == 1
    assert _run(python, "-c", "import rledger.books", cwd=tmp_path).returncode == 0


def test_help_explain_dry_run_and_doctor_answer(bare: Path, recipe: Path, tmp_path: Path) -> None:
    for arguments, expected in (
        (("--help",), "Trains language models with reinforcement learning"),
        (("train", "--help"), "--dry-run"),
        (("explain", "trainer.learning_rate"), "Learning rate after the warm-up."),
        (("train", recipe, "--dry-run"), "# What runs"),
        (("doctor",), "training needs it: pip install 'rledger[train]'"),
    ):
        done = _run(bare, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert expected in " ".join(done.stdout.split())


def test_report_reads_a_run(
    bare: Path, rledger: Callable[..., Any], recipe: Path, tmp_path: Path
) -> None:
    assert rledger("train", recipe, "run.num_steps=2").status == 0
    done = _run(bare, "report", "small", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 committed" in done.stdout


@pytest.mark.parametrize("verb", ["train", "warmup", "model"])
def test_what_needs_torch_says_how_to_install_it(
    verb: str, bare: Path, recipe: Path, tmp_path: Path
) -> None:
    arguments: tuple[object, ...] = (recipe,)
    if verb == "model":
        arguments = ("export", "runs/none", "out")
    if verb == "warmup":
        arguments = (REPOSITORY / "recipes" / "demo-warmup.toml",)
    done = _run(bare, verb, *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.endswith("install it with pip install 'rledger[train]'\n")
    assert f"rledger {verb}: needs the package " in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()
