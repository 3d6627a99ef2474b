"""GRPO for pass@k: the lead of the best over the second best, https://arxiv.org/abs/2503.19595."""

from __future__ import annotations

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.groups import STD_EPSILON, has_spread, row_scores, to_tokens
from rledger.algo.segments import masked, segment_count, segment_max, segment_std
from rledger.config.advantage import GrpoPasskAdvantage

__all__ = ["advantages"]


def advantages(config: GrpoPasskAdvantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """A = (best - second best) [/ (std of the group + 1e-6)] for the best member, 0 for all others.

    Where several are best the lead is 0 and so are all. Group-relative; no critic. A single member
    gets 0 (verl refuses it).
    """
    scores = row_scores(inputs)
    groups, num_groups = inputs.groups, inputs.num_groups
    best = scores == segment_max(scores, groups, num_groups)[groups]
    alone = best & (segment_count(groups, num_groups, best)[groups] == 1)
    leads = alone & has_spread(scores, inputs)
    second = segment_max(scores, groups, num_groups, ~best)[groups]
    result = masked(scores - second, leads)
    if config.norm_by_std:
        result = result / (segment_std(scores, groups, num_groups)[groups] + STD_EPSILON)
    return AdvantageOutputs(advantages=to_tokens(result, inputs))
