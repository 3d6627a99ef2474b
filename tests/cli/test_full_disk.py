"""A disk that is full: the checkpoint before stays whole, and nothing is lost without a word.

A limit on the size of a file stands for the full disk: it needs no privileges, and the calls fail
alike. Where this machine lets us, a file system of 2 MiB is filled too.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import contents

Speak = Callable[..., Any]
_LIMITED = """
import resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from rledger.cli import main
sys.exit(main(sys.argv[1:]))
"""
REPOSITORY = Path(__file__).parents[2]
QUIET = (
    "evaluation.before_training=false",
    "checkpoint.export_hf=false",
    "evaluation.num_prompts=1",
)


def limited(limit_bytes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command with files of at most so many bytes."""
    return subprocess.run(
        [sys.executable, "-c", _LIMITED, str(limit_bytes), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=False,
    )


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before_and_the_run_resumes(
    rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    overrides = ("checkpoint.every_steps=1", *QUIET)
    assert rledger("train", recipe, "run.num_steps=2", *overrides).status == 0
    checkpoints = tmp_path / "runs" / "small" / "checkpoints"
    before = contents(checkpoints)
    done = limited(100_000, "train", recipe, "run.num_steps=4", *overrides)
    assert done.returncode == 2, done.stderr
    assert re.search(
        r"the checkpoint of step 3 could not be written to .*checkpoints: .*File too large.*; free some"
        r" space, and the same command resumes\. The checkpoint of step 2 is whole\.",
        done.stderr,
    )
    assert "Traceback" not in done.stderr
    assert contents(checkpoints) == before
    assert rledger("train", recipe, "run.num_steps=4", *overrides).status == 0
    assert rledger("train", recipe, "run.num_steps=4", "run.name=straight", *overrides).status == 0
    for step in ("step-00000003", "step-00000004"):
        straight = tmp_path / "runs" / "straight" / "checkpoints" / step / "trainer"
        assert contents(checkpoints / step / "trainer") == contents(straight)


def test_records_that_find_no_room_are_announced_and_end_in_status_2(
    recipe: Path, tmp_path: Path
) -> None:
    # A checkpoint's files have at most 160 kB, the books of 60 steps more than 200 kB.
    done = limited(200_000, "train", recipe, "run.num_steps=60", *QUIET)
    assert done.returncode == 2, done.stderr
    said = re.findall(
        r"books/0001-main\.jsonl: File too large; \d+ lines wait for room", done.stdout
    )
    assert len(said) == 1  # once, not after each step
    assert re.search(
        r"the record is incomplete: .*0001-main\.jsonl: File too large; \d+ lines wait for room\. The"
        r" checkpoints are whole",
        done.stderr,
    )
    run = tmp_path / "runs" / "small"
    assert (run / "checkpoints" / "step-00000060").is_dir()
    assert len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 61


def test_a_run_folder_that_finds_no_room_can_be_used_later(
    rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    done = limited(1500, "train", recipe, "run.num_steps=1", *QUIET)
    assert done.returncode == 2
    assert "recipe.json cannot be written (File too large); free some space" in done.stderr
    assert rledger("train", recipe, "run.num_steps=1", *QUIET).status == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a file system needs privileges that this process lacks")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_run_fills_a_disk_and_goes_on_once_there_is_room(
    rledger: Speak, recipe: Path, small_disk: Path
) -> None:
    overrides = ("run.num_steps=20", "checkpoint.every_steps=1", f"run.root={small_disk}", *QUIET)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_300_000))
    spoken = rledger("train", recipe, *overrides)
    assert spoken.status == 2
    assert re.search(r"could not be written .*No space left on device.*is whole\.", spoken.err)
    steps = [p.name for p in (small_disk / "small" / "checkpoints").iterdir()]
    assert steps and all(name.startswith("step-") for name in steps)
    ballast.unlink()
    assert rledger("train", recipe, *overrides).status == 0
    assert (small_disk / "small" / "checkpoints" / "step-00000020").is_dir()
