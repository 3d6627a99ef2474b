"""Throughput with its denominators, and the data account."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rledger.books.balance import Flow
from rledger.report.figures import count, fraction, quantity
from rledger.report.reading import RunReading

__all__ = ["data_section", "throughput_section"]


def throughput_section(reading: RunReading) -> RenderableType:
    """Tokens per second over the steps shown: sums over sums, never means of ratios."""
    step_s = reading.total("perf/time_per_step")
    elapsed_s = reading.total("time/elapsed_s")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("tokens")
    table.add_column("a second of step", justify="right")
    table.add_column("a second elapsed", justify="right")
    table.add_column("in all", justify="right")
    for kind, meaning in (
        ("generated", "generated"),
        ("trained", "trained (loss_mask 1 in a committed step)"),
        ("useful", "useful (trained, advantage not zero, not rejected)"),
    ):
        total = reading.total(f"data/{kind}_tokens")
        table.add_row(
            meaning,
            Text(_per_second(total, step_s), style="bold"),
            _per_second(total, elapsed_s),
            count(total),
        )
    customary = reading.total("perf/total_num_tokens")
    table.add_row(
        Text("prompt + response (perf/throughput)", style="dim"),
        Text(_per_second(customary, step_s), style="dim"),
        Text(_per_second(customary, elapsed_s), style="dim"),
        Text(count(customary), style="dim"),
    )
    note = Text(
        "step: wall time of the steps without testing; elapsed: with testing, checkpoints and all"
        " between. Counted tokens over host spans.",
        style="dim",
    )
    lines: list[RenderableType] = [table]
    utilisation = reading.mean("perf/mfu/actor")
    if utilisation is not None:
        lines.append(
            Text(
                f"perf/mfu/actor {fraction(utilisation)} (mean over steps; an estimate of FLOPs over"
                " the peak, see docs/reading-a-step.md)"
            )
        )
    return Padding(Group(*lines, note), (0, 1))


def data_section(reading: RunReading) -> RenderableType:
    """Came = trained + dropped + buffered + in flight, of the whole surviving timeline."""
    data = reading.data
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("whole run")
    for head in ("came", "trained", "dropped", "buffered", "in flight", "balance"):
        table.add_column(head, justify="right")
    for name, flow in (
        ("groups", data.groups),
        ("trajectories", data.trajectories),
        ("tokens", data.tokens),
    ):
        table.add_row(name, *_flow_cells(flow))
    lines: list[RenderableType] = [table]
    reasons = dict.fromkeys(
        [*data.groups.dropped, *data.trajectories.dropped, *data.tokens.dropped]
    )
    for reason in reasons:
        line = Text.assemble(("dropped  ", "dim"), f"{reason}: ")
        line.append(
            ", ".join(
                f"{count(flow.dropped[reason])} {name}"
                for name, flow in (
                    ("groups", data.groups),
                    ("trajectories", data.trajectories),
                    ("tokens", data.tokens),
                )
                if reason in flow.dropped
            )
        )
        lines.append(line)
    if data.tokens.trained:
        useful = data.tokens.useful / data.tokens.trained
        lines.append(
            Text.assemble(
                ("useful   ", "dim"),
                f"{fraction(useful)} of the trained tokens; {data.num_commits} steps committed",
            )
        )
    lines.append(Text("counted events of the surviving timeline", style="dim"))
    return Padding(Group(*lines), (0, 1))


def _flow_cells(flow: Flow) -> list[Text]:
    closes = flow.difference == 0
    return [
        Text(count(flow.came)),
        Text(count(flow.trained)),
        Text(count(flow.num_dropped)),
        Text(count(flow.buffered)),
        Text(count(flow.in_flight)),
        Text(
            "closes" if closes else f"off by {flow.difference}", "green" if closes else "bold red"
        ),
    ]


def _per_second(total: float, seconds: float) -> str:
    return quantity(total / seconds) if seconds > 0 else "-"
