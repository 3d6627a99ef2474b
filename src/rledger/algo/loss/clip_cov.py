"""Clip-Cov, https://arxiv.org/abs/2505.22617."""

from __future__ import annotations

import torch

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import clamped_log_ratio, mean_over_tokens, policy_metrics
from rledger.algo.segments import masked
from rledger.algo.selection import covariances, highest, share_of_tokens, uniform
from rledger.config.policy_loss import ClipCovLoss

__all__ = ["loss"]


def loss(config: ClipCovLoss, inputs: LossInputs) -> LossOutputs:
    """max(-A r, -A clip(r)), and 0 for a random few of the tokens with cov_low < cov < cov_high.

    cov is the token's covariance of advantage and log-probability. At most a share of the loss
    tokens, at least one, is drawn among those in the band that the ratio has not clipped already.
    The draw depends on `LossInputs.seed` alone (verl draws from the global, unseeded generator).
    Means, share and draw are those of the micro-batch given, as in the paper's code, so that the
    result depends on micro-batching. `pg_clipfrac` counts tokens clipped by the ratio (verl counts
    only those drawn), `actor/pg_covfrac` those drawn.
    """
    ratio = clamped_log_ratio(inputs).exp()
    plain = -inputs.advantages * ratio
    clipped = -inputs.advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    is_clipped = clipped > plain
    cov = covariances(inputs)
    in_band = (cov > config.cov_low) & (cov < config.cov_high)
    candidates = inputs.loss_mask & ~is_clipped & in_band
    count = share_of_tokens(config.share, inputs.loss_mask)
    drawn = highest(uniform(inputs), candidates, count)
    metrics = policy_metrics(inputs, clipped=is_clipped)
    metrics["actor/pg_covfrac"] = mean_over_tokens(drawn, inputs.loss_mask)
    return LossOutputs(token_losses=masked(torch.maximum(plain, clipped), ~drawn), metrics=metrics)
