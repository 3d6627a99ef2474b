"""Sampling against transformers' warpers, a chi-square test, and properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rledger.generator.sampling import Sampler
from rledger.generator.uniform import uniform
from rledger.types import SamplingParams

CPU = torch.device("cpu")
VARIANTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "all": {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
}


def params(**values: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=1, **values)


def logits_of(rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randn(rows, vocab_size, generator=source)


def warped(logits: torch.Tensor, p: SamplingParams) -> torch.Tensor:
    """Probabilities that transformers samples from, float64."""
    scores = logits.double()
    if p.temperature != 1:
        scores = TemperatureLogitsWarper(p.temperature)(None, scores)
    if p.top_k:
        scores = TopKLogitsWarper(p.top_k)(None, scores)
    if p.top_p < 1:
        scores = TopPLogitsWarper(p.top_p)(None, scores)
    if p.min_p:
        scores = MinPLogitsWarper(p.min_p)(None, scores)
    return scores.softmax(-1)


@pytest.mark.parametrize("variant", VARIANTS)
def test_draws_follow_transformers_distribution_and_logprobs_tell_it(variant: str) -> None:
    count, vocab_size = 20_000, 23
    p = params(**VARIANTS[variant])
    logits = logits_of(1, vocab_size)
    wanted = warped(logits, p)[0].numpy()
    drawn = Sampler(vocab_size, CPU).draw(
        logits.expand(count, -1).contiguous(), [p] * count, [uniform(i, 0) for i in range(count)]
    )
    tokens = np.array(drawn.token_ids)
    counts = np.bincount(tokens, minlength=vocab_size)
    assert (counts[wanted == 0] == 0).all()
    kept = wanted > 0
    chi_square = ((counts[kept] - count * wanted[kept]) ** 2 / (count * wanted[kept])).sum()
    freedom = kept.sum() - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom)
    np.testing.assert_allclose(drawn.sampled_logprobs, np.log(wanted[tokens]), atol=1e-5)
    untruncated = (logits.double() / p.temperature).log_softmax(-1)[0].numpy()
    np.testing.assert_allclose(drawn.generator_logprobs, untruncated[tokens], atol=1e-5)


def test_rows_of_one_call_keep_their_own_parameters() -> None:
    logits = logits_of(6, 300)
    rows = [params(**v) for v in VARIANTS.values()]
    points = [uniform(3, i) for i in range(6)]
    together = Sampler(300, CPU).draw(logits, rows, points)
    for row in range(6):
        alone = Sampler(300, CPU).draw(logits[row : row + 1], [rows[row]], [points[row]])
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.sampled_logprobs[0] == pytest.approx(together.sampled_logprobs[row], abs=1e-6)


@pytest.mark.parametrize("top_p", [0.3, 0.97, 0.9999])
def test_a_nucleus_wider_than_the_first_candidates_is_found_by_a_full_sort(top_p: float) -> None:
    logits = 0.1 * logits_of(1, 3000)
    p = params(top_p=top_p)
    wanted = warped(logits, p)[0]
    drawn = Sampler(3000, CPU).draw(
        logits.expand(400, -1).contiguous(), [p] * 400, [(i + 0.5) / 400 for i in range(400)]
    )
    mass = torch.tensor(drawn.sampled_logprobs).exp()
    torch.testing.assert_close(mass.double(), wanted[drawn.token_ids], rtol=1e-4, atol=0)


def test_greedy_takes_the_lowest_of_tied_tokens() -> None:
    logits = torch.zeros(3, 1000)
    logits[0, [7, 8, 900]] = 3.0
    logits[1, [999, 500]] = 1.0
    drawn = Sampler(1000, CPU).draw(logits.bfloat16(), [params(temperature=0.0)] * 3, [0.9] * 3)
    assert drawn.token_ids == [7, 500, 0]
    assert drawn.sampled_logprobs == [0.0] * 3
    assert drawn.generator_logprobs[2] == pytest.approx(-np.log(1000), abs=1e-5)


@settings(max_examples=150, deadline=None)
@given(
    vocab_size=st.integers(1, 700),
    seed=st.integers(0, 100),
    scale=st.sampled_from([0.0, 0.01, 1.0, 30.0]),
    point=st.one_of(st.sampled_from([0.0, 1 - 2**-53]), st.floats(0, 1, exclude_max=True)),
    top_k=st.integers(0, 20),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.9),
    temperature=st.floats(0.05, 3.0),
)
def test_a_token_without_mass_is_never_drawn(
    vocab_size: int,
    seed: int,
    scale: float,
    point: float,
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
) -> None:
    logits = (scale * logits_of(2, vocab_size, seed)).bfloat16()
    p = params(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    drawn = Sampler(vocab_size, CPU).draw(logits, [p], [point])
    token = drawn.token_ids[0]
    row = logits[0].float()
    assert np.isfinite(drawn.sampled_logprobs[0])
    assert drawn.sampled_logprobs[0] <= 1e-5
    assert drawn.sampled_logprobs[0] >= drawn.generator_logprobs[0] - 1e-5
    if top_k:
        assert (row > row[token]).sum() < top_k
    assert (row[token] - row.max()).item() / temperature >= np.log(max(min_p, 1e-30)) - 1e-4


def test_the_cumulative_distribution_is_inverted_in_vocabulary_order() -> None:
    logits = logits_of(1, 1000).double()
    cumulative = logits.softmax(-1)[0].cumsum(0).numpy()
    points = np.linspace(0, 1, 5001)[:-1] + 1e-4
    drawn = Sampler(1000, CPU).draw(
        logits.float().expand(5000, -1).contiguous(), [params()] * 5000, points.tolist()
    )
    wanted = np.searchsorted(cumulative, points, side="right")
    assert (np.array(drawn.token_ids) != wanted).mean() < 0.005  # float32 sums at the borders
    assert np.abs(np.array(drawn.token_ids) - wanted).max() <= 1
