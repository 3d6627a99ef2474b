"""Measures of held-out evaluation, each with a bootstrap interval over prompts.

Legend: P prompts, K samples of a prompt, S measures, R bootstrap draws, D subset draws.

A failed sample has no score and is NaN: it leaves the means, and each prompt counts with the samples
it has left. A measure of n samples is the expectation over all subsets of n of a prompt's samples
(without replacement), so it does not depend on their order. Prompts with fewer than n are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rledger.types import Failure, Score

__all__ = [
    "accuracy_of",
    "best_at",
    "bootstrap_intervals",
    "evaluation_metrics",
    "majority_at",
    "mean_at",
    "pass_at",
    "std_at",
    "worst_at",
]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_NUM_BOOTSTRAP_DRAWS = 1000
_NUM_SUBSET_DRAWS = 1000
_MAX_VOTES = 4_000_000  # elements of a vote table at a time


def accuracy_of(outcome: Score | Failure) -> float:
    """The component `acc` of a score where there is one, else its value; NaN for a failure."""
    if isinstance(outcome, Failure):
        return float("nan")
    return outcome.components.get("acc", outcome.value)


def mean_at(scores: F64) -> F64:
    """[P] mean over the samples of each prompt of [P, K]; NaN where all failed."""
    count = np.isfinite(scores).sum(axis=1)
    return _divide(np.nansum(scores, axis=1), count)


def std_at(scores: F64) -> F64:
    """[P] sample standard deviation (K - 1) of each prompt of [P, K]; NaN below two samples."""
    count = np.isfinite(scores).sum(axis=1)
    squares = np.nansum((scores - mean_at(scores)[:, None]) ** 2, axis=1)
    return np.sqrt(_divide(squares, count - 1))


def pass_at(scores: F64, n: int) -> F64:
    """[P] chance that one of n samples of [P, K] is right (score >= 1).

    1 - C(K - c, n) / C(K, n) for c right of K: the unbiased estimator of Chen et al. 2021
    (arXiv 2107.03374, equation 1).
    """
    return best_at(np.where(np.isfinite(scores), (scores >= 1.0).astype(np.float64), np.nan), n)


def best_at(scores: F64, n: int) -> F64:
    """[P] expected best of n samples of [P, K]: sum over j of s_(j) C(j - 1, n - 1) / C(K, n)."""
    count = np.isfinite(scores).sum(axis=1)
    ordered = np.sort(scores, axis=1)  # NaN come last
    # rank j - 1 = samples below; the j-th is the best of C(j - 1, n - 1) subsets
    below = np.arange(scores.shape[1])[None, :]
    log_weights = _log_choose(below, n - 1) - _log_choose(np.maximum(count, n), n)[:, None]
    weights = np.where(below < count[:, None], np.exp(log_weights), 0.0)
    best = (weights * np.nan_to_num(ordered)).sum(axis=1)
    return np.where(count >= n, best, np.nan)


def worst_at(scores: F64, n: int) -> F64:
    """[P] expected worst of n samples of [P, K]."""
    return -best_at(-scores, n)


def majority_at(scores: F64, answers: I64, n: int, seed: int) -> F64:
    """[P] expected score of the most frequent answer among n samples.

    `answers` [P, K] numbers equal answers equally within a prompt. Ties share. A vote over all samples
    is exact, else it is the mean over subsets drawn by `seed`.
    """
    finite = np.isfinite(scores)
    result = np.full(len(scores), np.nan)
    for row in range(len(scores)):
        valid = np.flatnonzero(finite[row])
        if len(valid) < n:
            continue
        if len(valid) == n:
            picks = valid[None, :]
        else:
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, row])))
            keys = generator.random((_NUM_SUBSET_DRAWS, len(valid)))
            picks = valid[np.argpartition(keys, n - 1, axis=1)[:, :n]]
        result[row] = _vote(scores[row][picks], answers[row][picks])
    return result


def _vote(scores: F64, answers: I64) -> float:
    """Mean over draws of the winners' mean score; scores and answers are [D, n]."""
    num_draws, n = answers.shape
    chunk = max(1, _MAX_VOTES // (n * n))
    total = 0.0
    for start in range(0, num_draws, chunk):
        part = answers[start : start + chunk]
        votes = (part[:, :, None] == part[:, None, :]).sum(axis=2)  # [D, n]
        wins = votes == votes.max(axis=1, keepdims=True)
        # Winners have equally many samples, so the mean over samples is the mean over winners.
        total += float(((scores[start : start + chunk] * wins).sum(1) / wins.sum(1)).sum())
    return float(total / num_draws)


def bootstrap_intervals(
    values: F64, *, seed: int, confidence: float = 0.95
) -> tuple[F64, F64, F64]:
    """Mean, lower and upper end over prompts of each measure of [P, S], each [S].

    Percentile bootstrap: prompts are drawn with replacement, the same draws for all measures. A
    prompt without a value (NaN) weighs nothing. NaN where no prompt has one.
    """
    num_prompts = len(values)
    present = np.isfinite(values)
    filled = np.where(present, values, 0.0)
    mean = _divide(filled.sum(axis=0), present.sum(axis=0))
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed])))
    weights = generator.multinomial(
        num_prompts, np.full(num_prompts, 1 / num_prompts), size=_NUM_BOOTSTRAP_DRAWS
    ).astype(np.float64)  # [R, P]
    draws = _divide(weights @ filled, weights @ present.astype(np.float64))  # [R, S]
    tail = 100 * (1 - confidence) / 2
    with np.errstate(all="ignore"):
        ends = np.full((2, values.shape[1]), np.nan)
        for measure in np.flatnonzero(present.any(axis=0)):
            ends[:, measure] = np.nanpercentile(draws[:, measure], [tail, 100 - tail])
    return mean, ends[0], ends[1]


