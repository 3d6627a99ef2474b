"""What stands in the books: one typed, tagged record per line.

Times are seconds on the attempt's own monotonic clock, counted from its origin; the attempt's first
record ties that origin to the wall clock. Records are plain data: reading them executes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from rledger.errors import BooksError

__all__ = [
    "SCHEMA_VERSION",
    "STAGES",
    "STATES",
    "AttemptOpened",
    "BooksCost",
    "BoundsMeasured",
    "DataEvent",
    "DropReason",
    "Fate",
    "GroupAdmitted",
    "GroupEnded",
    "Record",
    "Resumed",
    "SpanRecord",
    "StageSkipped",
    "State",
    "StepCommitted",
    "TrackRecord",
    "TrajectoryEnded",
]

SCHEMA_VERSION = 1

State = Literal["compute", "wait", "communicate", "copy", "io", "idle"]
STATES: tuple[State, ...] = ("compute", "wait", "communicate", "copy", "io", "idle")

STAGES: tuple[str, ...] = (
    "gen",
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
    "save_checkpoint",
    "testing",
)

Fate = Literal["trained", "dropped"]


class DropReason(StrEnum):
    """Why a group, a trajectory or a token was not trained on; nothing else can be booked."""

    TOO_FEW_SURVIVORS = "too_few_survivors"  # less than min_group_size trajectories have a reward
    NO_SIGNAL = "no_signal"  # all rewards of the group are equal (dynamic sampling)
    TOO_OLD = "too_old"  # older than max_policy_age at the take
    SURPLUS = "surplus"  # more groups were ready than the step takes
    RUN_ENDED = "run_ended"  # the run stopped before the group was taken
    LOST = "lost"  # its process died and it could not be recovered
    ABORTED = "aborted"  # its generation was cut off on purpose
    REWARD_RAISED = "reward_raised"
    REWARD_TIMEOUT = "reward_timeout"
    REWARD_CRASHED = "reward_crashed"
    REWARD_INVALID = "reward_invalid"
    ENVIRONMENT = "environment"
    BASELINE = "baseline"  # a greedy trajectory that only serves as the group's baseline (ReMax)
    MASKED = "masked"  # generated tokens with loss_mask 0, such as filtered overlong completions


class _Record(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True, gc=False):
    pass


class AttemptOpened(_Record, frozen=True, tag="attempt", kw_only=True):
    """First record of a file: one process of one attempt at the run."""

    schema_version: int
    attempt: int  # 1 for the first process that wrote into the run, then 2, ...
    process: str
    pid: int
    host: str
    unix_origin_s: float  # wall clock at the origin that all times of this file count from


class SpanRecord(_Record, frozen=True, tag="span"):
    """A closed piece of a lane's time. Ids count the spans of a lane from 0 in order of opening."""

    id: int
    parent: int  # id of the enclosing span on the same lane, -1 for a root
    lane: str
    name: str
    state: State
    start_s: float
    end_s: float
    step: int | None = None
    policy_version: int | None = None
    num_inside: int = 0  # spans opened and closed inside this one: a lost row shows
    raised: bool = False  # ended by an exception
    on: str = ""  # what a wait waited for
    counts: dict[str, float] = {}  # msgspec copies mutable defaults

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class TrackRecord(_Record, frozen=True, tag="track"):
    """Elapsed time of a coroutine or a trajectory. Tracks overlap and are never added up."""

    lane: str
    name: str
    track: str  # whose time it is, such as a trajectory id
    start_s: float
    end_s: float
    step: int | None = None
    policy_version: int | None = None
    raised: bool = False
    counts: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class StageSkipped(_Record, frozen=True, tag="stage_skipped", kw_only=True):
    """A stage that the algorithm did not need in this step, and why."""

    stage: str
    step: int
    why: str
    at_s: float = -1.0


class BoundsMeasured(_Record, frozen=True, tag="bounds", kw_only=True):
    """What the machine can do at most, as measured in this attempt (see `rledger.cost`)."""

    flops_per_s: float
    bytes_per_s: float
    instrument: str  # how, in words: "matmul float32 1024^3, sum over 256 MB, 2 threads"
    at_s: float = -1.0


