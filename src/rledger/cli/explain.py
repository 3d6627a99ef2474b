"""`rledger explain KEY`."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rledger.config.explain import Explanation

__all__ = ["add_arguments", "run"]

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "key",
        nargs="?",
        default="",
        help="dotted key such as trainer.learning_rate, or a section; none lists all",
    )
    parser.add_argument("--recipe", help="a recipe: also tell its value and where that comes from")


def run(arguments: argparse.Namespace) -> int:
    from rledger.config.explain import explain_key, recipe_keys
    from rledger.config.load import load_recipe

    if not arguments.key:
        sys.stdout.write("\n".join(recipe_keys()) + "\n")
        return 0
    loaded = load_recipe(arguments.recipe) if arguments.recipe else None
    blocks = [_block(entry) for entry in explain_key(arguments.key, loaded)]
    sys.stdout.write("\n\n".join(blocks) + "\n")
    return 0


def _block(entry: Explanation) -> str:
    lines = [entry.key, *_paragraph("  ", entry.meaning)]
    facts = [
        ("only with", " or ".join(entry.only_with)),
        ("takes", entry.kind),
        ("default", entry.default),
        ("value", entry.value),
        ("from", entry.source),
    ]
    for name, fact in facts:
        if fact:
            lines += _paragraph(f"  {name:<11}", fact)
    if entry.children:
        width = max(len(child.name) for child in entry.children)
        for child in entry.children:
            lines += _paragraph(f"    {child.name:<{width}}  ", child.meaning)
    return "\n".join(lines)


def _paragraph(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=_WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]
