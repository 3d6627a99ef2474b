"""Group policy gradient (GPG), https://arxiv.org/abs/2504.02546."""

from __future__ import annotations

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.groups import centre, has_spread, row_scores, to_tokens
from rledger.algo.segments import wide
from rledger.config.advantage import GpgAdvantage

__all__ = ["advantages"]


def advantages(config: GpgAdvantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """A = alpha (R - mean of the group) / f_norm, alpha = rows / rows whose group has spread.

    Alpha makes up for the rows that carry no gradient because their group's rewards are all equal,
    as in the paper; verl divides by the number of rows whose reward is not 0 instead, which depends
    on where the reward's zero lies. Group-relative; no critic. Single members get 0.
    """
    scores = row_scores(inputs)
    num_with_signal = wide(has_spread(scores, inputs)).sum().clamp(min=1)
    alpha = inputs.num_rows / num_with_signal
    return AdvantageOutputs(
        advantages=to_tokens(alpha * centre(scores, inputs) / config.f_norm, inputs)
    )
