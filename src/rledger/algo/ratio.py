"""Log-ratios of the current to the old policy, and the metrics that every policy loss reports.

Legend for shapes: T tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rledger.algo.contract import LossInputs, MetricSums
from rledger.algo.segments import masked, wide

__all__ = ["clamped_log_ratio", "log_ratio", "mean_over_tokens", "policy_metrics", "signed"]

LOG_RATIO_BOUND = 20.0  # keeps exp() finite in float32, far above any ratio of use


def log_ratio(inputs: LossInputs) -> Tensor:
    """[T] logprobs - old_logprobs; 0 outside the loss mask, where a loss is given zeros for both."""
    return inputs.logprobs - inputs.old_logprobs


def clamped_log_ratio(inputs: LossInputs) -> Tensor:
    """[T] the log-ratio within +-20; beyond the bound the gradient is 0."""
    return log_ratio(inputs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def mean_over_tokens(values: Tensor, loss_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The metric "mean over loss tokens" of values [T], as a sum and a count."""
    return wide(masked(values.detach(), loss_mask)).sum(), wide(loss_mask).sum()


def policy_metrics(
    inputs: LossInputs, *, clipped: Tensor | None = None, clipped_lower: Tensor | None = None
) -> MetricSums:
    """KL from the old policy, and the shares of tokens clipped [T] bool; None counts none.

    `actor/ppo_kl` is the mean of -log-ratio (k1 of old against current). `actor/pg_clipfrac` and
    `actor/pg_clipfrac_lower` mean what the loss at hand says.
    """
    none = torch.zeros_like(inputs.loss_mask)
    columns = {
        "actor/ppo_kl": -clamped_log_ratio(inputs),
        "actor/pg_clipfrac": none if clipped is None else clipped,
        "actor/pg_clipfrac_lower": none if clipped_lower is None else clipped_lower,
    }
    return {name: mean_over_tokens(column, inputs.loss_mask) for name, column in columns.items()}


def signed(advantages: Tensor, if_positive: Tensor | float, otherwise: Tensor | float) -> Tensor:
    """[T] one value where the advantage is positive, another where it is zero or negative."""
    positive = torch.as_tensor(if_positive, dtype=advantages.dtype, device=advantages.device)
    other = torch.as_tensor(otherwise, dtype=advantages.dtype, device=advantages.device)
    return torch.where(advantages > 0, positive, other)
