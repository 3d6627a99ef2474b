"""Measures of evaluation against counting all subsets."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rledger.tasks.evaluation import (
    accuracy_of,
    best_at,
    bootstrap_intervals,
    evaluation_metrics,
    majority_at,
    mean_at,
    pass_at,
    std_at,
    worst_at,
)
from rledger.types import Failure, Score

NAN = math.nan
SAMPLES = st.lists(st.sampled_from([0.0, 0.25, 1.0, NAN]), min_size=1, max_size=7)
FAILED: Failure = Failure(reason="reward_raised", message="")


def subsets(row: list[float], n: int) -> list[tuple[float, ...]]:
    return list(itertools.combinations([x for x in row if not math.isnan(x)], n))


def same(value: float, expected: float) -> bool:
    return value == pytest.approx(expected, abs=1e-9, nan_ok=True)


@given(row=SAMPLES, n=st.integers(1, 7))
@settings(max_examples=200)
def test_measures_are_means_over_all_subsets(row: list[float], n: int) -> None:
    scores = np.array([row])
    draws = subsets(row, n)
    best = sum(map(max, draws)) / len(draws) if draws else NAN
    worst = sum(map(min, draws)) / len(draws) if draws else NAN
    passed = sum(max(d) >= 1 for d in draws) / len(draws) if draws else NAN
    assert same(best_at(scores, n)[0], best)
    assert same(worst_at(scores, n)[0], worst)
    assert same(pass_at(scores, n)[0], passed)
    valid = [x for x in row if not math.isnan(x)]
    assert same(mean_at(scores)[0], float(np.mean(valid)) if valid else NAN)
    assert same(std_at(scores)[0], float(np.std(valid, ddof=1)) if len(valid) > 1 else NAN)


def test_pass_at_k_is_the_formula_of_its_source() -> None:
    scores = np.zeros((201, 200))
    for right in range(201):
        scores[right, :right] = 1.0
    for n in (1, 10, 100, 200):
        for right in (0, 1, 7, 100, 199, 200):
            expected = 1 - math.comb(200 - right, n) / math.comb(200, n)
            assert pass_at(scores, n)[right] == pytest.approx(expected, abs=1e-9)


def vote(answers: tuple[int, ...], scores: tuple[float, ...]) -> float:
    counts = Counter(answers)
    top = max(counts.values())
    winners = [a for a, c in counts.items() if c == top]
    by_answer = dict(zip(answers, scores, strict=True))
    return sum(by_answer[a] for a in winners) / len(winners)


@given(answers=st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_a_vote_over_all_samples_is_exact(answers: list[int]) -> None:
    scores = [float(a == 0) for a in answers]
    value = majority_at(np.array([scores]), np.array([answers]), len(answers), seed=0)
    assert same(value[0], vote(tuple(answers), tuple(scores)))


def test_a_vote_over_some_samples_is_near_its_expectation() -> None:
    answers = [0, 0, 0, 1, 1, 2, 3, 0]
    scores = [float(a == 0) for a in answers]
    draws = list(itertools.combinations(range(8), 3))
    expected = sum(
        vote(tuple(answers[i] for i in d), tuple(scores[i] for i in d)) for d in draws
    ) / len(draws)
    one, again = (
        majority_at(np.array([scores]), np.array([answers]), 3, seed=4)[0] for _ in range(2)
    )
    assert one == again
    assert one == pytest.approx(expected, abs=0.05)


def test_failed_samples_do_not_vote_and_are_no_zeros() -> None:
    scores, answers = np.array([[1.0, NAN, NAN, 0.0, 1.0]]), np.array([[0, 1, 1, 2, 0]])
    assert majority_at(scores, answers, 3, seed=0)[0] == 1.0
    assert math.isnan(majority_at(scores, answers, 4, seed=0)[0])
    assert mean_at(scores)[0] == pytest.approx(2 / 3)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(100):
        values = (generator.random((256, 1)) < 0.4).astype(float)
        mean, low, high = bootstrap_intervals(values, seed=trial)
        assert low[0] <= mean[0] <= high[0]
        covered += bool(low[0] <= 0.4 <= high[0])
    assert 88 <= covered <= 100  # 0.95 of 100, and what chance allows


def test_intervals_equal_a_loop_over_resampled_prompts() -> None:
    generator = np.random.default_rng(1)
    values = np.column_stack([generator.random(100), np.ones(100)])
    values[3, 0] = NAN
    mean, low, high = bootstrap_intervals(values, seed=3, confidence=0.9)
    draws = [np.nanmean(generator.choice(values[:, 0], 100)) for _ in range(4000)]
    assert mean[0] == pytest.approx(np.nanmean(values[:, 0]))
    assert low[0] == pytest.approx(np.percentile(draws, 5), abs=0.008)
    assert high[0] == pytest.approx(np.percentile(draws, 95), abs=0.008)
    assert (mean[1], low[1], high[1]) == pytest.approx((1, 1, 1))


def test_greedy_evaluation_has_the_name_that_people_know() -> None:
    outcomes: list[list[Score | Failure]] = [
        [Score(value=1.0)],
        [Score(value=0.0)],
        [FAILED],
        [Score(value=1.0)],
    ]
    metrics = evaluation_metrics("sums", outcomes)
    assert metrics["val-core/sums/acc/mean@1"] == pytest.approx(2 / 3)
    assert metrics["val-aux/sums/num_failed"] == 1 and metrics["val-aux/sums/num_prompts"] == 4
    assert set(metrics) == {
        "val-core/sums/acc/mean@1",
        "val-aux/sums/acc/mean@1/ci_low",
        "val-aux/sums/acc/mean@1/ci_high",
        "val-aux/sums/num_failed",
        "val-aux/sums/num_prompts",
    }
    assert metrics == evaluation_metrics("sums", outcomes)


def test_sampled_evaluation_has_all_measures() -> None:
    right, wrong = Score(value=1.0), Score(value=0.0)
    outcomes = [[right, wrong, wrong, right]] * 3
    answers = [["7", "8", "9", " 7"]] * 3
    metrics = evaluation_metrics("sums", outcomes, answers)
    assert metrics["val-core/sums/acc/mean@4"] == 0.5
    assert metrics["val-core/sums/acc/pass@4"] == pytest.approx(1.0)
    assert metrics["val-core/sums/acc/best@4/mean"] == pytest.approx(1.0)
    assert metrics["val-core/sums/acc/maj@4/mean"] == 1.0
    assert metrics["val-aux/sums/acc/pass@2"] == pytest.approx(5 / 6)
    assert metrics["val-aux/sums/acc/worst@2/mean"] == pytest.approx(1 / 6)
    assert metrics["val-aux/sums/acc/std@4"] == pytest.approx(math.sqrt(1 / 3))


def test_accuracy_prefers_the_component_of_that_name() -> None:
    assert accuracy_of(Score(value=0.7)) == 0.7
    assert accuracy_of(Score(value=0.7, components={"acc": 0.0})) == 0.0
    assert math.isnan(accuracy_of(FAILED))


def test_a_large_evaluation_takes_seconds_at_most() -> None:
    generator = np.random.default_rng(2)
    outcomes = [
        [Score(value=float(x)) for x in row] for row in (generator.random((1000, 16)) < 0.3)
    ]
    answers = [[str(x) for x in row] for row in generator.integers(0, 5, (1000, 16))]
    started_s = time.process_time()
    evaluation_metrics("large", outcomes, answers)
    assert time.process_time() - started_s < 10
