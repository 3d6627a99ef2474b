"""Plain policy gradient (REINFORCE; with the gpg advantage GPG, https://arxiv.org/abs/2504.02546)."""

from __future__ import annotations

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import policy_metrics
from rledger.config.policy_loss import ReinforceLoss

__all__ = ["loss"]


def loss(config: ReinforceLoss, inputs: LossInputs) -> LossOutputs:
    """-A logprob; the old policy only shows in `actor/ppo_kl`."""
    del config
    return LossOutputs(
        token_losses=-inputs.advantages * inputs.logprobs, metrics=policy_metrics(inputs)
    )
