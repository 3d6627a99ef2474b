"""Group sequence policy optimisation (GSPO), https://arxiv.org/abs/2507.18071."""

from __future__ import annotations

import torch

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import log_ratio, policy_metrics
from rledger.algo.segments import segment_mean
from rledger.config.policy_loss import GspoLoss

__all__ = ["loss"]

LOG_RATIO_MAX = 10.0


def loss(config: GspoLoss, inputs: LossInputs) -> LossOutputs:
    """max(-A s, -A clip(s, 1 - low, 1 + high)) with s the geometric mean of the row's ratios.

    Each token carries s with its own gradient, s sg(.) times logprob (the paper's GSPO-token),
    which is the gradient of s itself where the advantages of a row are equal; log s is at most 10.
    The paper aggregates by seq_mean_token_mean, and so does `aggregation = "auto"`; any other
    aggregation that the recipe names is obeyed (verl overrides it without a word). `pg_clipfrac`
    is the share of tokens in clipped rows.
    """
    ratios = log_ratio(inputs)
    of_row = segment_mean(ratios.detach(), inputs.rows, inputs.num_rows, inputs.loss_mask)
    value = of_row.to(ratios.dtype)[inputs.rows]
    sequence_ratio = (value + (ratios - ratios.detach())).clamp(max=LOG_RATIO_MAX).exp()
    plain = -inputs.advantages * sequence_ratio
    bounded = sequence_ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    clipped = -inputs.advantages * bounded
    metrics = policy_metrics(inputs, clipped=clipped > plain)
    return LossOutputs(token_losses=torch.maximum(plain, clipped), metrics=metrics)
