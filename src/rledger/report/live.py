"""The terminal while training runs: a line a step above a progress bar; plain lines in a pipe.

step   reward   acc    length   tok/s    time   gen ▇▇▇▇▇▇▇ update_actor ▇▇▇▇
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from rledger.books.records import STAGES
from rledger.report.figures import count, duration, seconds, stage_color

__all__ = ["LiveView"]

_BAR_WIDTH = 24
_HEADER_EVERY = 25  # lines after which the column heads are repeated
_COLUMNS = (
    # head, width, metric, format
    ("reward", 8, "critic/score/mean", "{:.3f}"),
    ("length", 7, "response_length/mean", "{:.1f}"),
    ("entropy", 8, "actor/entropy", "{:.3f}"),
    ("grad", 8, "actor/grad_norm", "{:.3g}"),
)


class LiveView:
    """Watches a run. Use it as a context manager; `on_step` gets the row of each closed step."""

    def __init__(self, run_name: str, folder: Path, console: Console | None = None) -> None:
        self._name = run_name
        self._folder = folder
        self._console = console or Console(highlight=False)
        self._num_lines = 0
        self._begin_s = time.perf_counter()
        self._seen_stages: list[str] = []
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(run_name, total=None, state="starting")
        self._first_step: int | None = None

    def __enter__(self) -> LiveView:
        self._console.print(
            Text.assemble(("rledger ", "bold"), (self._name, "bold cyan"), f"  {self._folder}")
        )
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
        if kind is None:
            elapsed = duration(time.perf_counter() - self._begin_s)
            self._console.print(
                Text.assemble(f"{elapsed}; ", ("rledger report ", "bold"), str(self._folder))
            )

    def stop(self) -> None:
        """Give the terminal back as it was."""
        self._progress.stop()

    def announce(self, message: str) -> None:
        """A message above the progress bar, such as that a stop was asked for."""
        self._console.print(Text(message, style="yellow"), soft_wrap=True)

    def on_step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """Show the row of a closed step; step 0 is the policy before training."""
        if self._first_step is None:
            self._first_step = step
        if "perf/time_per_step" in metrics and step > 0:
            self._step_line(step, num_steps, metrics)
        self._evaluation_lines(step, metrics)
        self._progress.update(
            self._task, total=num_steps, completed=step, state=self._state(step, num_steps)
        )

    def _step_line(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        stages = _stage_seconds(metrics)
        new = [name for name in stages if name not in self._seen_stages]
        self._seen_stages += new
        if self._num_lines % _HEADER_EVERY == 0 or (new and self._num_lines < 3):
            self._print_row(self._header(num_steps))
        self._num_lines += 1
        width = len(str(num_steps))
        line = Text(f"{step:>{width}}/{num_steps}", style="bold")
        for _, cells, name, form in _COLUMNS:
            line.append((form.format(metrics[name]) if name in metrics else "-").rjust(cells))
        line.append(_rate(metrics).rjust(15), style="cyan")
        line.append(seconds(metrics["timing_s/step"]).rjust(9), style="bold")
        line.append("  ")
        line.append_text(self._stage_text(stages))
        self._print_row(line)

    def _print_row(self, line: Text) -> None:
        """Cut at the terminal's edge, so that columns stay columns; whole where nobody looks."""
        if self._console.is_terminal:
            self._console.print(line, overflow="ellipsis", no_wrap=True)
        else:
            self._console.print(line, soft_wrap=True)

    def _header(self, num_steps: int) -> Text:
        line = Text("step".rjust(2 * len(str(num_steps)) + 1), style="dim")
        for head, cells, _, _ in _COLUMNS:
            line.append(head.rjust(cells), style="dim")
        line.append("trained tok/s".rjust(15) + "time".rjust(9) + "  ", style="dim")
        for name in self._seen_stages:
            if self._console.is_terminal:
                line.append("■ ", style=stage_color(name))
            line.append(f"{name} ", style="dim")
        return line

    def _stage_text(self, stages: Mapping[str, float]) -> Text:
        """Shares as a bar where there are colours, seconds where there are none."""
        text = Text()
        if not self._console.is_terminal:
            return text.append(" ".join(f"{n} {s:.2f}" for n, s in stages.items()))
        total_s = sum(stages.values())
        filled, position = 0.0, 0
        for name, stage_s in stages.items():
            filled += _BAR_WIDTH * stage_s / total_s if total_s else 0
            cells = round(filled) - position
            position += cells
            text.append("█" * cells, style=stage_color(name))
        longest = max(stages, key=lambda name: stages[name], default="")
        if longest:
            text.append(f" {longest} {seconds(stages[longest])}", style="dim")
        return text

    def _evaluation_lines(self, step: int, metrics: Mapping[str, float]) -> None:
        for name in sorted(metrics):
            if not name.startswith("val-core/"):
                continue
            line = Text(f"evaluation after step {step}: ", style="bold green")
            line.append(name.removeprefix("val-core/").replace("/acc/", "  acc "), style="green")
            line.append(f"  {metrics[name]:.3f}", style="bold green")
            low, high = (
                name.replace("val-core/", "val-aux/") + end for end in ("/ci_low", "/ci_high")
            )
            if low in metrics and high in metrics:
                line.append(f"  [{metrics[low]:.3f}, {metrics[high]:.3f}]", style="green")
            self._print_row(line)

    def _state(self, step: int, num_steps: int) -> str:
        done = step - (self._first_step or 0)
        if done <= 0:
            return f"step {step + 1}/{num_steps}"
        left_s = (time.perf_counter() - self._begin_s) / done * (num_steps - step)
        if step >= num_steps:
            return f"step {step}/{num_steps}"
        return f"step {step + 1}/{num_steps}, about {duration(left_s)} left"


def _stage_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """Stages of the design's list that ran, in its order."""
    return {name: metrics[f"timing_s/{name}"] for name in STAGES if f"timing_s/{name}" in metrics}


def _rate(metrics: Mapping[str, float]) -> str:
    name = "perf/trained_tokens_per_s"
    return count(metrics[name]) if name in metrics else "-"
