"""The time account as tables: a step's stages, its states, and the run from start to end."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rledger.books.balance import SpanNode
from rledger.books.records import BoundsMeasured
from rledger.report.figures import duration, fraction, quantity, seconds, stage_color
from rledger.report.plots import bar, stacked_bar
from rledger.report.reading import RunReading, TimeAccount

__all__ = ["elapsed_section", "largest_stage", "time_section"]

_LEAST_SHARE = 0.005  # smaller pieces inside a stage are shown as one line
_MAX_DEPTH = 2
_STATE_COLORS = {
    "compute": "#0072B2",
    "wait": "#E69F00",
    "communicate": "#CC79A7",
    "copy": "#56B4E9",
    "io": "#8C6D31",
    "idle": "#777777",
}
_PART_COLORS = {
    "steps": "#0072B2",
    "start_up": "#999999",
    "before step 1": "#66A61E",
    "rolled back": "#D55E00",
    "cut off": "#D55E00",
    "between": "#AA3377",
}


def largest_stage(time: TimeAccount) -> tuple[str, float]:
    """Name and seconds of the step's largest direct child."""
    nodes = time.root.children.values()
    largest = max(nodes, key=lambda n: n.seconds, default=None)
    return ("nothing", 0.0) if largest is None else (largest.name, largest.seconds)


def time_section(reading: RunReading, width: int) -> RenderableType:
    """Stages as a tree that adds up, the line that says so, and the states."""
    time = reading.time
    assert time is not None
    table = _stage_table(time, width, reading.bounds)
    balance_s = time.exclusive_s + time.unaccounted_s
    closes = abs(balance_s - time.wall_s) <= 1e-6 * max(1.0, time.wall_s)
    lines: list[RenderableType] = [
        table,
        Text.assemble(
            ("balance  ", "dim"),
            f"exclusive {time.exclusive_s:.6f} s + unaccounted {time.unaccounted_s:.6f} s"
            f" = {balance_s:.6f} s, wall {time.wall_s:.6f} s  ",
            ("closes", "bold green") if closes else ("DOES NOT CLOSE", "bold red"),
        ),
        _states(time, width),
    ]
    if time.process_cpu_s:
        lines.append(
            Text.assemble(
                ("witness  ", "dim"),
                f"this process used {time.process_cpu_s / time.wall_s:.2f} cores on average"
                " (CPU time by the kernel over wall time)",
            )
        )
    if reading.bounds is not None:
        lines.append(
            Text.assemble(
                ("bounds   ", "dim"),
                f"F {quantity(reading.bounds.flops_per_s, 'FLOP/s')},"
                f" B {quantity(reading.bounds.bytes_per_s, 'byte/s')},"
                f" measured here: {reading.bounds.instrument}",
            )
        )
    for stage, why in reading.skipped.items():
        lines.append(Text.assemble(("skipped  ", "dim"), f"{stage}: {why}"))
    return Padding(Group(*lines), (0, 1))


def _stage_table(time: TimeAccount, width: int, bounds: BoundsMeasured | None) -> Table:
    wide, wider = width >= 96, width >= 120
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False)
    table.add_column("stage", no_wrap=True)
    table.add_column("", no_wrap=True)
    for head in ("share", "mean", "last"):
        table.add_column(head, justify="right", no_wrap=True)
    if wider:
        table.add_column("exclusive", justify="right", no_wrap=True)
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column("tok/s", justify="right", no_wrap=True)
    if wide:
        table.add_column("FLOP/s", justify="right", no_wrap=True)
        table.add_column("byte/s", justify="right", no_wrap=True)
        if bounds is not None:
            table.add_column("bound", justify="right", no_wrap=True)
    bar_width = 10 if width < 96 else 14 if width < 120 else 24
    total_s = time.wall_s

    def add(label: Text, seconds_: float, last_s: float, node: SpanNode | None, style: str) -> None:
        share = seconds_ / total_s if total_s else 0.0
        cells: list[RenderableType] = [
            label,
            bar(share, bar_width, style),
            fraction(share),
            seconds(seconds_ / time.num_steps),
            seconds(last_s),
        ]
        if wider:
            cells.append("" if node is None else seconds(node.exclusive_s / time.num_steps))
        cells.append("" if node is None else _calls(node, time.num_steps))
        for name in ("tokens", "flops", "bytes")[: 3 if wide else 1]:
            cells.append("" if node is None else _rate(node, name))
        if wide and bounds is not None:
            cells.append("" if node is None else _of_bound(node, bounds))
        table.add_row(*cells)

    for line in _lines(time.root, time.last, total_s):
        label = Text().append(line.indent, style="dim")
        name_style = "bold" if line.depth == 1 else "" if line.node is not None else "dim"
        label.append(line.name, style=name_style)
        if line.raised:
            label.append(f" {line.raised} raised", style="red")
        add(label, line.seconds, line.last_s, line.node, stage_color(line.stage))
    add(
        Text("unaccounted", style="bold"),
        time.unaccounted_s,
        time.last.exclusive_s,
        None,
        stage_color("unaccounted"),
    )
    add(Text("step", style="bold"), total_s, time.last.seconds, None, "grey37")
    return table


