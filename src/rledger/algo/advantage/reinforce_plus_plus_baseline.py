"""REINFORCE++ with the group's mean as baseline, https://arxiv.org/abs/2501.03262."""

from __future__ import annotations

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.groups import centre, row_scores
from rledger.algo.segments import masked, whiten
from rledger.config.advantage import ReinforcePlusPlusBaselineAdvantage

__all__ = ["advantages"]


def advantages(
    config: ReinforcePlusPlusBaselineAdvantage, inputs: AdvantageInputs
) -> AdvantageOutputs:
    """R - mean of the group on each loss token, then whitened over all loss tokens.

    Group-relative; no critic. A single member and a group of equal rewards enter the whitening as 0
    (verl: a single member enters with its raw reward). The whitening's mean counts long rows more
    often, so that it is not 0 and rows that entered as 0 leave with a small common shift.
    """
    del config
    centred = centre(row_scores(inputs), inputs)
    on_tokens = masked(centred[inputs.rows], inputs.loss_mask)
    result = whiten(on_tokens, inputs.loss_mask)
    return AdvantageOutputs(advantages=result.to(inputs.token_rewards.dtype))
