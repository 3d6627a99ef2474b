"""`rledger explain KEY`."""

from __future__ import annotations

import argparse
import sys

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "key",
        nargs="?",
        default="",
        help="dotted key such as trainer.learning_rate; none lists all",
    )
    parser.add_argument("--recipe", help="a recipe: also tell its value and where that comes from")


def run(arguments: argparse.Namespace) -> int:
    from rledger.config.explain import all_keys, explain_key
    from rledger.config.load import load_recipe

    if not arguments.key:
        sys.stdout.write("\n".join(all_keys()) + "\n")
        return 0
    loaded = load_recipe(arguments.recipe) if arguments.recipe else None
    for entry in explain_key(arguments.key, loaded):
        lines = [
            entry.key,
            f"  {entry.meaning}",
            f"  kind     {entry.kind}",
            f"  default  {entry.default}",
        ]
        if entry.value is not None:
            lines.append(f"  value    {entry.value} (from {entry.source})")
        lines += [f"  has      {child}" for child in entry.children]
        sys.stdout.write("\n".join(lines) + "\n")
    return 0
