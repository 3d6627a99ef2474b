"""Numbers and plots out of characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from rledger.report.figures import count, duration, fraction, quantity, seconds
from rledger.report.plots import bar, curve, stacked_bar


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (0.0000004, "0 us"),
        (0.000081, "81 us"),
        (0.00342, "3.42 ms"),
        (0.34, "340 ms"),
        (0.9996, "1.00 s"),
        (3.21, "3.21 s"),
        (45.67, "45.7 s"),
        (321.4, "321 s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3.2, "3.20 s"), (59.9, "1:00"), (187, "3:07"), (7387, "2:03:07")]
)
def test_duration(value: float, text: str) -> None:
    assert duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 FLOP/s"),
        (5, "5.00 FLOP/s"),
        (999.7, "1.00 kFLOP/s"),
        (1234, "1.23 kFLOP/s"),
        (4.5e10, "45.0 GFLOP/s"),
        (9.876e14, "988 TFLOP/s"),
    ],
)
def test_quantity(value: float, text: str) -> None:
    assert quantity(value, "FLOP/s") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.9999, "100.0 %"),
        (0.5, "50 %"),
        (0.0123, "1.2 %"),
        (2e-5, "0.002 %"),
    ],
)
def test_fraction(value: float, text: str) -> None:
    assert fraction(value) == text


def test_count() -> None:
    assert count(1234567) == "1 234 567"


@given(st.floats(0, 1), st.integers(1, 60))
def test_a_bar_has_its_width_and_shows_whatever_is_not_nothing(share: float, width: int) -> None:
    text = bar(share, width, "").plain
    assert cell_len(text) == width
    assert (text.strip() == "") == (share == 0)


def test_a_full_and_a_half_bar() -> None:
    assert bar(1.0, 4, "").plain == "████"
    assert bar(0.5, 4, "").plain == "██  "
    assert bar(0.53125, 4, "").plain == "██▏ "
    assert stacked_bar([(0.5, "red"), (0.25, "blue")], 8).plain == "██████"


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50),
    st.integers(24, 90),
    st.integers(3, 9),
)
def test_a_curve_keeps_its_box(values: list[float], width: int, height: int) -> None:
    lines = curve(range(1, len(values) + 1), values, width, height, "cyan")
    assert len(lines) == height + 2
    assert max(cell_len(line.plain) for line in lines) <= max(width, 24)


def test_a_rising_line_rises() -> None:
    lines = [line.plain for line in curve([0, 1], [0.0, 1.0], 16, 3, "")]
    assert lines[0].startswith("  1.00 ┤")
    assert lines[2].startswith("     0 ┤")
    first_columns = [line[8] != "⠀" for line in lines[:3]]
    last_columns = [line[-1] != "⠀" for line in lines[:3]]
    assert first_columns == [False, False, True]
    assert last_columns == [True, False, False]
