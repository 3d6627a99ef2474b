"""`rledger warmup RECIPE [key=value ...]`."""

from __future__ import annotations

import argparse
import sys

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a TOML warm-up recipe, such as recipes/demo-warmup.toml")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="dotted overrides"
    )


def run(arguments: argparse.Namespace) -> int:
    from rledger.config.load import load_schema
    from rledger.config.warmup import WarmupRecipe
    from rledger.launch.warmup import warm_up

    config = load_schema(WarmupRecipe, arguments.recipe, arguments.overrides)[0]
    accuracy = warm_up(config, _say)
    sys.stdout.write(f"{config.warmup.output}: greedy accuracy {accuracy:.3f}\n")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
