"""Group reward-decoupled normalisation (GDPO), https://arxiv.org/abs/2601.05242."""

from __future__ import annotations

import torch

from rledger.algo.contract import AdvantageInputs, AdvantageOutputs
from rledger.algo.groups import normalise, to_tokens
from rledger.algo.segments import whiten, wide
from rledger.config.advantage import GdpoAdvantage
from rledger.errors import DataError

__all__ = ["advantages"]


def advantages(config: GdpoAdvantage, inputs: AdvantageInputs) -> AdvantageOutputs:
    """Sum over components k of w_k (r_k - mean of the group) / (std of the group + 1e-6), whitened.

    The whitening is over the rows of the step, as in the paper: the mean there is 0, so a row
    without signal keeps exactly 0. verl whitens over tokens, where long rows count more often and
    shift the rest. Reads the reward components and no token rewards, so KL in the reward and
    shaping have no effect on it.
    Group-relative; no critic. A single member gets 0, as does a component equal within the group.
    """
    known = inputs.reward_components
    if not known:
        raise DataError(
            "advantage.type = gdpo needs reward components: return them from the reward function"
        )
    weights = config.weights or dict.fromkeys(known, 1.0)
    missing = sorted(set(weights) - set(known))
    if missing:
        raise DataError(
            f"advantage.weights names {', '.join(missing)}, but the reward function returns "
            f"{', '.join(sorted(known))}"
        )
    total = torch.zeros_like(wide(inputs.rewards))
    for name, weight in weights.items():
        total = total + weight * normalise(wide(known[name]), inputs)
    everyone = torch.ones_like(total, dtype=torch.bool)
    signal = torch.where(total == 0, total, whiten(total, everyone))
    return AdvantageOutputs(advantages=to_tokens(signal, inputs))
