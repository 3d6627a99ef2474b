"""`rledger report`: a run's accounts, curves and evaluations for the terminal.

Sections say how their figures came about: observed ones name their instrument, estimates name their
formula, and what is inferred stands apart with its rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rledger.report.data_section import data_section, throughput_section
from rledger.report.figures import count, duration, fraction, quantity, seconds, stage_color
from rledger.report.plots import curve
from rledger.report.reading import Evaluation, Measured, RunReading, read_run
from rledger.report.time_section import elapsed_section, largest_stage, time_section

__all__ = ["Report", "render_report"]

_PLOT_WIDTH = 39  # least cells of a plot
_PLOT_ROWS = 5
_MAX_PLOTS = 6


def render_report(run_folder: Path | str, *, steps: tuple[int, int] | None = None) -> Report:
    """The report on a run, ready to be printed with rich; `steps` (both included) limits it.

    Raises RunFolderError when the folder holds no run or no such steps.
    """
    return Report(read_run(Path(run_folder), steps=steps))


class Report:
    """A rich renderable that fits itself to the width it is printed at."""

    def __init__(self, reading: RunReading) -> None:
        self.reading = reading

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        reading = self.reading
        yield Rule(Text(f" rledger report · {reading.folder.name} ", style="bold"), style="cyan")
        yield _identity(reading, width)
        yield from _section("", _headline(reading))
        if reading.time is not None:
            yield from _section(
                f"Where a step goes · {_step_range(reading)}", time_section(reading, width)
            )
        yield from _section("Where the run went", elapsed_section(reading, width))
        if reading.rows:
            yield from _section("Throughput", throughput_section(reading))
        if reading.data.groups.came:
            yield from _section("Data account", data_section(reading))
        if reading.curves:
            yield from _section("Learning", _plots(reading, width))
        if reading.evaluations:
            yield from _section("Evaluation on held-out prompts", _evaluations(reading, width))
        if reading.time is not None:
            yield from _section("Inferred", _inferred(reading))
        yield from _section("Books and files", _books(reading))

    def to_text(self, width: int = 100) -> str:
        """The report as plain text without colours."""
        console = Console(width=width, color_system=None, force_terminal=False, highlight=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


def _section(title: str, body: RenderableType) -> Iterator[RenderableType]:
    yield Text("")
    if title:
        yield Rule(Text(title, style="bold cyan"), align="left", style="grey37")
    yield body


def _step_range(reading: RunReading) -> str:
    assert reading.time is not None
    steps = reading.time.steps
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"mean of steps {steps[0]}..{steps[-1]} ({len(steps)})"


def _identity(reading: RunReading, width: int) -> RenderableType:
    opened = reading.books.attempts[0].opened
    started = datetime.fromtimestamp(opened.unix_origin_s).strftime("%Y-%m-%d %H:%M:%S")
    attempts = len({a.opened.attempt for a in reading.books.attempts})
    done = max(reading.books.steps(), default=0)
    planned = reading.setting("run.num_steps")
    pairs = [
        ("model", _text(reading.setting("model.path"))),
        (
            "algorithm",
            " · ".join(
                f"{part} {reading.setting(f'algorithm.{key}.type')}"
                for part, key in (("advantage", "advantage"), ("loss", "loss"), ("KL", "kl"))
                if reading.setting(f"algorithm.{key}.type") is not None
            ),
        ),
        ("steps", f"{done} of {planned} committed" if planned else f"{done}"),
        ("a step", _shape(reading)),
        ("started", f"{started} on {opened.host}"),
        ("elapsed", f"{duration(reading.elapsed.total_s)}, {attempts} attempt(s)"),
    ]
    table = Table.grid(padding=(0, 2, 0, 0))
    two = width >= 96
    for _ in range(2 if two else 1):
        table.add_column(style="dim")
        table.add_column(ratio=1)
    known = [(name, value) for name, value in pairs if value]
    for index in range(0, len(known), 2 if two else 1):
        cells = [cell for pair in known[index : index + (2 if two else 1)] for cell in pair]
        table.add_row(*[Text(cell) for cell in cells])
    return Padding(table, (0, 1))


def _shape(reading: RunReading) -> str:
    prompts = reading.setting("run.num_prompts_per_step")
    size = reading.setting("run.group_size")
    updates = reading.setting("trainer.num_updates_per_step")
    if prompts is None or size is None:
        return ""
    text = f"{prompts} prompts x {size} trajectories"
    return text if updates is None else f"{text}, {updates} update(s)"


def _text(value: object | None) -> str:
    return "" if value is None else str(value)


def _headline(reading: RunReading) -> RenderableType:
    lines = []
    for evaluation in reading.evaluations:
        if evaluation.figure.startswith("acc/mean@") and len(evaluation.measured) > 1:
            lines.append(_learned(evaluation))
    time = reading.time
    if time is not None:
        name, stage_s = largest_stage(time)
        line = Text.assemble(
            (seconds(time.wall_s / time.num_steps), "bold"),
            " a step (testing included); " if "testing" in time.root.children else " a step; ",
            (name, f"bold {stage_color(name)}"),
            f" takes {fraction(stage_s / time.wall_s)} of it; ",
            (f"{fraction(time.unaccounted_s / time.wall_s)} unaccounted", "bold"),
            f" (worst: {fraction(time.worst_unaccounted_frac)} in step {time.worst_step})",
        )
        lines.append(line)
    for problem in reading.broken[:5]:
        lines.append(Text(f"DOES NOT BALANCE: {problem}", style="bold red"))
    if len(reading.broken) > 5:
        lines.append(Text(f"and {len(reading.broken) - 5} more", style="bold red"))
    return Padding(Group(*lines), (0, 1))


def _learned(evaluation: Evaluation) -> Text:
    before, after = evaluation.before, evaluation.after
    change = after.value - before.value
    return Text.assemble(
        (evaluation.task, "bold"),
        f" accuracy {before.value:.3f} -> ",
        (f"{after.value:.3f}", "bold green" if change > 0 else "bold"),
        f" ({change:+.3f}) from step {before.step} to {after.step}",
    )


def _plots(reading: RunReading, width: int) -> RenderableType:
    per_row = max(1, min(3, (width - 2) // _PLOT_WIDTH))
    plot_width = (width - 2) // per_row - 2
    plots = []
    for item in reading.curves[:_MAX_PLOTS]:
        head = Text.assemble(
            (item.title, "bold"), f"  {item.values[0]:.4g} -> {item.values[-1]:.4g}"
        )
        head.truncate(plot_width, overflow="ellipsis")
        lines = curve(item.steps, item.values, plot_width, _PLOT_ROWS, "cyan")
        plots.append(Group(head, *lines, Text("")))
    note = Text("x: step; observed, from metrics.jsonl", style="dim")
    return Padding(
        Group(Columns(plots, width=plot_width, padding=(0, 2, 0, 0)), note), (0, 0, 0, 1)
    )


def _evaluations(reading: RunReading, width: int) -> RenderableType:
    with_best = width >= 96
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("task")
    table.add_column("figure", no_wrap=True)
    for head in ("before", "after", "change", *(("best",) if with_best else ())):
        table.add_column(head, justify="right", no_wrap=True)
    sizes = set()
    for evaluation in reading.evaluations:
        before, after = evaluation.before, evaluation.after
        change = after.value - before.value
        sizes.add(f"{evaluation.num_prompts} prompts of {evaluation.task}")
        cells = [
            Text(evaluation.task),
            Text(evaluation.figure),
            Text(_interval(before)),
            Text(_interval(after) if len(evaluation.measured) > 1 else "-", style="bold"),
            Text(
                f"{change:+.3f}" if len(evaluation.measured) > 1 else "-",
                style="green" if change > 0 else "",
            ),
        ]
        if with_best:
            best = max(evaluation.measured, key=lambda m: m.value)
            cells.append(Text(f"{best.value:.3f} at step {best.step}"))
        table.add_row(*cells)
    note = Text(
        f"observed on {', '.join(sorted(sizes))}; brackets: bootstrap interval over prompts, which"
        " knows nothing of other seeds",
        style="dim",
    )
    return Padding(Group(table, note), (0, 1))


def _interval(measured: Measured) -> str:
    if measured.low is None or measured.high is None:
        return f"{measured.value:.3f}"
    return f"{measured.value:.3f} [{measured.low:.3f}, {measured.high:.3f}]"


def _inferred(reading: RunReading) -> RenderableType:
    """Conclusions with their rule; everything above is observed or estimated by a named formula."""
    time = reading.time
    assert time is not None
    name, stage_s = largest_stage(time)
    share = stage_s / time.wall_s
    rule = (
        f"rule: {name} has the largest share of the lane's time and the stages of a lane follow one"
        f" another; at twice its speed a step would take at least {fraction(1 - share / 2)} of"
        " today's time. It would be refuted by work that another lane hides behind this stage."
    )
    text = Text.assemble(
        (f"{name} is the first place to look", "bold"), f" ({fraction(share)} of a step)\n", rule
    )
    return Padding(text, (0, 1))


def _books(reading: RunReading) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(ratio=1)
    for name, value in _book_lines(reading):
        table.add_row(name, Text(value))
    return Padding(table, (0, 1))


def _book_lines(reading: RunReading) -> Iterable[tuple[str, str]]:
    attempts = reading.books.attempts
    costs = [a.cost for a in attempts if a.cost is not None]
    cost_s = sum(c.cost_s for c in costs)
    size_bytes = sum(a.path.stat().st_size for a in attempts)
    num_records = sum(c.num_records for c in costs)
    line = f"{count(num_records)} records, {quantity(size_bytes, 'B')}"
    if reading.elapsed.total_s > 0:
        share = cost_s / reading.elapsed.total_s
        line += f"; cost {seconds(cost_s)} = {fraction(share)} of the time (self-booked)"
    yield "books", line
    lost = sum(c.lost_records for c in costs)
    missing = sum(a.num_missing_rows for a in attempts)
    torn = reading.books.num_torn_lines
    if lost or missing or torn:
        yield (
            "damage",
            f"{torn} torn line(s), {missing} row(s) missing, {lost} not written (full disk)",
        )
    yield (
        "instruments",
        "stage time: host spans on a monotonic clock (a stage on an accelerator shows what the host"
        " waited for); CPU and memory: kernel counters of this process; FLOPs and bytes: formulas"
        " (least work, not what a kernel really did); tokens and groups: counted events",
    )
    yield "folder", str(reading.folder)
    for name, what in (
        ("metrics.jsonl", "one row a step"),
        ("books/", "all records, one file an attempt"),
        ("trajectories.jsonl", "sampled trajectories"),
        ("checkpoints/", "to resume from"),
        ("model/", "the trained policy, a Hugging Face folder"),
        ("recipe.json", "the resolved configuration"),
    ):
        if (reading.folder / name).exists():
            yield "", f"{name.ljust(20)}{what}"
