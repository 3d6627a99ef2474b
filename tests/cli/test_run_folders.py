"""A run folder is resumed or refused, never written over."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import contents

from rledger.loop.run_folder import RunFolder

Speak = Callable[..., Any]
QUIET = ("evaluation.before_training=false", "checkpoint.export_hf=false", "run.num_steps=1")


def test_a_run_of_another_configuration_is_refused_with_the_difference(
    rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    assert rledger("train", recipe, *QUIET).status == 0
    before = contents(tmp_path / "runs")
    spoken = rledger("train", recipe, *QUIET, "run.seed=2", "trainer.max_grad_norm=none")
    assert spoken.status == 2
    assert (
        "belongs to a run with another configuration:\n  run.seed: 1 in the run, 2 now\n"
        in spoken.err
    )
    assert '  trainer.max_grad_norm: 1.0 in the run, "none" now\n' in spoken.err
    assert "choose another run.name (on the command line: run.name=NEW), or restore" in spoken.err
    after = contents(tmp_path / "runs")
    assert {k: v for k, v in after.items() if not k.endswith("lock")} == {
        k: v for k, v in before.items() if not k.endswith("lock")
    }


def test_a_run_in_use_is_refused_with_the_process(
    rledger: Speak, recipe: Path, make_recipe: Callable[..., Any], tmp_path: Path
) -> None:
    with RunFolder(tmp_path / "runs" / "small", make_recipe().recipe):
        spoken = rledger("train", recipe)
    assert spoken.status == 2
    assert re.search(r"small is in use by process \d+; wait for it to end, or choose", spoken.err)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_is_no_run_folder_is_left_alone(
    what: str, rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    place = tmp_path / "runs" / "small"
    mine = place / "thesis.txt" if what == "folder" else place
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", encoding="utf-8")
    spoken = rledger("train", recipe)
    assert spoken.status == 2
    assert re.search(
        r"small exists and is no run folder \(it has no recipe\.json\); choose another run\.name or"
        r" run\.root",
        spoken.err,
    )
    assert mine.read_text(encoding="utf-8") == "mine"
    assert [p for p in (tmp_path / "runs").rglob("*") if p.is_file()] == [mine]


def test_a_root_that_cannot_be_written_is_refused(rledger: Speak, recipe: Path) -> None:
    spoken = rledger("train", recipe, "run.root=/proc/nowhere")
    assert spoken.status == 2
    assert "/proc/nowhere/small cannot be written" in spoken.err
    assert "set run.root to a folder that can" in spoken.err


def test_an_altered_checkpoint_is_refused_with_the_way_back(
    rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    assert rledger("train", recipe, *QUIET).status == 0
    path = tmp_path / "runs" / "small" / "checkpoints" / "step-00000001" / "trainer"
    data = bytearray((path / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "weights.safetensors").write_bytes(data)
    spoken = rledger("train", recipe, *QUIET[:2], "run.num_steps=2")
    assert spoken.status == 2
    assert re.search(
        r"weights\.safetensors differs from its digest .*; remove .* to resume", spoken.err
    )
