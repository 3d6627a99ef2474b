"""`rledger doctor`."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", default="runs", help="where runs will be written (default: runs)")


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from rledger.launch.doctor import examine

    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in examine(Path(arguments.root)):
        advice = f"[yellow]{finding.advice}[/yellow]" if finding.advice else ""
        table.add_row(f"[bold]{finding.what}[/bold]", finding.value, advice)
    Console().print(table)
    return 0
