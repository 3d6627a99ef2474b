"""The span algebra on a fake clock, and what misuse gets."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rledger.books import Books, SpanRecord
from rledger.books.balance import time_balance
from rledger.books.records import STATES, TrackRecord
from rledger.errors import BooksError


class FakeClock:
    """Time that passes only when told, in binary fractions of a second: sums are exact."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_ticks(self, ticks: int) -> None:
        self.now_s += ticks / 1024


# A program is ("pass", ticks) or ("span", name, state, raises, [programs]).
ticks = st.tuples(st.just("pass"), st.integers(0, 500))
programs = st.recursive(
    ticks,
    lambda inner: st.tuples(
        st.just("span"),
        st.sampled_from(["gen", "reward", "decode", "wait"]),
        st.sampled_from(STATES),
        st.booleans(),
        st.lists(inner, max_size=4),
    ),
    max_leaves=25,
)


class Planned(Exception):
    pass


def run_program(lane, clock, program, naive, path) -> None:
    """Run it, and add each passing of time to the innermost open span in `naive`."""
    if program[0] == "pass":
        clock.pass_ticks(program[1])
        naive[path] = naive.get(path, 0) + Fraction(program[1], 1024)
        return
    _, name, state, raises, inside = program
    try:
        with lane.span(name, state=state):
            for step in inside:
                run_program(lane, clock, step, naive, (*path, name))
            if raises:
                raise Planned
    except Planned:
        pass


@settings(max_examples=150, deadline=None)
@given(st.lists(programs, max_size=6))
def test_exclusive_times_add_up_to_the_wall_time_exactly(steps) -> None:
    clock = FakeClock()
    books = Books.in_memory(clock)
    lane = books.lane("main")
    naive: dict[tuple[str, ...], Fraction] = {}
    with lane.step(3, policy_version=2):
        for program in steps:
            run_program(lane, clock, program, naive, ())
    balance = time_balance(books.records, 3)
    assert balance.wall_s == clock.now_s
    assert sum(balance.exclusive_by_name.values()) + balance.unaccounted_s == balance.wall_s
    assert sum(balance.exclusive_by_state.values()) + balance.unaccounted_s == balance.wall_s
    assert balance.unaccounted_s == naive.get((), 0)
    for name, seconds in balance.exclusive_by_name.items():
        assert seconds == sum(s for path, s in naive.items() if path and path[-1] == name)


def test_a_stage_that_raises_still_books_its_time() -> None:
    clock = FakeClock()
    books = Books.in_memory(clock)
    lane = books.lane("main")
    with pytest.raises(Planned), lane.step(1, 0), lane.span("update_actor", tokens=7):
        clock.pass_ticks(512)
        raise Planned
    stage, step = books.records
    assert (stage.name, stage.seconds, stage.raised, stage.counts) == (
        "update_actor",
        0.5,
        True,
        {"tokens": 7},
    )
    assert (step.name, step.seconds, step.raised) == ("step", 0.5, True)
    assert time_balance(books.records, 1).unaccounted_s == 0.0


def test_a_sleep_planted_between_stages_shows_as_unaccounted() -> None:
    books = Books.in_memory()
    lane = books.lane("main")
    with lane.step(1, 0):
        with lane.span("gen"):
            time.sleep(0.02)
        time.sleep(0.2)
        with lane.span("reward"):
            time.sleep(0.02)
    balance = time_balance(books.records, 1)
    assert 0.2 <= balance.unaccounted_s < 0.3
    assert balance.exclusive_by_name["gen"] >= 0.02
    assert balance.unaccounted_s + sum(balance.exclusive_by_name.values()) == pytest.approx(
        balance.wall_s, abs=1e-9
    )


def test_spans_inherit_step_and_version_and_know_their_parent() -> None:
    books = Books.in_memory(FakeClock())
    lane = books.lane("trainer")
    with lane.span("testing"):
        pass
    with lane.step(4, policy_version=3), lane.span("gen"), lane.span("wait", state="wait", on="r"):
        pass
    testing, wait, gen, step = books.records
    assert (testing.step, testing.policy_version, testing.parent) == (None, None, -1)
    assert [(s.step, s.policy_version, s.lane) for s in (wait, gen, step)] == [
        (4, 3, "trainer")
    ] * 3
    assert (wait.parent, gen.parent, step.parent) == (gen.id, step.id, -1)
    assert (step.num_inside, gen.num_inside, wait.num_inside) == (2, 1, 0)
    assert wait.on == "r"
    assert lane.last_step == (wait, gen, step)


