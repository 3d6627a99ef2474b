"""On-policy RL with the optimal reward baseline (OPO), https://arxiv.org/abs/2505.23585."""

from __future__ import annotations

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.groups import has_spread, row_scores, to_tokens
from rledger.algo.segments import masked, segment_count, segment_sum
from rledger.config.advantage import OpoAdvantage

__all__ = ["advantages"]


def advantages(config: OpoAdvantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """A = R - sum(length R) / sum(length) over the group, length counting loss tokens.

    Group-relative; no critic. A single member and a group of equal rewards get exactly 0. A row
    without loss tokens has length 0 and does not move the baseline.
    """
    del config
    scores = row_scores(inputs)
    lengths = segment_count(inputs.rows, inputs.num_rows, inputs.loss_mask)
    weighted = segment_sum(lengths * scores, inputs.groups, inputs.num_groups)
    baseline = weighted / segment_sum(lengths, inputs.groups, inputs.num_groups).clamp(min=1)
    result = masked(scores - baseline[inputs.groups], has_spread(scores, inputs))
    return AdvantageOutputs(advantages=to_tokens(result, inputs))
