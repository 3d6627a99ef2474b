"""The benchmarks' page says what the result files say, and the sides compute the same rewards."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import readme, rewards, time_to_score
from benchmarks.contest import Side, SideError, alternate, interpreter
from benchmarks.results import RESULTS, ratio
from rledger.tasks.rewards import last_integer


def step_result() -> dict[str, Any]:
    figures = {"median": 2.0, "min": 1.0, "max": 3.0}
    return {
        "commit": "0123456789",
        "date": "2026-01-02 03:04 UTC",
        "machine": {"cpu": "X", "cpu_family_model": "1/2", "cores": 2, "memory_gib": 8},
        "workload": {"rounds": 5, "threads": 2},
        "sides": {
            "trl": {
                "versions": {"trl": "9.9"},
                "settings": {"precision": "bf16", "micro_batch": 32},
            }
        },
        "trl_settings_tried": [],
        "trained_tokens_per_s": {"ours": {"median": 800.0}, "trl": {"median": 100.0}},
        "generation_s": {"ours": {"median": 2.0}, "trl": {"median": 9.0}},
        "update_s": {"ours": {"median": 3.0}, "trl": {"median": 8.0}},
        "ratio": {
            "trained_tokens_per_s": {"median": 8.04, "min": 7.5, "max": 8.9},
            "generation": figures,
            "update": figures,
        },
    }


def test_the_page_says_what_the_results_say() -> None:
    text = readme.README.read_text(encoding="utf-8")
    assert readme.render(text) == text, "run `python -m benchmarks.readme`"


def test_each_part_of_the_page_names_its_command() -> None:
    text = readme.README.read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    for part in parts:
        for name in re.findall(r"<!-- (\w+) -->\n", part):
            assert name == "end" or f"python -m benchmarks.{name}" in part


def test_a_changed_result_changes_the_page(tmp_path: Path) -> None:
    text = "before\n<!-- grpo_step -->\nold\n<!-- end -->\nafter"
    empty = "before\n<!-- grpo_step -->\nNot measured yet.\n<!-- end -->\nafter"
    assert readme.render(text, tmp_path) == empty
    (tmp_path / "grpo_step-x.json").write_text(json.dumps(step_result()))
    page = readme.render(text, tmp_path)
    assert "| trained tokens/s | 800 | 100 | **8.0** (7.5 to 8.9) |" in page
    assert page.startswith("before\n") and page.endswith("\nafter") and "old" not in page


def test_results_name_commit_date_machine_and_every_sample() -> None:
    for path in RESULTS.glob("*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        assert re.fullmatch(r"[0-9a-f]{40}", result["commit"]), path
        assert result["date"] and result["machine"]["cpu"], path
        assert not result["uncommitted_changes"], path
        for samples in result.get("samples", {}).values():
            assert len(samples) == result["workload"]["rounds"], path


@pytest.mark.parametrize("answer", ["0", "7", "100"])
@given(text=st.text(alphabet="0123456789-+. abc", max_size=24))
def test_the_reward_of_the_rivals_is_that_of_the_recipe(answer: str, text: str) -> None:
    assert rewards.right_sum(text, answer) == float(last_integer(text) == answer)


def test_seconds_of_training_leave_testing_and_checkpoints_out() -> None:
    rows = [
        {"step": 0, time_to_score.ACCURACY: 0.25},
        {"step": 1, "timing_s/step": 10.0},
        {
            "step": 2,
            "timing_s/step": 14.0,  # without testing, by its definition
            "timing_s/testing": 99.0,
            "timing_s/save_checkpoint": 4.0,
            time_to_score.ACCURACY: 0.75,
        },
    ]
    curve = time_to_score.curve_of_metrics([json.dumps(row) + "\n" for row in rows] + ['{"st'])
    assert [point["train_s"] for point in curve] == [0.0, 20.0]
    assert time_to_score.seconds_to(curve, 0.70) == 20.0
    assert time_to_score.seconds_to(curve, 0.85) is None


def test_a_ratio_is_taken_round_by_round() -> None:
    # the machine was twice as slow in the second round, for both
    assert ratio([80.0, 40.0], [10.0, 5.0]) == {"median": 8.0, "min": 8.0, "max": 8.0}


def test_sides_take_turns_and_every_second_round_goes_back(tmp_path: Path) -> None:
    order: list[str] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name

        def measure(self) -> dict[str, Any]:
            order.append(self.name)
            return {"number": len(order)}

    samples = alternate([Fake("a"), Fake("b")], 2)  # type: ignore[list-item]
    assert "".join(order) == "abbaab"
    assert [figures["number"] for figures in samples["a"]] == [4, 5]


def test_a_side_that_fails_says_how() -> None:
    with (
        Side("x", "no_such_side", {}, python=sys.executable, deadline_s=60) as side,
        pytest.raises(SideError, match=r"x ended(.|\n)*no_such_side"),
    ):
        side.start()


def test_a_missing_environment_is_named() -> None:
    with pytest.raises(SystemExit, match="make rivals"):
        interpreter("/nowhere/at/all")