class GroupAdmitted(_Record, frozen=True, tag="group_admitted", kw_only=True):
    """A prompt was admitted: `group_size` trajectories of it are owed."""

    group_id: str
    prompt_id: str
    group_size: int
    step: int
    policy_version: int
    at_s: float = -1.0


class TrajectoryEnded(_Record, frozen=True, tag="trajectory_ended", kw_only=True):
    """A trajectory has all its tokens and its outcome. `failure` empty: it has a reward."""

    trajectory_id: str
    group_id: str
    step: int
    policy_version: int
    prompt_tokens: int
    generated_tokens: int
    finish_reason: Literal["stop", "length", "aborted"]
    failure: DropReason | None = None
    reward: float | None = None
    at_s: float = -1.0

    def __post_init__(self) -> None:
        if self.failure is not None:
            _known_reason(self.failure, self.trajectory_id)


class GroupEnded(_Record, frozen=True, tag="group_ended", kw_only=True):
    """The one terminal event of a group, counted apart from its trajectories: both must agree.

    Trained trajectories + dropped ones = trajectories of the group; trained tokens + dropped ones =
    tokens generated for it. `useful_tokens` of the trained ones were not rejected by a correction
    and have an advantage other than zero.
    """

    group_id: str
    fate: Fate
    step: int
    policy_version: int
    reason: DropReason | None = None  # of a dropped group
    num_trained_trajectories: int = 0
    trained_tokens: int = 0  # loss_mask 1 in the committed step
    useful_tokens: int = 0
    dropped_trajectories: dict[DropReason, int] = {}
    dropped_tokens: dict[DropReason, int] = {}
    at_s: float = -1.0

    def __post_init__(self) -> None:
        if self.fate not in ("trained", "dropped"):
            raise BooksError(
                f"group {self.group_id}: fate {self.fate!r} is neither trained nor dropped"
            )
        if (self.fate == "dropped") != (self.reason is not None):
            raise BooksError(f"group {self.group_id}: a dropped group, and no other, has a reason")
        if self.reason is not None:
            _known_reason(self.reason, self.group_id)
        for reason in (*self.dropped_trajectories, *self.dropped_tokens):
            _known_reason(reason, self.group_id)
        if self.fate == "dropped" and (self.trained_tokens or self.num_trained_trajectories):
            raise BooksError(f"group {self.group_id} is dropped and has trained tokens")
        if not 0 <= self.useful_tokens <= self.trained_tokens:
            raise BooksError(f"group {self.group_id}: useful_tokens must lie in 0..trained_tokens")


class StepCommitted(_Record, frozen=True, tag="step_committed", kw_only=True):
    """The last update of a step is applied; `policy_version` is the new one."""

    step: int
    policy_version: int
    group_ids: tuple[str, ...]
    at_s: float = -1.0


class Resumed(_Record, frozen=True, tag="resumed", kw_only=True):
    """This attempt goes on from the state after `step`: what earlier attempts booked of later steps
    did not happen on the surviving timeline."""

    step: int
    policy_version: int
    at_s: float = -1.0


class BooksCost(_Record, frozen=True, tag="books_cost", kw_only=True):
    """What observing cost so far in this attempt: seconds inside the books, bytes written."""

    step: int | None
    cost_s: float
    num_records: int
    written_bytes: int
    lost_records: int = 0
    at_s: float = -1.0


DataEvent = (
    BoundsMeasured
    | StageSkipped
    | GroupAdmitted
    | TrajectoryEnded
    | GroupEnded
    | StepCommitted
    | Resumed
    | BooksCost
)
Record = (
    AttemptOpened
    | SpanRecord
    | TrackRecord
    | BooksCost
    | BoundsMeasured
    | StageSkipped
    | GroupAdmitted
    | TrajectoryEnded
    | GroupEnded
    | StepCommitted
    | Resumed
)

_REASONS = frozenset(DropReason)


def _known_reason(reason: str, whose: str) -> None:
    if reason not in _REASONS:
        raise BooksError(f"{whose}: {reason!r} is no drop reason; one of {', '.join(DropReason)}")
