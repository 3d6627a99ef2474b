"""Counter-based random numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rledger.generator.uniform import uniform


@given(st.integers(0, 2**63), st.integers(0, 10**6))
def test_a_number_depends_on_seed_and_index_alone_and_lies_below_one(seed: int, index: int) -> None:
    assert 0.0 <= uniform(seed, index) < 1.0
    assert uniform(seed, index) == uniform(seed, index)
    assert uniform(seed, index) != uniform(seed, index + 1)
    assert uniform(seed, index) != uniform(seed + 1, index)


def test_numbers_are_uniform_and_uncorrelated_along_index_and_seed() -> None:
    table = np.array([[uniform(seed, i) for i in range(200)] for seed in range(200)])
    counts = np.histogram(table, bins=64, range=(0, 1))[0]
    chi_square = ((counts - 40_000 / 64) ** 2 / (40_000 / 64)).sum()
    assert chi_square < 63 + 4 * np.sqrt(2 * 63)
    centred = table - 0.5
    for other in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
        assert abs(other.mean() * 12) < 4 / np.sqrt(other.size)


def test_known_values() -> None:
    """A change of the numbers would break every recorded run."""
    assert [uniform(0, 0), uniform(0, 1), uniform(1, 0)] == [
        0.6524484863740322,
        0.7012121095215252,
        0.36818951565166946,
    ]
