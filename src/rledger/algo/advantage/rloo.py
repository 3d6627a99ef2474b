"""REINFORCE leave-one-out, https://arxiv.org/abs/2402.14740."""

from __future__ import annotations

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.groups import centre, row_scores, to_tokens
from rledger.algo.segments import segment_count
from rledger.config.advantage import RlooAdvantage

__all__ = ["advantages"]


def advantages(config: RlooAdvantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """A = R - mean of the others of the group = (R - mean of the group) n / (n - 1).

    Group-relative; no critic. A single member has no others and gets 0 (verl: its raw reward).
    """
    del config
    size = segment_count(inputs.groups, inputs.num_groups)
    factor = (size / (size - 1).clamp(min=1))[inputs.groups]
    result = centre(row_scores(inputs), inputs) * factor
    return AdvantageOutputs(advantages=to_tokens(result, inputs))
