"""Direct reward optimisation (DRO), https://arxiv.org/abs/2405.19107."""

from __future__ import annotations

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import log_ratio, policy_metrics
from rledger.config.policy_loss import DroLoss

__all__ = ["loss"]


def loss(config: DroLoss, inputs: LossInputs) -> LossOutputs:
    """-(A logprob - beta (log r)^2 / 2), token by token; nothing is clipped.

    The paper regresses whole sequences on a learned value, the Kimi k1.5 report
    (https://arxiv.org/abs/2501.12599) on the group's mean reward; this is the policy's gradient of
    it with given advantages, token by token as in verl.
    """
    penalty = 0.5 * config.beta * log_ratio(inputs).square()
    return LossOutputs(
        token_losses=penalty - inputs.advantages * inputs.logprobs, metrics=policy_metrics(inputs)
    )
