"""Generalised advantage estimation, https://arxiv.org/abs/1506.02438."""

from __future__ import annotations

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.segments import next_in_segment, reverse_discounted_scan, whiten, wide
from rledger.config.advantage import GaeAdvantage
from rledger.errors import DataError

__all__ = ["advantages"]


def advantages(config: GaeAdvantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """A[t] = d[t] + gamma lam A[t+1] with d[t] = r[t] + gamma V[t+1] - V[t]; returns are A + V.

    t counts the loss tokens of a row: tokens that the policy did not choose are stepped over, for
    the values, the differences and the discount alike, and after the last one V and A are 0.
    Whitening, where configured, is over all loss tokens, after the returns are taken. Not
    group-relative; needs a critic. A row without loss tokens has nothing to learn.
    """
    if inputs.values is None:
        raise DataError("advantage.type = gae needs values: configure a critic")
    chosen = inputs.loss_mask.nonzero().squeeze(1)
    rows, values = inputs.rows[chosen], wide(inputs.values)[chosen]
    following = next_in_segment(values, rows)
    differences = wide(inputs.token_rewards)[chosen] + config.gamma * following - values
    estimates = reverse_discounted_scan(differences, rows, config.gamma * config.lam)

    raw = wide(inputs.token_rewards).new_zeros(inputs.rows.shape).index_copy(0, chosen, estimates)
    returns = raw.index_copy(0, chosen, estimates + values)
    result = whiten(raw, inputs.loss_mask) if config.whiten else raw
    dtype = inputs.token_rewards.dtype
    return AdvantageOutputs(advantages=result.to(dtype), returns=returns.to(dtype))
