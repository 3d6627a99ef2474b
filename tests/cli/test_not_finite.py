"""A loss that is not finite stops the run before the update, naming the trajectories."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import contents
from safetensors.torch import load_file, save_file

Speak = Callable[..., Any]
QUIET = (
    "evaluation.before_training=false",
    "checkpoint.export_hf=false",
    "evaluation.num_prompts=1",
)

REWARDS = """
from pathlib import Path

def turns_huge(prompt, completion, payload):
    grown = Path("now").exists()
    return (3e38 if "0" in completion else -3e38) if grown else completion.count("0") / 8

def beyond(prompt, completion, payload):
    return 1e300

def infinite(prompt, completion, payload):
    return {"score": 1.0, "part": float("inf")}
"""


@pytest.fixture(autouse=True)
def rewards(tmp_path: Path) -> None:
    (tmp_path / "rewards_of_test.py").write_text(REWARDS, encoding="utf-8")


def test_a_loss_that_is_not_finite_leaves_weights_and_checkpoint_as_they_were(
    rledger: Speak, recipe: Path, tmp_path: Path
) -> None:
    overrides = (
        "tasks.data.reward.path=rewards_of_test:turns_huge",
        "algorithm.advantage.type=rloo",
        "checkpoint.every_steps=1",
        *QUIET,
    )
    assert rledger("train", recipe, "run.num_steps=1", *overrides).status == 0
    checkpoints = tmp_path / "runs" / "small" / "checkpoints"
    before = contents(checkpoints)
    (tmp_path / "now").touch()
    spoken = rledger("train", recipe, "run.num_steps=3", *overrides)
    assert spoken.status == 2
    assert re.search(
        r"the loss of the policy is not finite; trajectories g\d{8}/\d.*No weight was changed: look at",
        spoken.err,
    )
    assert "Traceback" not in spoken.err
    assert contents(checkpoints) == before
    (tmp_path / "now").unlink()
    assert rledger("train", recipe, "run.num_steps=3", *overrides).status == 0


def test_a_reward_beyond_float32_names_its_trajectory(rledger: Speak, recipe: Path) -> None:
    spoken = rledger("train", recipe, "tasks.data.reward.path=rewards_of_test:beyond", *QUIET)
    assert spoken.status == 2
    assert re.search(
        r"trajectory g0{8}/0: its reward is 1e\+300, beyond the range of float32 .*; scale the reward",
        spoken.err,
    )


def test_an_infinite_component_is_a_failure_with_a_name(rledger: Speak, recipe: Path) -> None:
    spoken = rledger(
        "train", recipe, "tasks.data.reward.path=rewards_of_test:infinite",
        "algorithm.dynamic_sampling.max_rounds=2", *QUIET,
    )  # fmt: skip
    assert spoken.status == 2
    assert re.search(
        r"reward_invalid: trajectory g\d+/\d+: .* 'part' = inf, not a finite", spoken.err
    )


def test_weights_that_are_not_finite_stop_the_run_before_the_update(
    rledger: Speak, recipe: Path, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    state = load_file(folder / "model.safetensors")
    state["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.nan
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    spoken = rledger("train", recipe, f"model.path={folder}", *QUIET)
    assert spoken.status == 2
    assert re.search(r"g0{8}/\d: the logits of policy version 0 are not finite", spoken.err)
    assert not any((tmp_path / "runs" / "small").glob("checkpoints/step-*"))
