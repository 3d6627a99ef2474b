"""The table `[algorithm]`: advantage, policy loss, aggregation, KL, and the groups trained on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rledger.config.advantage import Advantage, GrpoAdvantage
from rledger.config.base import Section
from rledger.config.policy_loss import Aggregation, PolicyLoss, PpoLoss
from rledger.errors import ConfigError

__all__ = [
    "AlgorithmConfig",
    "DynamicSampling",
    "Kl",
    "KlInLoss",
    "KlInReward",
    "KlLossEstimator",
    "KlRewardEstimator",
    "NoKl",
    "OldLogprobsSource",
    "OverlongShaping",
]

OldLogprobsSource = Literal["recompute", "generator", "current"]
KlRewardEstimator = Literal["k1", "k2", "k3", "abs"]
KlLossEstimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]


class NoKl(Section):
    """No reference policy is used."""

    type: Literal["none"] = "none"


class KlInLoss(Section):
    """The estimate is added to the policy loss."""

    type: Literal["loss"] = "loss"
    estimator: KlLossEstimator = "k3"
    """k1, k2, k3 or abs; k1+ and k3+ have the named value and k2's gradient, which is unbiased."""
    coef: PositiveFloat = 1e-3
    """Weight of the term."""


class KlInReward(Section):
    """The estimate is subtracted from the token rewards before advantages are computed."""

    type: Literal["reward"] = "reward"
    estimator: KlRewardEstimator = "k1"
    """k1, k2, k3 or abs; there is no gradient, so k1 is unbiased."""
    coef: PositiveFloat = 1e-3
    """Weight of the penalty, or its first value with the adaptive controller."""
    controller: Literal["fixed", "adaptive"] = "fixed"
    """fixed keeps coef; adaptive moves it each step towards the target."""
    target: PositiveFloat = 0.1
    """KL per token that the adaptive controller aims at."""
    horizon_trajectories: PositiveInt = 10_000
    """Trajectories over which the adaptive controller corrects an error of 100 %."""


Kl = Annotated[NoKl | KlInLoss | KlInReward, Field(discriminator="type")]


class DynamicSampling(Section):
    """Groups without signal are dropped and others are generated in their place (DAPO)."""

    enabled: bool = False
    """Drop a group whose members all have the same value of the metric."""
    metric: str = "reward"
    """What is compared: reward, or the name of a reward component."""
    max_rounds: PositiveInt = 10
    """Rounds of prompts that one step may use up before the run stops."""


class OverlongShaping(Section):
    """A penalty that grows over the last tokens before the length limit (DAPO)."""

    buffer_tokens: Annotated[int, Field(ge=0)] = 0
    """Tokens before the limit over which the penalty grows; 0 turns it off."""
    penalty: PositiveFloat = 1.0
    """Penalty at the limit."""


class AlgorithmConfig(Section):
    """How rewards become gradients. The defaults are GRPO without a reference policy."""

    advantage: Advantage = GrpoAdvantage()
    """How rewards become advantages."""
    loss: PolicyLoss = PpoLoss()
    """The policy loss of a token."""
    aggregation: Aggregation | Literal["auto"] = "auto"
    """How token losses become one number; auto is the choice of the loss's own paper."""
    aggregation_scale: PositiveFloat | None = None
    """Divisor of seq_mean_token_sum_norm, usually the longest completion allowed; only for it."""
    kl: Kl = NoKl()
    """Whether a reference policy holds the policy back, and how."""
    entropy_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of the entropy bonus."""
    value_clip: PositiveFloat | None = 0.5
    """How far a value may move from the old one in the critic's loss; none does not clip."""
    old_logprobs: Literal["auto"] | OldLogprobsSource = "auto"
    """Where old_logprobs come from: current takes the update's own log-probabilities (the ratio
    is 1), recompute runs the trainer once before the updates, generator takes the generator's
    (bypass); auto is current where that is exact, else recompute."""
    dynamic_sampling: DynamicSampling = DynamicSampling()
    """Whether groups without signal are replaced."""
    overlong: OverlongShaping = OverlongShaping()
    """Whether long completions are penalised before they are cut."""
    min_group_size: PositiveInt | None = None
    """Survivors below which a group is dropped; none is 2 for group-relative advantages, else 1."""

    @field_validator("advantage", "loss", "kl", mode="before")
    @classmethod
    def _default_type(cls, value: object, info: ValidationInfo) -> object:
        """A table that does not name its type is of the default's type."""
        if isinstance(value, dict) and "type" not in value:
            assert info.field_name is not None
            return {"type": cls.model_fields[info.field_name].default.type, **value}
        return value

    @model_validator(mode="after")
    def _check_aggregation_scale(self) -> AlgorithmConfig:
        needs_scale = self.effective_aggregation == "seq_mean_token_sum_norm"
        if needs_scale and self.aggregation_scale is None:
            raise ValueError(
                "aggregation = seq_mean_token_sum_norm needs aggregation_scale: "
                "set it to the longest completion allowed"
            )
        if not needs_scale and self.aggregation_scale is not None:
            raise ValueError(
                f"aggregation_scale = {self.aggregation_scale} has no effect with aggregation = "
                f"{self.effective_aggregation}: remove it, or set aggregation to "
                "seq_mean_token_sum_norm"
            )
        return self

    @model_validator(mode="after")
    def _check_kl_in_reward(self) -> AlgorithmConfig:
        if self.kl.type == "reward" and self.old_logprobs == "current":
            raise ValueError(
                "kl.type = reward needs old_logprobs before advantages are computed: "
                "set old_logprobs to auto, recompute or generator"
            )
        return self

    @model_validator(mode="after")
    def _check_min_group_size(self) -> AlgorithmConfig:
        if self.advantage.group_relative and self.min_group_size == 1:
            raise ValueError(
                f"min_group_size = 1 with advantage.type = {self.advantage.type}: a single member "
                "has nothing to be compared with; set it to at least 2, or leave it out"
            )
        return self

    @property
    def effective_aggregation(self) -> Aggregation:
        """The aggregation in force: the recipe's, or the loss's own where the recipe says auto."""
        if self.aggregation == "auto":
            return self.loss.default_aggregation
        return self.aggregation

    @property
    def effective_min_group_size(self) -> int:
        """Survivors that a group needs to be trained on."""
        if self.min_group_size is not None:
            return self.min_group_size
        return 2 if self.advantage.group_relative else 1

    @property
    def needs_ref_logprobs(self) -> bool:
        """Whether the `ref` stage runs."""
        return self.kl.type != "none"

    def resolve_old_logprobs(self, num_updates_per_step: int) -> OldLogprobsSource:
        """Where old_logprobs come from in a run with so many updates a step.

        With one update the ratio compares the policy with itself: it is 1 by construction, and
        `old_log_prob` has nothing to compute unless KL in the reward reads it. Raises ConfigError
        where the recipe says `current` and the ratio would not stay 1.
        """
        if self.old_logprobs == "current" and num_updates_per_step > 1:
            raise ConfigError(
                f"algorithm.old_logprobs = current with num_updates_per_step = "
                f"{num_updates_per_step}: from the second update on the ratio is not 1; "
                "set algorithm.old_logprobs to auto or recompute"
            )
        if self.old_logprobs != "auto":
            return self.old_logprobs
        if num_updates_per_step == 1 and self.kl.type != "reward":
            return "current"
        return "recompute"
