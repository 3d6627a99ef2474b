"""The live view: a line a step, in a terminal and in a pipe."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from rledger.report.live import LiveView


def row(step: int) -> dict[str, float]:
    return {
        "critic/score/mean": 0.25 + step / 100,
        "response_length/mean": 11.25,
        "actor/entropy": 1.5,
        "actor/grad_norm": 0.5,
        "perf/trained_tokens_per_s": 1234.5,
        "perf/time_per_step": 3.0,
        "timing_s/step": 3.0,
        "timing_s/gen": 1.5,
        "timing_s/update_actor": 1.25,
    }


EVALUATION = {
    "val-core/sums/acc/mean@1": 0.5,
    "val-aux/sums/acc/mean@1/ci_low": 0.4,
    "val-aux/sums/acc/mean@1/ci_high": 0.6,
}


def watch(*, terminal: bool, width: int = 100, num_steps: int = 5) -> list[str]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=width, color_system=None)
    with LiveView("demo", Path("runs/demo"), console) as view:
        view.on_step(0, num_steps, EVALUATION)
        for step in range(1, num_steps + 1):
            view.on_step(step, num_steps, row(step) | (EVALUATION if step == 3 else {}))
        view.announce("stopping [after] this step")
    return output.getvalue().splitlines()


def test_a_pipe_gets_one_whole_line_a_step_and_no_control_codes() -> None:
    lines = watch(terminal=False, width=20)
    steps = [line for line in lines if line.lstrip()[:2] in ("1/", "2/", "3/", "4/", "5/")]
    assert len(steps) == 5
    assert "0.260" in steps[0]
    assert "1 234" in steps[0]
    assert steps[0].endswith("gen 1.50 update_actor 1.25")
    assert not any("\x1b" in line for line in lines)
    assert sum("evaluation after step" in line for line in lines) == 2


def test_an_evaluation_shows_its_interval() -> None:
    assert "evaluation after step 0: sums  acc mean@1  0.500  [0.400, 0.600]" in watch(
        terminal=False
    )


def test_messages_are_text_not_markup() -> None:
    assert "stopping [after] this step" in watch(terminal=False)


@pytest.mark.parametrize("width", [60, 100])
def test_in_a_terminal_lines_are_cut_at_its_edge(width: int) -> None:
    # What remains without control codes; the progress bar's own lines carry no reward.
    plain = [
        re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", line) for line in watch(terminal=True, width=width)
    ]
    lines = [line for line in plain if re.match(r"\d/5  ", line)]
    assert len(lines) == 5
    assert all(cell_len(line) <= width for line in lines)
    assert ("gen 1.50 s" in lines[0]) == (width == 100)


def test_the_column_heads_come_again() -> None:
    lines = watch(terminal=False, num_steps=60)
    assert sum("trained tok/s" in line for line in lines) == 3


def test_a_failed_run_has_no_closing_line() -> None:
    output = io.StringIO()
    with (
        pytest.raises(ValueError, match="boom"),
        LiveView("demo", Path("runs/demo"), Console(file=output)),
    ):
        raise ValueError("boom")
    assert "rledger report" not in output.getvalue()
