"""GRPO, https://arxiv.org/abs/2402.03300, and Dr. GRPO, https://arxiv.org/abs/2503.20783."""

from __future__ import annotations

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.groups import centre, normalise, row_scores, to_tokens
from rledger.config.advantage import GrpoAdvantage

__all__ = ["advantages"]


def advantages(config: GrpoAdvantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """A = (R - mean of the group) / (std of the group + 1e-6), the std with n - 1 and optional.

    Group-relative; no critic. A single member and a group of equal rewards get exactly 0 (verl
    gives a single member its raw reward, as if the baseline were 0).
    """
    scores = row_scores(inputs)
    result = normalise(scores, inputs) if config.norm_by_std else centre(scores, inputs)
    return AdvantageOutputs(advantages=to_tokens(result, inputs))
