"""CISPO, https://arxiv.org/abs/2506.13585."""

from __future__ import annotations

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import clamped_log_ratio, policy_metrics
from rledger.config.policy_loss import CispoLoss

__all__ = ["loss"]


def loss(config: CispoLoss, inputs: LossInputs) -> LossOutputs:
    """-A w logprob with the constant w = clip(r, 1 - low, 1 + high); every token keeps a gradient.

    The schema's default sets no lower bound, like the paper, and holds the ratio below 5, a loose
    bound in the manner of ScaleRL (https://arxiv.org/abs/2510.13786); verl reuses PPO's 0.2 both
    ways. The log-ratio lies within +-20. `pg_clipfrac` is the share of tokens whose weight is
    clipped.
    """
    ratio = clamped_log_ratio(inputs).detach().exp()
    weight = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    metrics = policy_metrics(inputs, clipped=weight != ratio)
    return LossOutputs(token_losses=-inputs.advantages * weight * inputs.logprobs, metrics=metrics)
