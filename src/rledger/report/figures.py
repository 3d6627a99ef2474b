"""Numbers as a person reads them: three significant digits, one unit, no noise."""

from __future__ import annotations

import math

__all__ = ["STAGE_COLORS", "count", "duration", "fraction", "quantity", "seconds", "stage_color"]

# Okabe and Ito's palette: told apart by colour-blind readers too.
STAGE_COLORS = {
    "gen": "#0072B2",
    "reward": "#F0E442",
    "old_log_prob": "#56B4E9",
    "ref": "#009E73",
    "values": "#CC79A7",
    "adv": "#999999",
    "update_critic": "#E69F00",
    "update_actor": "#D55E00",
    "update_weights": "#CC79A7",
    "save_checkpoint": "#8C6D31",
    "testing": "#66A61E",
    "unaccounted": "#AA3377",
}
_OTHER_COLOR = "#777777"
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def stage_color(name: str) -> str:
    """The colour of a stage, the same in every view."""
    return STAGE_COLORS.get(name, _OTHER_COLOR)


def seconds(value: float) -> str:
    """A duration in a table of seconds: '12.3 s', '340 ms', '81 us'."""
    if abs(value) >= 99.95:
        return f"{value:.0f} s"
    if abs(value) >= 9.995:
        return f"{value:.1f} s"
    if abs(value) >= 0.9995:
        return f"{value:.2f} s"
    if abs(value) >= 0.0009995:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.0f} us" if value else "0 s"


def duration(value: float) -> str:
    """A long duration: '3:07', '2:03:07'; below a minute as `seconds`."""
    if value < 59.5:
        return seconds(value)
    whole = round(value)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def quantity(value: float, unit: str = "") -> str:
    """A rate or an amount with a decimal prefix: '1.23 GFLOP/s', '45.6 MB', '812 tok/s'."""
    for size, prefix in _PREFIXES:
        if abs(value) >= size * 0.9995:
            return f"{_three(value / size)} {prefix}{unit}".rstrip()
    return f"{_three(value)} {unit}".rstrip()


def count(value: float) -> str:
    """A whole number with thin thousands: '12 345'."""
    return f"{value:,.0f}".replace(",", " ")


def fraction(value: float) -> str:
    """A share as per cent; never rounded to 0 % or 100 % when it is neither."""
    percent = 100 * value
    if percent == 0 or abs(percent) >= 9.95:
        return f"{percent:.0f} %" if not 99.5 <= percent < 100 else f"{percent:.1f} %"
    return f"{percent:.1f} %" if abs(percent) >= 0.095 else f"{percent:.2g} %"


def _three(value: float) -> str:
    """Three significant digits without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    value = float(f"{value:.3g}")
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(digits, 6)}f}"