class _Line:
    """One row of the stage tree."""

    __slots__ = ("depth", "indent", "last_s", "name", "node", "raised", "seconds", "stage")

    def __init__(
        self,
        name: str,
        stage: str,
        depth: int,
        seconds: float,
        last_s: float,
        node: SpanNode | None = None,
    ) -> None:
        self.name, self.stage, self.depth, self.node = name, stage, depth, node
        self.seconds, self.last_s = seconds, last_s
        self.indent = "  " * (depth - 1)
        self.raised = node.num_raised if node is not None else 0


def _lines(root: SpanNode, last: SpanNode, total_s: float) -> Iterator[_Line]:
    """Stages by time; inside each its large pieces, its own time, and the small ones as one."""
    for stage in sorted(root.children.values(), key=lambda n: -n.seconds):
        yield from _node_lines(stage, last.children.get(stage.name), stage.name, 1, total_s)


def _node_lines(
    node: SpanNode, last: SpanNode | None, stage: str, depth: int, total_s: float
) -> Iterator[_Line]:
    yield _Line(node.name, stage, depth, node.seconds, last.seconds if last else 0.0, node)
    if not node.children or depth > _MAX_DEPTH:
        return
    rest_s, rest_last_s, num_rest = 0.0, 0.0, 0
    for child in sorted(node.children.values(), key=lambda n: -n.seconds):
        below = last.children.get(child.name) if last else None
        if child.seconds >= _LEAST_SHARE * total_s:
            yield from _node_lines(child, below, stage, depth + 1, total_s)
        else:
            rest_s += child.seconds
            rest_last_s += below.seconds if below else 0.0
            num_rest += 1
    if num_rest:
        yield _Line(f"{num_rest} smaller", stage, depth + 1, rest_s, rest_last_s)
    if node.exclusive_s >= _LEAST_SHARE * total_s:
        own_last_s = last.exclusive_s if last else 0.0
        yield _Line("own time", stage, depth + 1, node.exclusive_s, own_last_s)


def _calls(node: SpanNode, num_steps: int) -> str:
    per_step = node.num_calls / num_steps
    return f"{per_step:.0f}" if per_step >= 9.5 or per_step == int(per_step) else f"{per_step:.1f}"


def _rate(node: SpanNode, name: str) -> str:
    total = node.total(name)
    return quantity(total / node.seconds) if total and node.seconds else ""


def _of_bound(node: SpanNode, bounds: BoundsMeasured) -> str:
    """The nearer of the two bounds: F for arithmetic, B for memory traffic."""
    if not node.seconds:
        return ""
    shares = {
        "F": node.total("flops") / node.seconds / bounds.flops_per_s,
        "B": node.total("bytes") / node.seconds / bounds.bytes_per_s,
    }
    nearer = max(shares, key=lambda name: shares[name])
    return f"{fraction(shares[nearer])} {nearer}" if shares[nearer] else ""


def _states(time: TimeAccount, width: int) -> RenderableType:
    parts = sorted(time.by_state.items(), key=lambda item: -item[1])
    line = Text.assemble(("states   ", "dim"))
    line.append_text(
        stacked_bar(
            [(s / time.wall_s, _STATE_COLORS[state]) for state, s in parts], min(40, width // 4)
        )
    )
    for state, state_s in parts:
        line.append("  ■ ", style=_STATE_COLORS[state])
        line.append(f"{state} {fraction(state_s / time.wall_s)}")
    return line


def elapsed_section(reading: RunReading, width: int) -> RenderableType:
    """The run from the first record to the last: what was training, and what was not."""
    elapsed = reading.elapsed
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    bar_width = 10 if width < 96 else 24
    for name, part_s in elapsed.parts.items():
        share = part_s / elapsed.total_s if elapsed.total_s else 0.0
        color = _PART_COLORS.get(name, "#777777")
        table.add_row(name, bar(share, bar_width, color), fraction(share), duration(part_s))
        if name == "steps":
            for inside, inside_s in elapsed.inside_steps.items():
                if inside_s:
                    share = inside_s / elapsed.total_s
                    table.add_row(
                        Text(f"  of it {inside}", style="dim"),
                        bar(share, bar_width, stage_color(inside)),
                        Text(fraction(share), style="dim"),
                        Text(duration(inside_s), style="dim"),
                    )
    table.add_row(
        Text("elapsed", style="bold"), "", "", Text(duration(elapsed.total_s), style="bold")
    )
    return Padding(table, (0, 1))
