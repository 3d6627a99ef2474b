"""Policy losses, one module each. `compute` is the way in; the schema's `type` names the module."""

from __future__ import annotations

import sys
from dataclasses import replace

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.registry import discover
from rledger.algo.segments import masked
from rledger.algo.value_loss import value_loss
from rledger.config.policy_loss import PolicyLoss

__all__ = ["LOSSES", "LossInputs", "LossOutputs", "compute", "value_loss"]

LOSSES = discover(sys.modules[__name__], "loss")


def _only_loss_tokens(inputs: LossInputs) -> LossInputs:
    """The inputs with 0 in place of whatever stands outside the loss mask.

    Masking the loss alone is not enough: a NaN or an infinity there would still turn into a NaN
    gradient on the way back.
    """
    mask = inputs.loss_mask
    return replace(
        inputs,
        logprobs=masked(inputs.logprobs, mask),
        old_logprobs=masked(inputs.old_logprobs.detach(), mask),
        advantages=masked(inputs.advantages.detach(), mask),
    )


def compute(config: PolicyLoss, inputs: LossInputs) -> LossOutputs:
    """Policy loss of each token [T] and metrics; inputs unchanged.

    Importance weights multiply the token losses of every algorithm alike (verl applies them to
    geo_mean as a geometric mean of the row). The metrics do not see them.
    """
    outputs = LOSSES[config.type](config, _only_loss_tokens(inputs))
    assert isinstance(outputs, LossOutputs)
    token_losses = outputs.token_losses
    if inputs.weights is not None:
        token_losses = token_losses * masked(inputs.weights.detach(), inputs.loss_mask)
    return replace(outputs, token_losses=masked(token_losses, inputs.loss_mask))
