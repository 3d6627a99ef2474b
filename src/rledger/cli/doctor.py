"""`rledger doctor`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--root", default="runs", help="where runs will be written (default: runs)")


def run(arguments: argparse.Namespace) -> int:
    from rledger.launch.doctor import examine

    findings = examine(Path(arguments.root))
    width = max(len(finding.what) for finding in findings)
    for finding in findings:
        sys.stdout.write(f"{finding.what:<{width}}  {finding.value}\n")
        if finding.advice:
            sys.stdout.write(f"{'':<{width}}  -> {finding.advice}\n")
    return 0
