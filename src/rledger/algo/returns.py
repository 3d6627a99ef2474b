"""Returns to go over the loss tokens of ragged rows."""

from __future__ import annotations

from torch import Tensor

from rledger.algo.contract import AdvantageInputs
from rledger.algo.segments import reverse_discounted_scan, wide

__all__ = ["discounted_returns"]


def discounted_returns(inputs: AdvantageInputs, gamma: float) -> Tensor:
    """[T] G[t] = r[t] + gamma G[t+1], t counting a row's loss tokens; 0 outside, in `wide`."""
    chosen = inputs.loss_mask.nonzero().squeeze(1)
    rewards = wide(inputs.token_rewards)
    scanned = reverse_discounted_scan(rewards[chosen], inputs.rows[chosen], gamma)
    return rewards.new_zeros(rewards.shape).index_copy(0, chosen, scanned)
