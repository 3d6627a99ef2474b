"""Groups without signal are recognised, and long completions are penalised as DAPO does it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rledger.config.algorithm import AlgorithmConfig, OverlongShaping
from rledger.errors import DataError
from rledger.schedule.filtering import drop_reason, group_metric, has_signal, overlong_penalties
from rledger.types import Failure, Group, Prompt, Score, Trajectory


def group(*outcomes):
    prompt = Prompt(id="t/0", task="t", text="?", token_ids=(1,))
    trajectories = tuple(
        Trajectory(id=f"g0/{i}", group_id="g0", completions=(), text="", outcome=outcome)
        for i, outcome in enumerate(outcomes)
    )
    return Group(id="g0", prompt=prompt, trajectories=trajectories)


def score(value, **components):
    return Score(value=value, components=components)


FAILED = Failure(reason="reward_timeout", message="")
SAMPLING = AlgorithmConfig.model_validate({"dynamic_sampling": {"enabled": True}})


@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 1.0]), max_size=6))
def test_a_group_has_signal_when_two_members_differ(values):
    assert has_signal(values) == (len(set(values)) > 1)


def test_failures_leave_the_group_and_are_never_reward_0():
    assert group_metric(group(score(1.0), FAILED, score(1.0)), "reward") == [1.0, 1.0]
    assert drop_reason(group(score(1.0), FAILED, score(1.0)), SAMPLING) == "no_signal"
    assert drop_reason(group(score(1.0), FAILED, score(0.0)), SAMPLING) is None


def test_too_few_survivors_come_before_signal():
    assert drop_reason(group(score(1.0), FAILED), SAMPLING) == "too_few_survivors"
    assert drop_reason(group(FAILED, FAILED), AlgorithmConfig()) == "too_few_survivors"
    ppo = AlgorithmConfig.model_validate({"advantage": {"type": "gae"}})
    assert drop_reason(group(score(1.0)), ppo) is None


def test_groups_without_signal_stay_unless_dynamic_sampling_is_on():
    assert drop_reason(group(score(0.0), score(0.0)), AlgorithmConfig()) is None
    assert drop_reason(group(score(0.0), score(0.0)), SAMPLING) == "no_signal"


def test_the_metric_may_be_a_component():
    config = AlgorithmConfig.model_validate(
        {"dynamic_sampling": {"enabled": True, "metric": "accuracy"}}
    )
    same = group(score(0.5, accuracy=1.0), score(0.9, accuracy=1.0))
    assert drop_reason(same, config) == "no_signal"
    with pytest.raises(DataError, match=r"metric = accuracy.*has only reward, style"):
        drop_reason(group(score(0.0, style=0.0), score(1.0, style=0.0)), config)


def test_the_penalty_grows_over_the_buffer():
    config = OverlongShaping(buffer_tokens=4, penalty=2.0)
    penalties = overlong_penalties([0, 15, 16, 17, 18, 20, 25], 20, config)
    assert penalties.tolist() == [0.0, 0.0, 0.0, -0.5, -1.0, -2.0, -2.0]
    assert penalties.dtype == "float32"


def test_no_buffer_no_penalty_and_a_buffer_beyond_the_limit_is_refused():
    assert overlong_penalties([5, 20], 20, OverlongShaping()).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match="buffer_tokens = 30 exceeds max_new_tokens = 20"):
        overlong_penalties([5], 20, OverlongShaping(buffer_tokens=30))
