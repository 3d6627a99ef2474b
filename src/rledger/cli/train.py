"""`rledger train RECIPE [key=value ...]`."""

from __future__ import annotations

import argparse
import sys

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a TOML recipe, such as recipes/demo.toml")
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key=value",
        help="dotted overrides of the recipe, such as run.num_steps=20",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved recipe and what would run"
    )


def run(arguments: argparse.Namespace) -> int:
    from rledger.config.load import load_recipe

    loaded = load_recipe(arguments.recipe, arguments.overrides)
    if arguments.dry_run:
        from rledger.report.dry_run import dry_run_text

        sys.stdout.write(dry_run_text(loaded))
        return 0
    from rledger.launch.inline import train

    outcome = train(loaded)
    if outcome.finished:
        return 0
    num_steps = loaded.recipe.run.num_steps
    sys.stderr.write(
        f"rledger train: stopped after step {outcome.step} of {num_steps}; the same command resumes\n"
    )
    return 130
