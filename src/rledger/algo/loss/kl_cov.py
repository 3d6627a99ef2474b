"""KL-Cov, https://arxiv.org/abs/2505.22617."""

from __future__ import annotations

from rledger.algo.contract import LossInputs, LossOutputs
from rledger.algo.ratio import clamped_log_ratio, mean_over_tokens, policy_metrics
from rledger.algo.segments import masked
from rledger.algo.selection import covariances, highest, share_of_tokens
from rledger.config.policy_loss import KlCovLoss

__all__ = ["loss"]


def loss(config: KlCovLoss, inputs: LossInputs) -> LossOutputs:
    """-A r, plus coef |log r| on the share of loss tokens (at least one) of highest covariance.

    Means and share are those of the micro-batch given, as in the paper's code, so that the result
    depends on micro-batching. The log-ratio lies within +-20. At r = 1 the penalty's gradient is 0.
    `actor/pg_covfrac` is the share of tokens penalised; nothing is clipped.
    """
    ratios = clamped_log_ratio(inputs)
    count = share_of_tokens(config.share, inputs.loss_mask)
    chosen = highest(covariances(inputs), inputs.loss_mask, count)
    metrics = policy_metrics(inputs)
    metrics["actor/pg_covfrac"] = mean_over_tokens(chosen, inputs.loss_mask)
    penalty = config.coef * masked(ratios.abs(), chosen)
    return LossOutputs(token_losses=-inputs.advantages * ratios.exp() + penalty, metrics=metrics)