def test_counts_add_up_and_a_parent_that_books_none_has_its_childrens() -> None:
    books = Books.in_memory(FakeClock())
    lane = books.lane("main")
    with lane.step(1, 0), lane.span("gen", tokens=100):
        for _ in range(3):
            with lane.span("decode", tokens=2) as span:
                span.add(tokens=3, flops=10)
    gen = time_balance(books.records, 1).root.children["gen"]
    assert gen.total("tokens") == 100  # its own word, not that of the children again
    assert gen.total("flops") == 30
    assert gen.children["decode"].counts == {"tokens": 15, "flops": 30}
    assert gen.children["decode"].num_calls == 3


def test_a_count_without_a_unit_is_refused() -> None:
    lane = Books.in_memory(FakeClock()).lane("main")
    with pytest.raises(BooksError, match="'speed' carries no unit"), lane.span("gen", speed=3):
        pass


def test_an_unknown_state_is_refused() -> None:
    with pytest.raises(BooksError, match="'busy' is no state"):
        Books.in_memory(FakeClock()).lane("main").span("gen", state="busy")


def test_spans_closed_out_of_order_raise() -> None:
    books = Books.in_memory(FakeClock())
    lane = books.lane("main")
    first, second = lane.span("gen"), lane.span("reward")
    first.__enter__()
    second.__enter__()
    with pytest.raises(BooksError, match="'gen' closed out of order"):
        first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    with lane.span("adv"):
        pass
    assert [r.name for r in books.records] == ["reward", "adv"]


def test_a_span_is_entered_once_and_a_step_is_no_part_of_a_step() -> None:
    lane = Books.in_memory(FakeClock()).lane("main")
    span = lane.span("gen")
    with span:
        pass
    with pytest.raises(BooksError, match="entered twice"):
        span.__enter__()
    with lane.step(1, 0), pytest.raises(BooksError, match="step 2 begins inside step 1"):
        lane.step(2, 1).__enter__()


def test_tracks_may_overlap_and_enter_no_lane_time() -> None:
    clock = FakeClock()
    books = Books.in_memory(clock)
    lane = books.lane("main")
    with lane.step(1, 0):
        first, second = lane.tracking("tool", "g1/0"), lane.tracking("tool", "g1/1", num_calls=2)
        first.__enter__()
        clock.pass_ticks(1024)
        second.__enter__()
        clock.pass_ticks(1024)
        first.__exit__(None, None, None)
        clock.pass_ticks(1024)
        second.__exit__(None, None, None)
    tracks = [r for r in books.records if isinstance(r, TrackRecord)]
    assert [(t.track, t.seconds, t.step) for t in tracks] == [("g1/0", 2.0, 1), ("g1/1", 2.0, 1)]
    balance = time_balance(books.records, 1)
    assert (balance.wall_s, balance.unaccounted_s) == (3.0, 3.0)


def test_lanes_keep_their_own_time() -> None:
    clock = FakeClock()
    books = Books.in_memory(clock)
    main, other = books.lane("main"), books.lane("generator")
    assert books.lane("main") is main
    with main.step(1, 0), other.step(1, 0), main.span("gen"):
        clock.pass_ticks(1)
        with other.span("decode"):
            clock.pass_ticks(2)
    assert time_balance(books.records, 1, "main").exclusive_by_name == {"gen": 3 / 1024}
    assert time_balance(books.records, 1, "generator").exclusive_by_name == {"decode": 2 / 1024}


def test_a_step_brings_the_process_cpu_time_as_its_witness() -> None:
    books = Books.in_memory()
    lane = books.lane("main")
    with lane.step(1, 0), lane.span("adv"):
        deadline_s = time.process_time() + 0.05
        while time.process_time() < deadline_s:
            pass
    root = lane.last_step[-1]
    assert isinstance(root, SpanRecord)
    assert 0.05 <= root.counts["process_cpu_s"] < 1.0
    assert root.counts["peak_resident_bytes"] > 5e6


def test_a_span_costs_less_than_ten_microseconds(tmp_path) -> None:
    books = Books.open(tmp_path)
    lane = books.lane("main")
    num_spans = 5000
    best_s = float("inf")
    for attempt in range(3):
        begin_s = time.process_time()
        with lane.step(attempt, attempt):
            for _ in range(num_spans):
                with lane.span("decode") as span:
                    span.add(tokens=64)
        best_s = min(best_s, time.process_time() - begin_s)
    books.close()
    assert best_s / num_spans < 10e-6
    assert 0 < books.cost_s < 3 * num_spans * 20e-6  # the books know about their own cost
