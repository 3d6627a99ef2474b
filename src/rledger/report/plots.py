"""Plots out of characters: braille dots for curves, eighths of a block for bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text

__all__ = ["bar", "curve", "stacked_bar"]

_EIGHTHS = " ▏▎▍▌▋▊▉█"
# Bits of a braille cell, by column and row from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def bar(share: float, width: int, style: str) -> Text:
    """A bar of `share` (0..1) of `width` cells, in steps of an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    if share > 0 and eighths == 0:
        eighths = 1  # something is not nothing
    whole, rest = divmod(eighths, 8)
    text = "█" * whole + (_EIGHTHS[rest] if rest else "")
    return Text(text.ljust(width), style=style)


def stacked_bar(parts: Sequence[tuple[float, str]], width: int) -> Text:
    """Shares (adding up to at most 1) one after the other, each in its style."""
    text = Text()
    filled, position = 0.0, 0
    for share, style in parts:
        filled += share * width
        cells = round(filled) - position
        position += cells
        text.append("█" * cells, style=style)
    return text


def curve(
    steps: Sequence[int], values: Sequence[float], width: int, height: int, style: str
) -> list[Text]:
    """A line through the points with axes: `height` rows of plot, one of axis, one of labels.

    The whole takes at most `width` cells. Points are joined; more points than dots are averaged.
    """
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    labels = [_label(high), _label((low + high) / 2), _label(low)]
    margin = max(6, *(len(label) for label in labels))  # so that plots side by side align
    columns = max(8, width - margin - 2)
    cells = _draw(steps, values, columns, height, low, high)
    places = {0: labels[0], height - 1: labels[2]}
    if height >= 5:
        places[(height - 1) // 2] = labels[1]
    lines = []
    for row in range(height):
        line = Text(places.get(row, "").rjust(margin), style="dim")
        line.append(" ┤" if row in places else " │", style="dim")
        line.append("".join(chr(0x2800 + bits) for bits in cells[row]), style=style)
        lines.append(line)
    lines.append(Text(" " * margin + " └" + "─" * columns, style="dim"))
    first, last = str(steps[0]), str(steps[-1])
    gap = columns - len(first) - len(last)
    lines.append(Text(" " * (margin + 2) + first + " " * max(1, gap) + last, style="dim"))
    return lines


def _draw(
    steps: Sequence[int],
    values: Sequence[float],
    columns: int,
    rows: int,
    low: float,
    high: float,
) -> list[list[int]]:
    """Braille bits [rows][columns] of the line through the points."""
    cells = [[0] * columns for _ in range(rows)]
    width, height = 2 * columns, 4 * rows
    span = max(1, steps[-1] - steps[0])
    sums: dict[int, tuple[float, int]] = {}
    for step, value in zip(steps, values, strict=True):
        x = round((step - steps[0]) / span * (width - 1))
        total, num = sums.get(x, (0.0, 0))
        sums[x] = (total + value, num + 1)
    points = [
        (x, round((1 - (total / num - low) / (high - low)) * (height - 1)))
        for x, (total, num) in sorted(sums.items())
    ]
    for (x0, y0), (x1, y1) in zip(points, points[1:] or points, strict=False):
        num = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(num + 1):
            x = x0 + round((x1 - x0) * i / num)
            y = y0 + round((y1 - y0) * i / num)
            cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    return cells


def _label(value: float) -> str:
    """A short label of an axis."""
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if -3 <= magnitude < 5:
        return f"{value:.{max(0, 2 - magnitude)}f}" if magnitude < 3 else f"{value:.0f}"
    return f"{value:.1e}"
