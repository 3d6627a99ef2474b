"""Geometric-mean policy optimisation (GMPO), https://arxiv.org/abs/2507.20673."""

from __future__ import annotations

import torch

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import LOG_RATIO_BOUND, log_ratio, policy_metrics
from rledger.algo.segments import segment_mean
from rledger.config.policy_loss import GeoMeanLoss

__all__ = ["loss"]


def loss(config: GeoMeanLoss, inputs: LossInputs) -> LossOutputs:
    """-A exp(mean over the row of clipped log-ratios), on each loss token of the row.

    A is the row's mean advantage. A token's log-ratio is held below high where A > 0, above -low
    where A < 0; their mean lies within +-20. The bounds are those of the log-ratio (the paper:
    0.4). seq_mean_token_mean of the tokens is the paper's mean over sequences, with the update's
    normaliser (verl takes a plain mean over the micro-batch). `pg_clipfrac` and
    `pg_clipfrac_lower` are the shares of tokens held from above and from below (verl also counts
    log-ratios past a bound that does not hold them).
    """
    rows, mask = inputs.rows, inputs.loss_mask
    of_row = segment_mean(inputs.advantages, rows, inputs.num_rows, mask)
    on_token, ratios = of_row[rows], log_ratio(inputs)
    held_above = (on_token > 0) & (ratios > config.clip_high)
    held_below = (on_token < 0) & (ratios < -config.clip_low)
    ratios = torch.where(held_above, config.clip_high, ratios)
    ratios = torch.where(held_below, -config.clip_low, ratios)
    mean = segment_mean(ratios, rows, inputs.num_rows, mask)
    row_losses = -of_row * mean.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    return LossOutputs(
        token_losses=row_losses.to(inputs.logprobs.dtype)[rows],
        metrics=policy_metrics(inputs, clipped=held_above, clipped_lower=held_below),
    )
