"""Advantages, one module each. `compute` is the way in; the schema's `type` names the module."""

from __future__ import annotations

import sys

import torch

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.registry import discover
from rledger.config.advantage import Advantage

__all__ = ["ADVANTAGES", "AdvantageInputs", "AdvantageOutputs", "compute"]

ADVANTAGES = discover(sys.modules[__name__], "advantages")


@torch.no_grad()
def compute(config: Advantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """Advantages [T] and perhaps returns [T] of a step, 0 outside the loss mask; inputs unchanged.

    Statistics (of groups, and for whitening) are those of the rows given: give a whole step.
    Raises DataError where the rows lack what the algorithm reads.
    """
    outputs = ADVANTAGES[config.type](config, inputs)
    assert isinstance(outputs, AdvantageOutputs)
    return outputs
