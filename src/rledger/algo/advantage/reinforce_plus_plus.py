"""REINFORCE++, https://arxiv.org/abs/2501.03262."""

from __future__ import annotations

import torch

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.returns import discounted_returns
from rledger.algo.segments import whiten
from rledger.config.advantage import ReinforcePlusPlusAdvantage

__all__ = ["advantages"]


def advantages(config: ReinforcePlusPlusAdvantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """G[t] = r[t] + gamma G[t+1] over the loss tokens of a row; A is G whitened over all of them.

    Not group-relative; no critic. Where a row has tokens that the policy did not choose between its
    loss tokens, the return flows across them (verl restarts it there, so that earlier turns learn
    nothing of the outcome).
    """
    returns = discounted_returns(inputs, config.gamma)
    dtype: torch.dtype = inputs.token_rewards.dtype
    return AdvantageOutputs(
        advantages=whiten(returns, inputs.loss_mask).to(dtype), returns=returns.to(dtype)
    )
