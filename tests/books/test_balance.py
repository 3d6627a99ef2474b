"""Balances: what must hold, and that planted wrong bookings are found."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rledger.books import (
    Books,
    DropReason,
    GroupAdmitted,
    GroupEnded,
    Resumed,
    StepCommitted,
    TrajectoryEnded,
)
from rledger.books.balance import data_balance, time_balance
from rledger.books.reader import surviving
from rledger.errors import BooksError


def booked_step():
    """Records of one step: gen (two decodes), reward; 16 s in all, 1 s unaccounted."""
    clock = iter([0.0, 0.0, 1.0, 2.0, 4.0, 5.0, 8.0, 9.0, 10.0, 16.0, 16.0])
    books = Books.in_memory(lambda: next(clock))
    lane = books.lane("main")
    with lane.step(1, 0):  # 0..16
        with lane.span("gen"):  # 1..9
            with lane.span("decode"):  # 2..4
                pass
            with lane.span("decode"):  # 5..8
                pass
        with lane.span("reward"):  # 10..16
            pass
    return books.records


def test_the_worked_step_balances() -> None:
    balance = time_balance(booked_step(), 1)
    assert balance.wall_s == 16.0
    assert balance.unaccounted_s == 2.0
    assert balance.exclusive_by_name == {"gen": 3.0, "decode": 5.0, "reward": 6.0}
    assert balance.root.children["gen"].seconds == 8.0


@pytest.mark.parametrize("lost", range(5))
def test_any_lost_row_is_found(lost: int) -> None:
    records = booked_step()
    del records[lost]
    with pytest.raises(BooksError, match=r"missing|root span"):
        time_balance(records, 1)


@pytest.mark.parametrize("doubled", range(5))
def test_any_doubled_row_is_found(doubled: int) -> None:
    records = booked_step()
    records.append(records[doubled])
    with pytest.raises(BooksError, match=r"more than once|root span"):
        time_balance(records, 1)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("shift_s", [-3.5, 20.0])
def test_a_span_moved_out_of_its_place_is_found(which: int, shift_s: float) -> None:
    records = booked_step()
    span = records[which]
    records[which] = msgspec.structs.replace(
        span, start_s=span.start_s + shift_s, end_s=span.end_s + shift_s
    )
    with pytest.raises(BooksError, match="does not lie in its place"):
        time_balance(records, 1)


def test_a_step_that_was_never_closed_has_no_account() -> None:
    with pytest.raises(BooksError, match="needs exactly one root"):
        time_balance(booked_step(), 2)


def group_rows(number: int, step: int, fate: str, *, size: int = 2, failed: int = 0):
    """Rows of one group whose trajectories generate 10 tokens each."""
    gid = f"g{number:08d}"
    rows = [
        GroupAdmitted(
            group_id=gid,
            prompt_id=f"p{number}",
            group_size=size,
            step=step,
            policy_version=step - 1,
        )
    ]
    for member in range(size):
        rows.append(
            TrajectoryEnded(
                trajectory_id=f"{gid}/{member}",
                group_id=gid,
                step=step,
                policy_version=step - 1,
                prompt_tokens=5,
                generated_tokens=10,
                finish_reason="stop",
                failure=DropReason.REWARD_RAISED if member < failed else None,
            )
        )
    if fate == "trained":
        dropped = {DropReason.REWARD_RAISED: failed} if failed else {}
        rows.append(
            GroupEnded(
                group_id=gid,
                fate="trained",
                step=step,
                policy_version=step - 1,
                num_trained_trajectories=size - failed,
                trained_tokens=10 * (size - failed),
                useful_tokens=10 * (size - failed) - 1,
                dropped_trajectories=dropped,
                dropped_tokens={r: 10 * n for r, n in dropped.items()},
            )
        )
    if fate == "dropped":
        rows.append(
            GroupEnded(
                group_id=gid,
                fate="dropped",
                reason=DropReason.NO_SIGNAL,
                step=step,
                policy_version=step - 1,
                dropped_trajectories={DropReason.NO_SIGNAL: size},
                dropped_tokens={DropReason.NO_SIGNAL: 10 * size},
            )
        )
    return rows


def run_rows():
    """Step 1: trained, trained with a failure, dropped; step 2: trained, complete, in flight."""
    rows = [
        *group_rows(1, 1, "trained"),
        *group_rows(2, 1, "trained", size=4, failed=1),
        *group_rows(3, 1, "dropped"),
        StepCommitted(step=1, policy_version=1, group_ids=("g00000001", "g00000002")),
        *group_rows(4, 2, "trained"),
        *group_rows(5, 2, "open"),
        StepCommitted(step=2, policy_version=2, group_ids=("g00000004",)),
        GroupAdmitted(group_id="g00000006", prompt_id="p6", group_size=2, step=2, policy_version=2),
    ]
    return rows


def test_admitted_is_trained_and_dropped_and_buffered_and_in_flight() -> None:
    balance = data_balance(run_rows()).require()
    groups, trajectories, tokens = balance.groups, balance.trajectories, balance.tokens
    assert (groups.came, groups.trained, groups.buffered, groups.in_flight) == (6, 3, 1, 1)
    assert groups.dropped == {DropReason.NO_SIGNAL: 1}
    assert (trajectories.came, trajectories.trained) == (14, 7)
    assert trajectories.dropped == {DropReason.REWARD_RAISED: 1, DropReason.NO_SIGNAL: 2}
    assert (trajectories.buffered, trajectories.in_flight) == (2, 2)
    assert (tokens.came, tokens.trained, tokens.useful, tokens.buffered) == (120, 70, 67, 20)
    assert balance.prompt_tokens == 60
    assert balance.num_failed_trajectories == 1
    at_one = data_balance(run_rows(), up_to_step=1).require()
    assert (at_one.groups.came, at_one.groups.trained, at_one.num_commits) == (3, 2, 1)


def test_nothing_may_be_open_after_an_orderly_end() -> None:
    wrong = data_balance(run_rows(), closed=True).imbalances
    assert "groups: 1 buffered and 1 in flight after the end" in wrong


def closed_rows():
    return [r for r in run_rows() if getattr(r, "group_id", "")[-1:] not in ("5", "6")]


@pytest.mark.parametrize("planted", range(20))
def test_any_lost_or_doubled_row_is_found(planted: int) -> None:
    rows = closed_rows()
    assert len(rows) == 20
    assert data_balance(rows, closed=True).balances
    doubled, lost = [*rows, rows[planted]], rows[:planted] + rows[planted + 1 :]
    assert not data_balance(doubled, closed=True).balances
    assert not data_balance(lost, closed=True).balances
    with pytest.raises(BooksError, match="does not balance"):
        data_balance(lost, closed=True).require()


def test_a_group_lost_with_all_its_rows_is_missed_by_its_commit() -> None:
    rows = [r for r in closed_rows() if getattr(r, "group_id", "") != "g00000004"]
    assert data_balance(rows).imbalances == [
        "group g00000004 was admitted 0 times",
        "group g00000004 was committed and is not booked as trained",
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(-30, 30).filter(bool), st.sampled_from(["trained_tokens", "tokens"]))
def test_any_wrong_number_of_tokens_is_found(error: int, where: str) -> None:
    rows = run_rows()
    end = rows[3]
    assert isinstance(end, GroupEnded)
    if where == "trained_tokens":
        rows[3] = msgspec.structs.replace(
            end, trained_tokens=max(0, end.trained_tokens + error), useful_tokens=0
        )
    else:
        trajectory = rows[1]
        rows[1] = msgspec.structs.replace(
            trajectory, generated_tokens=max(0, trajectory.generated_tokens + error)
        )
    assert any("tokens generated" in w for w in data_balance(rows).imbalances)


def test_a_group_trained_in_two_steps_is_found() -> None:
    rows = [*run_rows(), StepCommitted(step=3, policy_version=3, group_ids=("g00000001",))]
    assert "committed more than once, in steps [1, 3]" in data_balance(rows).imbalances[0]


def test_unknown_reasons_cannot_be_booked() -> None:
    with pytest.raises(BooksError, match="'tired' is no drop reason"):
        GroupEnded(group_id="g1", fate="dropped", reason="tired", step=1, policy_version=0)
    with pytest.raises(BooksError, match="'tired' is no drop reason"):
        GroupEnded(
            group_id="g1", fate="trained", step=1, policy_version=0, dropped_tokens={"tired": 3}
        )
    with pytest.raises(BooksError, match="a dropped group, and no other, has a reason"):
        GroupEnded(group_id="g1", fate="dropped", step=1, policy_version=0)
    with pytest.raises(BooksError, match="neither trained nor dropped"):
        GroupEnded(group_id="g1", fate="eaten", step=1, policy_version=0)
    with pytest.raises(BooksError, match="useful_tokens"):
        GroupEnded(
            group_id="g1",
            fate="trained",
            step=1,
            policy_version=0,
            trained_tokens=1,
            useful_tokens=2,
        )


def test_steps_rolled_back_by_a_crash_are_superseded() -> None:
    commit_1 = StepCommitted(step=1, policy_version=1, group_ids=("g00000001",))
    first = [
        *group_rows(1, 1, "trained"),
        commit_1,
        *group_rows(2, 2, "trained"),
        StepCommitted(step=2, policy_version=2, group_ids=("g00000002",)),
        *group_rows(3, 3, "open"),
    ]
    second = [
        Resumed(step=1, policy_version=1),
        *group_rows(2, 2, "dropped"),
        *group_rows(3, 2, "trained"),
        StepCommitted(step=2, policy_version=2, group_ids=("g00000003",)),
    ]
    records = surviving([first, second])
    balance = data_balance(records, closed=True).require()
    assert (balance.groups.came, balance.groups.trained, balance.groups.num_dropped) == (3, 2, 1)
    assert balance.num_commits == 2
    assert not data_balance([*first, *second]).balances
