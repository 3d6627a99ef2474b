"""What the report reads off a run folder, against the numbers that were written into it."""

from __future__ import annotations

import pytest
from synthetic_run import TASK, SyntheticRun, write_run

from rledger.books.balance import SpanNode
from rledger.errors import RunFolderError
from rledger.report.reading import merge_nodes, read_run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "demo", 20)


def test_the_time_of_all_steps_closes(run_folder) -> None:
    reading = read_run(run_folder)
    time = reading.time
    assert time is not None
    assert time.steps == tuple(range(1, 21))
    assert time.exclusive_s + time.unaccounted_s == pytest.approx(time.wall_s, abs=1e-6)
    assert sum(time.by_state.values()) == pytest.approx(time.exclusive_s, abs=1e-6)
    assert 0 < time.unaccounted_s / time.wall_s < 0.01
    assert time.root.children["update_actor"].children["backward"].num_calls == 80
    assert time.last.children["update_actor"].children["backward"].num_calls == 4
    assert reading.skipped == {"old_log_prob": "the ratio is 1"}
    assert reading.broken == ()


def test_step_times_agree_with_the_metrics(run_folder) -> None:
    reading = read_run(run_folder)
    assert reading.time is not None
    testing_s = reading.time.root.children["testing"].seconds
    assert reading.total("perf/time_per_step") == pytest.approx(reading.time.wall_s - testing_s)
    assert reading.total("timing_s/gen") == pytest.approx(reading.time.root.children["gen"].seconds)


def test_elapsed_time_is_accounted_for_to_the_end(run_folder) -> None:
    elapsed = read_run(run_folder).elapsed
    assert sum(elapsed.parts.values()) == pytest.approx(elapsed.total_s)
    assert {"start_up", "before step 1", "steps"} <= set(elapsed.parts)
    assert elapsed.inside_steps["testing"] > 2
    assert elapsed.inside_steps["save_checkpoint"] > 0.3


def test_a_range_of_steps_limits_time_and_metrics_not_the_data_account(run_folder) -> None:
    reading = read_run(run_folder, steps=(5, 8))
    assert reading.time is not None
    assert reading.time.steps == (5, 6, 7, 8)
    assert [int(r["step"]) for r in reading.rows] == [5, 6, 7, 8]
    assert reading.data.num_commits == 20
    with pytest.raises(RunFolderError, match=r"no closed step in 30:40; it has 1\.\.20"):
        read_run(run_folder, steps=(30, 40))


def test_data_account_and_evaluation_are_those_written(run_folder) -> None:
    reading = read_run(run_folder)
    data = reading.data
    assert (data.groups.came, data.groups.trained, data.groups.num_dropped) == (320, 300, 20)
    assert data.tokens.trained == reading.total("data/trained_tokens")
    (evaluation,) = reading.evaluations
    assert (evaluation.task, evaluation.figure, evaluation.num_prompts) == (TASK, "acc/mean@1", 256)
    assert [m.step for m in evaluation.measured] == [0, 10, 20]
    assert evaluation.before.value == 0.31
    assert evaluation.before.low == pytest.approx(0.255)


def test_rolled_back_steps_cost_time_and_count_no_data(tmp_path) -> None:
    whole = read_run(write_run(tmp_path / "whole", 30))
    resumed = read_run(write_run(tmp_path / "killed", 30, killed_after=25))
    assert resumed.data.groups.came == whole.data.groups.came
    assert resumed.data.balances
    assert resumed.time is not None
    assert resumed.time.num_steps == 30
    ten_steps_s = resumed.elapsed.parts["rolled back"]
    assert 10 < ten_steps_s < 30
    assert sum(resumed.elapsed.parts.values()) == pytest.approx(resumed.elapsed.total_s)
    assert [int(r["step"]) for r in resumed.rows] == list(range(1, 31))


def test_a_step_cut_off_by_a_kill_is_named(tmp_path) -> None:
    run = SyntheticRun(tmp_path / "cut")
    run.run(1, 2, close=False)
    step = run.lane.step(3, 2)
    step.__enter__()
    with run.lane.span("gen"):
        run.spend(5)
    run.close()
    reading = read_run(tmp_path / "cut")
    assert reading.elapsed.parts["cut off"] == pytest.approx(5, rel=0.1)
    assert reading.time is not None
    assert reading.time.steps == (1, 2)


def test_a_row_taken_out_makes_the_account_not_balance(run_folder, tmp_path) -> None:
    broken = write_run(tmp_path / "broken", 5)
    path = broken / "books" / "0001-main.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    victim = next(i for i, line in enumerate(lines) if b'"name":"forward"' in line)
    ended = next(i for i, line in enumerate(lines) if b'"kind":"group_ended"' in line)
    for index in sorted((victim, ended), reverse=True):
        del lines[index]
    path.write_bytes(b"".join(lines))
    reading = read_run(broken)
    assert reading.time is not None
    assert reading.time.steps == (2, 3, 4, 5)
    assert "step 1 on lane 'main': span rows" in reading.broken[0]
    assert any("was committed and is not booked as trained" in b for b in reading.broken)
    assert reading.books.attempts[0].num_missing_rows == 2


def test_merging_adds_up_along_the_way() -> None:
    first = SpanNode("step", "compute", 1, 3.0, 1.0)
    first.children["gen"] = SpanNode("gen", "compute", 1, 2.0, 2.0, counts={"tokens": 5})
    second = SpanNode("step", "compute", 1, 5.0, 4.0)
    second.children["gen"] = SpanNode("gen", "compute", 2, 1.0, 1.0, counts={"tokens": 6})
    merged = merge_nodes([first, second])
    assert (merged.num_calls, merged.seconds, merged.exclusive_s) == (2, 8.0, 5.0)
    assert merged.children["gen"].counts == {"tokens": 11}
    assert first.children["gen"].counts == {"tokens": 5}


@pytest.mark.parametrize("content", [b"", b"no json\n", b'{"kind":"span"}\n', b"\x00" * 100])
def test_a_folder_without_readable_books_gets_a_message(content, tmp_path) -> None:
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "0001-main.jsonl").write_bytes(content)
    with pytest.raises(RunFolderError, match="no books in it"):
        read_run(tmp_path)
