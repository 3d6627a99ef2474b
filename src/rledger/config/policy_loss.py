"""The table `[algorithm.loss]`: the policy loss of a token.

A new loss is one file in `rledger.algo.loss`, named like its `type`, and one class here that joins
the union `PolicyLoss`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, model_validator

from rledger.config.base import Section

__all__ = [
    "Aggregation",
    "CispoLoss",
    "ClipCovLoss",
    "DppoKlLoss",
    "DppoTvLoss",
    "DroLoss",
    "GeoMeanLoss",
    "GspoLoss",
    "KlCovLoss",
    "PolicyLoss",
    "PolicyLossSection",
    "PpoLoss",
    "ReinforceLoss",
    "SapoLoss",
]

Aggregation = Literal[
    "token_mean",
    "token_sum",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
    "seq_mean_token_mean",
]
LowerClip = Annotated[float, Field(gt=0.0, le=1.0)]
ShareOfTokens = Annotated[float, Field(gt=0.0, le=1.0)]


class PolicyLossSection(Section):
    """What every policy loss declares about itself."""

    default_aggregation: ClassVar[Aggregation] = "token_mean"  # what `aggregation = "auto"` means
    depends_on_micro_batching: ClassVar[bool] = False  # selects tokens among those of one call


class PpoLoss(PolicyLossSection):
    """Clipped ratio with its own bound up and down, and a dual clip for negative advantages."""

    type: Literal["ppo"] = "ppo"
    clip_low: LowerClip = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped above at 1 + clip_high; DAPO's clip-higher is 0.28."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = 3.0
    """Upper bound of the ratio where the advantage is negative; none leaves it unbounded."""


class GspoLoss(PolicyLossSection):
    """One ratio per sequence: the geometric mean of its tokens' ratios, clipped."""

    default_aggregation: ClassVar[Aggregation] = "seq_mean_token_mean"

    type: Literal["gspo"] = "gspo"
    clip_low: LowerClip = 3e-4
    """The sequence ratio is clipped below at 1 - clip_low."""
    clip_high: PositiveFloat = 4e-4
    """The sequence ratio is clipped above at 1 + clip_high."""


class CispoLoss(PolicyLossSection):
    """Policy gradient weighted by the clipped ratio as a constant: no token loses its gradient."""

    type: Literal["cispo"] = "cispo"
    clip_low: LowerClip = 1.0
    """The ratio is clipped below at 1 - clip_low; 1 sets no lower bound."""
    clip_high: PositiveFloat = 4.0
    """The ratio is clipped above at 1 + clip_high."""


class SapoLoss(PolicyLossSection):
    """A smooth gate on the ratio in place of clipping."""

    default_aggregation: ClassVar[Aggregation] = "seq_mean_token_mean"

    type: Literal["sapo"] = "sapo"
    tau_positive: PositiveFloat = 1.0
    """Sharpness of the gate where the advantage is positive."""
    tau_negative: PositiveFloat = 1.05
    """Sharpness of the gate where the advantage is zero or negative."""


class DppoTvLoss(PolicyLossSection):
    """Drops tokens whose probability has moved too far in the direction the advantage pushes."""

    type: Literal["dppo_tv"] = "dppo_tv"
    divergence_low: PositiveFloat = 0.2
    """Largest fall of a token's probability where the advantage is not positive."""
    divergence_high: PositiveFloat = 0.2
    """Largest rise of a token's probability where the advantage is positive."""
    ratio_cap: PositiveFloat = 20.0
    """Upper bound of the ratio as a weight."""


class DppoKlLoss(PolicyLossSection):
    """As dppo_tv, with the KL divergence of the two outcomes "this token" and "another"."""

    type: Literal["dppo_kl"] = "dppo_kl"
    divergence_low: PositiveFloat = 0.05
    """Largest divergence of a falling token where the advantage is not positive."""
    divergence_high: PositiveFloat = 0.05
    """Largest divergence of a rising token where the advantage is positive."""
    ratio_cap: PositiveFloat = 20.0
    """Upper bound of the ratio as a weight."""


class ClipCovLoss(PolicyLossSection):
    """PPO that drops the gradient of a few random tokens whose covariance lies in a band."""

    depends_on_micro_batching: ClassVar[bool] = True

    type: Literal["clip_cov"] = "clip_cov"
    clip_low: LowerClip = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    share: ShareOfTokens = 2e-4
    """Share of a micro-batch's trained tokens that lose their gradient, at least one token."""
    cov_low: float = 1.0
    """Covariance above which a token may be chosen."""
    cov_high: float = 5.0
    """Covariance below which a token may be chosen."""

    @model_validator(mode="after")
    def _check_band(self) -> ClipCovLoss:
        if self.cov_low >= self.cov_high:
            raise ValueError(
                f"cov_low = {self.cov_low} must be below cov_high = {self.cov_high}: "
                "no token lies between"
            )
        return self


class KlCovLoss(PolicyLossSection):
    """Unclipped ratio with a penalty on the tokens of highest covariance."""

    depends_on_micro_batching: ClassVar[bool] = True

    type: Literal["kl_cov"] = "kl_cov"
    share: ShareOfTokens = 2e-4
    """Share of a micro-batch's trained tokens that are penalised, at least one token."""
    coef: PositiveFloat = 1.0
    """Weight of the absolute log-ratio on those tokens."""


class GeoMeanLoss(PolicyLossSection):
    """One ratio per sequence from log-ratios clipped token by token (GMPO)."""

    default_aggregation: ClassVar[Aggregation] = "seq_mean_token_mean"

    type: Literal["geo_mean"] = "geo_mean"
    clip_low: PositiveFloat = 0.4
    """A token's log-ratio is kept above -clip_low where the advantage is negative."""
    clip_high: PositiveFloat = 0.4
    """A token's log-ratio is kept below clip_high where the advantage is positive."""


class DroLoss(PolicyLossSection):
    """Policy gradient with a quadratic penalty on the log-ratio."""

    type: Literal["dro"] = "dro"
    beta: PositiveFloat
    """Weight of the penalty; it has no sensible default."""


class ReinforceLoss(PolicyLossSection):
    """Plain policy gradient; with the gpg advantage it is GPG."""

    type: Literal["reinforce"] = "reinforce"


PolicyLoss = Annotated[
    PpoLoss
    | GspoLoss
    | CispoLoss
    | SapoLoss
    | DppoTvLoss
    | DppoKlLoss
    | ClipCovLoss
    | KlCovLoss
    | GeoMeanLoss
    | DroLoss
    | ReinforceLoss,
    Field(discriminator="type"),
]
