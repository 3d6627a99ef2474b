"""`rledger model get NAME` and `rledger model export RUN FOLDER`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    get = actions.add_parser("get", help="bring a known model into a local folder")
    get.add_argument("name", help="smollm2-135m")
    get.add_argument("--to", help="folder (default: models/<name>)")
    export = actions.add_parser(
        "export", help="write a checkpoint of a run as a Hugging Face folder"
    )
    export.add_argument("run", help="a run folder")
    export.add_argument("folder", help="where to write; must not exist")
    export.add_argument("--step", type=int, help="step of the checkpoint (default: the newest)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "get":
        from rledger.models.fetch import get_model

        folder = get_model(arguments.name, Path(arguments.to or f"models/{arguments.name}"))
        sys.stdout.write(f"{folder}\n")
        return 0
    from rledger.launch.export import export_checkpoint

    export_checkpoint(Path(arguments.run), Path(arguments.folder), step=arguments.step)
    sys.stdout.write(f"{arguments.folder}\n")
    return 0
