"""`rledger report RUN`."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder, or the name of a run under runs/")
    parser.add_argument("--steps", help="A:B, the steps to read, both included (default: all)")


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from rledger.errors import ConfigError, RunFolderError
    from rledger.report.terminal import render_report

    folder = Path(arguments.run)
    if not folder.is_dir():
        folder = Path("runs") / arguments.run
    if not (folder / "books").is_dir():
        known = sorted(p.parent.name for p in Path("runs").glob("*/books"))
        raise RunFolderError(
            f"{arguments.run} is no run folder (it has no books); runs here: {', '.join(known) or 'none'}"
        )
    steps = None
    if arguments.steps:
        first, separator, last = arguments.steps.partition(":")
        if not separator or not first.isdigit() or not last.isdigit():
            raise ConfigError(f"--steps {arguments.steps}: write it as A:B, for example 1:20")
        steps = (int(first), int(last))
    console = Console()
    console.print(render_report(folder, steps=steps))
    return 0
