"""ReMax, https://arxiv.org/abs/2310.10505."""

from __future__ import annotations

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.returns import discounted_returns
from rledger.algo.segments import masked, wide
from rledger.config.advantage import RemaxAdvantage
from rledger.errors import DataError

__all__ = ["advantages"]


def advantages(config: RemaxAdvantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """A[t] = sum of the token rewards from t on, less the reward of the prompt's greedy completion.

    Not group-relative; no critic; needs a greedy baseline.
    """
    del config
    if inputs.baseline_rewards is None:
        raise DataError(
            "advantage.type = remax needs baseline_rewards: generate a greedy completion per prompt"
        )
    returns = discounted_returns(inputs, 1.0)
    result = masked(returns - wide(inputs.baseline_rewards)[inputs.rows], inputs.loss_mask)
    dtype = inputs.token_rewards.dtype
    return AdvantageOutputs(advantages=result.to(dtype), returns=returns.to(dtype))
