"""Metrics: declared once, finite, and the views by formula."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rledger
from rledger.books import METRICS, STAGES, Books, MetricsWriter, StepMeter, TokenCounts
from rledger.books.metrics import Metric, Registry
from rledger.books.reader import read_metrics
from rledger.books.views import mfu, throughput_metrics, timing_metrics
from rledger.errors import BooksError, RunFolderError

TOKENS = TokenCounts(prompt_tokens=600, generated_tokens=400, trained_tokens=300, useful_tokens=100)


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        *[(f"timing_s/{stage}", "s") for stage in STAGES],
        ("timing_per_token_ms/gen", "ms/token"),
        ("perf/total_num_tokens", "tokens"),
        ("perf/throughput", "tokens/s/device"),
        ("perf/mfu/actor", "1"),
        ("perf/elapsed/useful_tokens_per_s", "tokens/s"),
        ("critic/score/mean", "reward"),
        ("response_length/clip_ratio", "1"),
        ("actor/pg_clipfrac_lower", "1"),
        ("actor/grad_norm", "1"),
        ("val-core/spell_backward/acc/mean@1", "1"),
        ("val-core/spell_backward/acc/best@4/mean", "1"),
        ("val-aux/spell_backward/acc/mean@1/ci_low", "1"),
        ("val-aux/spell_backward/num_prompts", "1"),
        ("data/num_groups_dropped/no_signal", "groups"),
    ],
)
def test_known_names_are_declared(name: str, unit: str) -> None:
    assert METRICS.find(name).unit == unit


def test_every_declaration_has_unit_reduction_and_description() -> None:
    for metric in METRICS.metrics:
        assert metric.unit
        assert metric.description
        assert metric.reduction in ("mean", "sum", "max", "min", "last")


@pytest.mark.parametrize(
    "name", ["speed", "timing_s/", "timing_s/a/b", "actor/pg_los", "val-core/a"]
)
def test_an_undeclared_name_fails(name: str, tmp_path) -> None:
    with pytest.raises(BooksError, match="is not declared"):
        METRICS.find(name)
    with pytest.raises(BooksError, match="is not declared"):
        MetricsWriter(tmp_path, METRICS).write(1, 1, {name: 1.0})


def test_a_name_is_declared_once() -> None:
    metric = Metric("a", "s", "mean", "A")
    with pytest.raises(BooksError, match="declared twice: a"):
        Registry([metric, metric])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_fails(value: float, tmp_path) -> None:
    writer = MetricsWriter(tmp_path, METRICS)
    with pytest.raises(BooksError, match=r"'actor/loss' is .* at step 3"):
        writer.write(3, 3, {"actor/loss": value})
    assert writer.path.read_bytes() == b""


def test_reductions_follow_the_declaration_not_the_words_in_the_name() -> None:
    registry = Registry(
        [
            Metric("terminal/max_sum", "1", "mean", "holds 'min', 'max' and 'sum'"),
            Metric("largest", "1", "max", ""),
            Metric("total", "1", "sum", ""),
            Metric("rate", "1", "last", ""),
            Metric("least", "1", "min", ""),
        ]
    )
    values, weights = [1.0, 4.0], [3.0, 1.0]
    assert registry.reduce("terminal/max_sum", values, weights) == 1.75
    assert registry.reduce("terminal/max_sum", values) == 2.5
    assert registry.reduce("largest", values) == 4.0
    assert registry.reduce("total", values) == 5.0
    assert registry.reduce("rate", values) == 4.0
    assert registry.reduce("least", values) == 1.0


def test_one_json_object_a_step_is_written_and_read_back(tmp_path) -> None:
    writer = MetricsWriter(tmp_path, METRICS)
    writer.write(0, 0, {"val-core/t/acc/mean@1": 0.25})
    writer.write(1, 1, {"actor/loss": 0.5, "critic/score/mean": 1})
    writer.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    assert lines[1]["policy_version"] == 1
    assert lines[1]["unix_s"] > 1.7e9
    assert read_metrics(tmp_path)[1]["actor/loss"] == 0.5


def test_steps_written_again_after_a_resume_replace_the_old_ones(tmp_path) -> None:
    for loss, steps in ((1.0, [1, 2, 3, 4]), (2.0, [3, 4])):
        writer = MetricsWriter(tmp_path, METRICS)
        for step in steps:
            writer.write(step, step, {"actor/loss": loss})
        writer.close()
    rows = read_metrics(tmp_path)
    assert [(r["step"], r["actor/loss"]) for r in rows] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_a_missing_metrics_file_is_named(tmp_path) -> None:
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl is missing"):
        read_metrics(tmp_path)


class BrokenSink:
    name = "broken"

    def write(self, step, metrics) -> None:
        raise ConnectionError("no route to dashboard")

    def close(self) -> None:
        raise AssertionError("a sink put aside is not touched again")


def test_a_broken_sink_never_stops_the_run(tmp_path) -> None:
    writer = MetricsWriter(tmp_path, METRICS, [BrokenSink()])
    writer.write(1, 1, {"actor/loss": 0.5})
    writer.write(2, 2, {"actor/loss": 0.5})
    writer.close()
    assert writer.problem == "sink broken is put aside: ConnectionError: no route to dashboard"
    assert writer.broken_sinks == {"broken": "ConnectionError: no route to dashboard"}
    assert len(read_metrics(tmp_path)) == 2


def step_on_fake_clock(times):
    clock = iter(times)
    books = Books.in_memory(lambda: next(clock))
    return books, books.lane("main")


def test_views_follow_the_formulas() -> None:
    # origin, then the step 0..20 with gen 0..8, ref 9..11, a wait 11..12, update_actor 12..20
    _, lane = step_on_fake_clock([0, 0, 0, 8, 9, 11, 11, 12, 12, 20, 20])
    with lane.step(1, 0):
        for name in ("gen", "ref", "wait", "update_actor"):
            with lane.span(name):
                pass
    metrics = timing_metrics(lane.last_step, TOKENS)
    assert metrics == {
        "timing_s/gen": 8,
        "timing_s/ref": 2,
        "timing_s/update_actor": 8,
        "timing_s/step": 20,
        "timing_per_token_ms/gen": 1000 * 8 / 400,
        "timing_per_token_ms/ref": 1000 * 2 / 1000,
        "timing_per_token_ms/update_actor": 1000 * 8 / 1000,
        "time/unaccounted_s": 1,
        "time/unaccounted_frac": 0.05,
    }
    metrics = throughput_metrics(TOKENS, step_s=20, elapsed_s=25, num_devices=2)
    assert metrics["perf/total_num_tokens"] == 1000
    assert metrics["perf/throughput"] == 1000 / (20 * 2)
    assert metrics["perf/generated_tokens_per_s"] == 20
    assert metrics["perf/trained_tokens_per_s"] == 15
    assert metrics["perf/useful_tokens_per_s"] == 5
    assert metrics["perf/elapsed/trained_tokens_per_s"] == 12
    for name in metrics:
        METRICS.find(name)


def test_time_per_step_is_without_validation_and_elapsed_time_with_it() -> None:
    # origin 0, meter 0, step 0..10 with testing 4..10
    books, lane = step_on_fake_clock([0, 0, 0, 4, 10, 10])
    meter = StepMeter(books, lane)
    with lane.step(1, 0), lane.span("testing"):
        pass
    metrics = meter.read(TOKENS)
    assert metrics["timing_s/step"] == metrics["perf/time_per_step"] == 4
    assert metrics["perf/generated_tokens_per_s"] == 100
    assert metrics["perf/elapsed/generated_tokens_per_s"] == 40
    assert metrics["time/unaccounted_frac"] == 0.4


def test_elapsed_time_holds_what_lies_between_two_steps() -> None:
    # origin 0, meter made at 1, step 2..4, validation, step 10..13
    books, lane = step_on_fake_clock([0, 1, 2, 4, 10, 13])
    meter = StepMeter(books, lane)
    with lane.step(1, 0):
        pass
    assert meter.read(TOKENS)["time/elapsed_s"] == 3
    with lane.step(2, 1):
        pass
    metrics = meter.read(TOKENS)
    assert metrics["time/elapsed_s"] == 9
    assert metrics["perf/time_per_step"] == 3
    assert metrics["perf/elapsed/generated_tokens_per_s"] == 400 / 9


def test_work_is_read_off_the_spans_wherever_it_was_booked() -> None:
    # origin 0, meter 0, step 0..10 with gen 1..5 (decode 1..3, 3..5), update_actor 5..10
    books, lane = step_on_fake_clock([0, 0, 0, 1, 1, 3, 3, 5, 5, 5, 10, 10])
    meter = StepMeter(books, lane)
    with lane.step(1, 0):
        with lane.span("gen"):
            for _ in range(2):
                with lane.span("decode", flops=200, bytes=30):
                    pass
        with lane.span("update_actor", flops=1000):
            pass
    metrics = meter.read(TOKENS, update_flops=1500, peak_flops_per_s=600)
    assert metrics["perf/gen_flops"] == 400
    assert metrics["perf/gen_bytes"] == 60
    assert metrics["perf/gen_flops_per_s"] == 100
    assert metrics["perf/update_actor_flops_per_s"] == 200
    assert metrics["perf/mfu/actor"] == 0.5
    for name in metrics:
        METRICS.find(name)


def test_mfu_is_flops_over_seconds_times_peak_times_devices() -> None:
    assert mfu(6e12, seconds=2.0, peak_flops_per_s=1e13, num_devices=2) == 0.15
    with pytest.raises(BooksError, match="positive"):
        mfu(1.0, seconds=0.0, peak_flops_per_s=1.0)


def test_every_metric_name_written_down_in_the_source_is_declared() -> None:
    groups = (
        "actor|critic|data|perf|prompt_length|response_length|training|time|timing_s|rollout_corr"
    )
    literal = re.compile(rf'"((?:{groups})/[a-z_0-9/@]+)"')
    names = {
        name
        for path in Path(rledger.__file__).parent.rglob("*.py")
        for name in literal.findall(path.read_text(encoding="utf-8"))
        if not name.endswith("/")
    }
    assert len(names) > 40
    prefixes = {re.split("[/_][a-z]+$", metric.name)[0] for metric in METRICS.metrics}
    for name in sorted(names):
        if name not in prefixes:  # those that /mean and the like follow, or _mean
            METRICS.find(name)