def evaluation_metrics(
    task: str,
    outcomes: Sequence[Sequence[Score | Failure]],
    answers: Sequence[Sequence[str]] | None = None,
    *,
    seed: int = 0,
    confidence: float = 0.95,
) -> dict[str, float]:
    """Metrics of one task from P prompts with K samples each.

    `answers` are the samples' answers as text, for the vote. Names: `val-core/<task>/acc/mean@K` and,
    for K > 1, pass@K, best@K/mean and maj@K/mean; under `val-aux/` the interval of each of them
    (`.../ci_low`, `.../ci_high`), std@K, and all of it for n = 2, 4, 8, ... below K.
    """
    scores = np.array([[accuracy_of(o) for o in samples] for samples in outcomes], np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise ValueError("every prompt needs the same number of samples, at least one")
    num_samples = scores.shape[1]
    measures: dict[str, F64] = {f"mean@{num_samples}": mean_at(scores)}
    sizes = [2**i for i in range(1, num_samples.bit_length()) if 2**i < num_samples]
    ids = None if answers is None else _numbered(answers)
    for n in [*sizes, num_samples] if num_samples > 1 else []:
        measures[f"pass@{n}"] = pass_at(scores, n)
        measures[f"best@{n}/mean"] = best_at(scores, n)
        measures[f"worst@{n}/mean"] = worst_at(scores, n)
        if ids is not None:
            measures[f"maj@{n}/mean"] = majority_at(scores, ids, n, seed)
    if num_samples > 1:
        measures[f"std@{num_samples}"] = std_at(scores)
    table = np.stack(list(measures.values()), axis=1)
    mean, low, high = bootstrap_intervals(table, seed=seed, confidence=confidence)
    core = {f"{name}@{num_samples}" for name in ("mean", "pass")}
    core |= {f"{name}@{num_samples}/mean" for name in ("best", "maj")}
    metrics: dict[str, float] = {}
    for index, name in enumerate(measures):
        group = "val-core" if name in core else "val-aux"
        metrics[f"{group}/{task}/acc/{name}"] = float(mean[index])
        metrics[f"val-aux/{task}/acc/{name}/ci_low"] = float(low[index])
        metrics[f"val-aux/{task}/acc/{name}/ci_high"] = float(high[index])
    metrics[f"val-aux/{task}/num_prompts"] = float(len(scores))
    metrics[f"val-aux/{task}/num_failed"] = float(np.isnan(scores).sum())
    return metrics


def _numbered(answers: Sequence[Sequence[str]]) -> I64:
    rows = []
    for samples in answers:
        numbers: dict[str, int] = {}
        rows.append([numbers.setdefault(text.strip(), len(numbers)) for text in samples])
    return np.array(rows, np.int64)


def _divide(numerator: F64, denominator: F64 | I64) -> F64:
    """NaN where the denominator is not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = numerator / denominator
    return np.where(np.greater(denominator, 0), quotient, np.nan)


def _log_choose(n: npt.NDArray[np.integer], k: int) -> F64:
    """log C(n, k); -inf where n < k."""
    largest = int(n.max(initial=k))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, largest + 1)))])
    rest = np.maximum(n - k, 0)
    value = log_factorial[n] - log_factorial[k] - log_factorial[rest]
    return np.where(n >= k, value, -np.inf)
