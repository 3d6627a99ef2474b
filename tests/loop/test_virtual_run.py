"""Runs with fakes on a virtual clock: fast, exactly repeatable, and their books balance."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import pytest

from rledger.books import GroupAdmitted, GroupEnded, SpanRecord, StepCommitted
from rledger.books.balance import data_balance, time_balance
from rledger.config.algorithm import AlgorithmConfig
from rledger.config.policy_loss import PpoLoss
from rledger.errors import DataError, StageTimeoutError
from rledger.generator.fake import GenerationPace
from rledger.sim.run import default_plan, simulate
from rledger.trainer.fake import FakePace


def test_a_thousand_steps_take_less_than_five_seconds_and_repeat_event_by_event() -> None:
    begin_s = time.process_time()
    first = simulate(default_plan(1000))
    spent_s = time.process_time() - begin_s
    second = simulate(default_plan(1000))
    assert first.outcome.step == 1000
    assert first.records == second.records
    assert first.rows == second.rows
    assert spent_s < 5.0
    assert first.seconds > 100.0  # virtual


def test_every_admitted_group_ends_once_and_the_data_balances() -> None:
    run = simulate(default_plan(50), failure_frac=0.2)
    admitted = [r.group_id for r in run.records if isinstance(r, GroupAdmitted)]
    ended = Counter(r.group_id for r in run.records if isinstance(r, GroupEnded))
    assert len(admitted) == len(set(admitted)) > 200
    assert set(ended) == set(admitted)
    assert set(ended.values()) == {1}
    dropped = [r for r in run.records if isinstance(r, GroupEnded) and r.fate == "dropped"]
    assert dropped  # the failures left too few survivors somewhere
    data_balance(run.records, closed=True).require()


def test_each_step_commits_the_groups_it_took_and_the_version_grows_by_one() -> None:
    run = simulate(default_plan(20))
    commits = [r for r in run.records if isinstance(r, StepCommitted)]
    assert [c.policy_version for c in commits] == list(range(1, 21))
    assert all(len(c.group_ids) == 4 for c in commits)
    every = [g for c in commits for g in c.group_ids]
    assert len(every) == len(set(every))


def test_exclusive_times_add_up_to_the_wall_time_of_each_step() -> None:
    run = simulate(default_plan(10))
    spans = [r for r in run.records if isinstance(r, SpanRecord)]
    for step in range(1, 11):
        balance = time_balance(spans, step, "main")
        assert balance.unaccounted_s == pytest.approx(0.0, abs=1e-9)
        assert sum(balance.exclusive_by_state.values()) == pytest.approx(balance.wall_s, abs=1e-9)


def test_waiting_is_booked_on_whom_it_was_for() -> None:
    slow_generator = GenerationPace(decode_s_per_token=1.0)
    run = simulate(default_plan(3), generation_pace=slow_generator)
    waits = Counter[str]()
    for record in run.records:
        if isinstance(record, SpanRecord) and record.state == "wait":
            waits[record.on] += record.seconds
    assert waits["generator"] > 0.9 * sum(waits.values())


def test_a_generator_that_never_ends_stops_the_run_with_the_stage_named() -> None:
    plan = replace(default_plan(2), stage_timeout_s=5.0)
    with pytest.raises(StageTimeoutError, match=r"stage testing|stage gen"):
        simulate(plan, generation_pace=GenerationPace(decode_s_per_token=1e6))


def test_rewards_that_always_fail_stop_the_run_naming_the_failure() -> None:
    with pytest.raises(DataError, match="rewards succeeded"):
        simulate(default_plan(2), failure_frac=1.0)


def test_stages_that_the_algorithm_needs_run_and_others_do_not() -> None:
    algorithm = AlgorithmConfig(loss=PpoLoss())
    plan = replace(
        default_plan(2),
        algorithm=algorithm,
        old_logprobs="recompute",
        needs_ref_logprobs=True,
        needs_values=True,
    )
    names = {r.name for r in simulate(plan).records if isinstance(r, SpanRecord)}
    assert {"old_log_prob", "ref", "values", "update_critic", "update_actor"} <= names
    names = {r.name for r in simulate(default_plan(2)).records if isinstance(r, SpanRecord)}
    assert not {"old_log_prob", "ref", "values", "update_critic"} & names


def test_a_slower_update_makes_the_update_stage_longer_and_nothing_else() -> None:
    def seconds(pace: FakePace) -> dict[str, float]:
        run = simulate(default_plan(5), training_pace=pace)
        total: Counter[str] = Counter()
        for record in run.records:
            if isinstance(record, SpanRecord) and record.name in ("gen", "update_actor"):
                total[record.name] += record.seconds
        return dict(total)

    base, slow = seconds(FakePace()), seconds(FakePace(optim_step_s=1.01))
    assert slow["gen"] == pytest.approx(base["gen"], abs=1e-6)
    assert slow["update_actor"] - base["update_actor"] == pytest.approx(5.0, abs=1e-6)
