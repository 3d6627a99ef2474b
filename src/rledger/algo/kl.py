"""KL to the reference policy: estimators, the penalty in the reward, controllers of its weight.

Estimators after J. Schulman, http://joschu.net/blog/kl-approx.html.

Legend for shapes: T tokens, B rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from rledger.algo.contract import LossOutputs, MetricSums
from rledger.algo.ratio import mean_over_tokens
from rledger.algo.segments import masked, segment_count, segment_mean
from rledger.config.algorithm import KlInReward, KlLossEstimator, KlRewardEstimator
from rledger.errors import CheckpointError

__all__ = [
    "AdaptiveKlController",
    "FixedKlController",
    "KlController",
    "build_kl_controller",
    "kl_estimate",
    "kl_in_reward",
    "kl_loss",
]

LOG_RATIO_BOUND = 20.0
K3_BOUND = 10.0
LARGEST_CORRECTION = 0.2


def _estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    log_ratio = logprobs - ref_logprobs
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    if estimator == "abs":
        return log_ratio.abs()
    if estimator == "k3":
        inverse = (-log_ratio).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        return (torch.expm1(inverse) - inverse).clamp(max=K3_BOUND)
    raise ValueError(f"unknown KL estimator {estimator!r}")


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KlLossEstimator) -> Tensor:
    """[T] estimate of KL(current || reference) at tokens drawn from the current policy.

    With d = logprob - ref_logprob: k1 = d, k2 = d^2 / 2, abs = |d|, k3 = exp(-d) - 1 + d with -d
    within +-20 and k3 at most 10, beyond which it has no gradient. k1 and k3 are unbiased in value,
    but only k2 has, on average, the gradient of the KL; k1+ and k3+ have the value of k1 and k3 and
    the gradient of k2.
    """
    if not estimator.endswith("+"):
        return _estimate(logprobs, ref_logprobs, estimator)
    value = _estimate(logprobs.detach(), ref_logprobs, estimator[:-1])
    gradient = _estimate(logprobs, ref_logprobs, "k2")
    return value + (gradient - gradient.detach())


def kl_loss(
    logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor, estimator: KlLossEstimator
) -> LossOutputs:
    """KL of each token [T] as a term of the loss, without its coefficient; aggregate it likewise.

    `actor/kl_loss` is its mean over loss tokens.
    """
    estimate = kl_estimate(
        masked(logprobs, loss_mask), masked(ref_logprobs.detach(), loss_mask), estimator
    )
    return LossOutputs(
        token_losses=masked(estimate, loss_mask),
        metrics={"actor/kl_loss": mean_over_tokens(estimate, loss_mask)},
    )


@torch.no_grad()
def kl_in_reward(
    token_rewards: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor,
    loss_mask: Tensor,
    rows: Tensor,
    num_rows: int,
    estimator: KlRewardEstimator,
    coef: float,
) -> tuple[Tensor, MetricSums]:
    """[T] token rewards - coef KL on loss tokens, in new memory, and what the controller measures.

    `actor/reward_kl_penalty` is the mean over rows of the mean over each row's loss tokens, rows
    without any left out.
    """
    estimate = kl_estimate(
        masked(old_logprobs, loss_mask), masked(ref_logprobs, loss_mask), estimator
    )
    penalised = token_rewards - coef * masked(estimate, loss_mask)
    of_rows = segment_mean(estimate, rows, num_rows, loss_mask).sum()
    num_measured = (segment_count(rows, num_rows, loss_mask) > 0).sum().to(of_rows.dtype)
    return penalised, {"actor/reward_kl_penalty": (of_rows, num_measured)}


class KlController(Protocol):
    """The weight of the KL penalty in the reward."""

    @property
    def coef(self) -> float:
        """Weight for the step at hand."""
        ...

    def update(self, measured_kl: float, num_trajectories: int) -> None:
        """Take note of a step's mean KL per token; moves the weight of the steps after it."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class FixedKlController:
    """The recipe's weight, always. It has no state: a resumed run takes its recipe's weight."""

    def __init__(self, coef: float) -> None:
        self._coef = coef

    @property
    def coef(self) -> float:
        return self._coef

    def update(self, measured_kl: float, num_trajectories: int) -> None:
        del measured_kl, num_trajectories

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state


class AdaptiveKlController:
    """coef <- coef (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon), https://arxiv.org/abs/1909.08593.

    n counts trajectories and n / horizon is at most 1, so that the weight stays positive.
    """

    def __init__(self, coef: float, target: float, horizon_trajectories: int) -> None:
        self._coef = coef
        self._target = target
        self._horizon_trajectories = horizon_trajectories

    @property
    def coef(self) -> float:
        return self._coef

    def update(self, measured_kl: float, num_trajectories: int) -> None:
        error = measured_kl / self._target - 1.0
        bounded = min(max(error, -LARGEST_CORRECTION), LARGEST_CORRECTION)
        self._coef *= 1.0 + bounded * min(num_trajectories / self._horizon_trajectories, 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self._coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        coef = state.get("coef")
        if not isinstance(coef, float) or not math.isfinite(coef) or coef <= 0.0:
            raise CheckpointError(
                f"the checkpoint holds no weight for the adaptive KL controller (coef = {coef!r}): "
                "resume with the recipe that wrote it, or start a new run"
            )
        self._coef = coef


def build_kl_controller(config: KlInReward) -> KlController:
    """The controller that the recipe asks for."""
    if config.controller == "fixed":
        return FixedKlController(config.coef)
    return AdaptiveKlController(config.coef, config.target, config.horizon_trajectories)
