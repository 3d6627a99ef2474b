"""The report as a person sees it: it fits, it says what it must, and hostile names stay text."""

from __future__ import annotations

import json

import pytest
from rich.cells import cell_len
from synthetic_run import SyntheticRun, write_run

from rledger.report.terminal import render_report


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "demo", 20)


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_it_fits_the_width(run_folder, width: int) -> None:
    lines = render_report(run_folder).to_text(width).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    if width >= 80:
        table = lines[next(i for i, line in enumerate(lines) if "Where a step goes" in line) :]
        assert not any("…" in line for line in table[:25])


@pytest.mark.parametrize("width", [80, 100, 140])
def test_it_says_what_a_reader_looks_for(run_folder, width: int) -> None:
    text = " ".join(render_report(run_folder).to_text(width).split())
    for expected in (
        "spell_backward accuracy 0.310 ->",
        "update_actor",
        "backward",
        "unaccounted",
        "closes",
        "states",
        "skipped old_log_prob: the ratio is 1",
        "of it testing",
        "a second elapsed",
        "dropped no_signal: 20 groups, 160 trajectories",
        "0.310 [0.255, 0.360]",
        "rule:",
        "self-booked",
        "host spans",
        str(run_folder.name),
        "metrics.jsonl",
    ):
        assert expected in text, expected
    assert "DOES NOT" not in text


def test_an_account_that_does_not_balance_is_shouted(tmp_path) -> None:
    write_run(tmp_path / "run", 3)
    path = tmp_path / "run" / "books" / "0001-main.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines = [line for line in lines if b'"name":"backward"' not in line or b'"step":2' not in line]
    path.write_bytes(b"".join(lines))
    text = " ".join(render_report(tmp_path / "run").to_text(100).split())
    assert "DOES NOT BALANCE: step 2 on lane 'main'" in text
    assert "4 row(s) missing" in text


def test_a_run_that_has_just_begun_has_a_report(tmp_path) -> None:
    run = SyntheticRun(tmp_path / "young")
    with run.lane.span("start_up"):
        run.spend(1)
    run.close()
    text = render_report(tmp_path / "young").to_text(80)
    assert "0 of 60 committed" in text
    assert "start_up" in text
    run = SyntheticRun(tmp_path / "one")
    run.run(1, 1)
    assert "step 1 " in render_report(tmp_path / "one").to_text(80)


def test_names_that_look_like_markup_stay_text(tmp_path) -> None:
    run = SyntheticRun(tmp_path / "[red]odd[/nope]")
    with run.lane.step(1, 0), run.lane.span("[blink]gen[/]"):
        run.spend(1)
    run.close()
    recipe = {"model": {"path": "[bold]m[/x]"}, "run": "not a table"}
    (tmp_path / "[red]odd[/nope]" / "recipe.json").write_text(json.dumps(recipe))
    text = render_report(tmp_path / "[red]odd[/nope]").to_text(100)
    assert "[blink]gen[/]" in text
    assert "[bold]m[/x]" in text
    assert "[red]odd[/nope]" in text


def test_a_stage_that_raised_is_marked(tmp_path) -> None:
    run = SyntheticRun(tmp_path / "run")
    with pytest.raises(ValueError, match="planned"), run.lane.step(1, 0), run.lane.span("gen"):
        run.spend(1)
        raise ValueError("planned")
    run.close()
    assert "gen 1 raised" in render_report(tmp_path / "run").to_text(100)
