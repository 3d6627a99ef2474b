"""The table `[algorithm.advantage]`: how rewards become advantages.

A new advantage is one file in `rledger.algo.advantage`, named like its `type`, and one class here
that joins the union `Advantage`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from rledger.config.base import Section

__all__ = [
    "Advantage",
    "AdvantageSection",
    "GaeAdvantage",
    "GdpoAdvantage",
    "GpgAdvantage",
    "GrpoAdvantage",
    "GrpoPasskAdvantage",
    "OpoAdvantage",
    "ReinforcePlusPlusAdvantage",
    "ReinforcePlusPlusBaselineAdvantage",
    "RemaxAdvantage",
    "RlooAdvantage",
]

UnitFloat = Annotated[float, Field(ge=0.0, le=1.0)]


class AdvantageSection(Section):
    """What every advantage declares about itself, so that recipes can be checked without torch."""

    group_relative: ClassVar[bool] = False  # compares the members of a group: needs group_size >= 2
    needs_critic: ClassVar[bool] = False  # reads values
    needs_greedy_baseline: ClassVar[bool] = False  # reads the reward of a greedy completion


class GaeAdvantage(AdvantageSection):
    """Generalised advantage estimation over a critic's values (PPO)."""

    needs_critic: ClassVar[bool] = True

    type: Literal["gae"] = "gae"
    gamma: UnitFloat = 1.0
    """Discount per trained token."""
    lam: UnitFloat = 1.0
    """Decay of the temporal differences; 1 is return minus value, 0 is the one-step difference."""
    whiten: bool = True
    """Scale advantages to mean 0 and variance 1 over the trained tokens of the step."""


class GrpoAdvantage(AdvantageSection):
    """Reward minus the group's mean, over the group's standard deviation."""

    group_relative: ClassVar[bool] = True

    type: Literal["grpo"] = "grpo"
    norm_by_std: bool = True
    """Divide by the group's standard deviation; false is Dr. GRPO."""


class RlooAdvantage(AdvantageSection):
    """Reward minus the mean of the other members of the group."""

    group_relative: ClassVar[bool] = True

    type: Literal["rloo"] = "rloo"


class ReinforcePlusPlusAdvantage(AdvantageSection):
    """Discounted return of each token, scaled over the trained tokens of the step."""

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: UnitFloat = 1.0
    """Discount per trained token."""


class ReinforcePlusPlusBaselineAdvantage(AdvantageSection):
    """Reward minus the group's mean, scaled over the trained tokens of the step."""

    group_relative: ClassVar[bool] = True

    type: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"


class RemaxAdvantage(AdvantageSection):
    """Return to go minus the reward of a greedy completion of the same prompt."""

    needs_greedy_baseline: ClassVar[bool] = True

    type: Literal["remax"] = "remax"


class OpoAdvantage(AdvantageSection):
    """Reward minus the group's mean weighted by length."""

    group_relative: ClassVar[bool] = True

    type: Literal["opo"] = "opo"


class GpgAdvantage(AdvantageSection):
    """Reward minus the group's mean, scaled up for the rows whose group carries no signal."""

    group_relative: ClassVar[bool] = True

    type: Literal["gpg"] = "gpg"
    f_norm: PositiveFloat = 1.0
    """Constant divisor of the centred reward."""


class GdpoAdvantage(AdvantageSection):
    """Each reward component normalised within its group by itself, summed, scaled over the step."""

    group_relative: ClassVar[bool] = True

    type: Literal["gdpo"] = "gdpo"
    weights: dict[str, float] = Field(default_factory=dict)
    """Weight of each reward component by name; empty takes every component with weight 1."""


class GrpoPasskAdvantage(AdvantageSection):
    """Only the single best member of a group is rewarded, by its lead over the second (pass@k)."""

    group_relative: ClassVar[bool] = True

    type: Literal["grpo_passk"] = "grpo_passk"
    norm_by_std: bool = True
    """Divide by the group's standard deviation."""


Advantage = Annotated[
    GaeAdvantage
    | GrpoAdvantage
    | RlooAdvantage
    | ReinforcePlusPlusAdvantage
    | ReinforcePlusPlusBaselineAdvantage
    | RemaxAdvantage
    | OpoAdvantage
    | GpgAdvantage
    | GdpoAdvantage
    | GrpoPasskAdvantage,
    Field(discriminator="type"),
]
