"""What a run is: how much of what, from which seed, in which folder."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from rledger.config.base import Section

__all__ = ["CheckpointConfig", "RunConfig"]


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(
            "a run's name is a folder's: letters, digits, dot, dash and underscore, beginning with a"
            " letter or digit; folders above it go into run.root"
        )
    return name


class RunConfig(Section):
    """The size and the identity of a run."""

    name: Annotated[str, AfterValidator(_check_name)]
    """Name of the run; its folder is `<root>/<name>`."""
    root: str = "runs"
    """Folder that holds the run folders."""
    seed: int = Field(default=1, ge=0, lt=2**31)
    """Seed of everything random: data order, sampling, initialisation."""
    num_steps: int = Field(ge=1)
    """Steps to train; a finished run can be extended by raising it."""
    num_prompts_per_step: int = Field(ge=1)
    """Groups that one step trains on."""
    group_size: int = Field(ge=1)
    """Trajectories per prompt."""
    max_policy_age: int = Field(default=0, ge=0)
    """Hard bound on a token's age at the take, in steps; 0 is fully synchronous."""
    deterministic: bool = False
    """Make every number reproducible bit by bit: across neighbours, preemption, kill and resume. Slower."""
    threads_per_role: int | None = Field(default=None, ge=1)
    """Threads of each role; unset takes the cores this process may use. Set it to reproduce bits elsewhere."""
    stage_timeout_s: float = Field(default=3600.0, gt=0)
    """A stage that makes no end within this time stops the run with an error that names it."""


class CheckpointConfig(Section):
    """When to save, and what to keep."""

    every_steps: int = Field(default=0, ge=0)
    """Save after each so many steps; 0 saves only at the end of the run and on Ctrl-C."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints to keep; older ones are removed after a newer one is complete."""
    export_hf: bool = True
    """Write the policy as a Hugging Face folder `<run>/model` when the run ends."""
