"""`rledger VERB`: one thin file a verb, imported only when it is called, so that --help is instant."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from rledger.errors import UserError

__all__ = ["main"]

# verb -> what it does; the module of a verb has `add_arguments(parser)` and `run(arguments) -> int`.
_VERBS = {
    "train": "train by a recipe; an existing run is resumed",
    "report": "where a run's time and data went, and what it learned",
    "explain": "what a configuration key means, its default and who set it",
    "doctor": "versions, threads, instruction sets, memory and disk of this machine",
    "model": "get a model, or export a run's policy as a Hugging Face folder",
    "warmup": "make a small starting policy by supervised training",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Exit status: 0 done, 1 a defect of ours, 2 something to fix, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="rledger",
        description="Trains language models with reinforcement learning and keeps the books of it.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for verb, summary in _VERBS.items():
        child = verbs.add_parser(
            verb, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if verb == chosen:
            importlib.import_module(f"rledger.cli.{verb}").add_arguments(child)
    parsed = parser.parse_args(arguments)
    if parsed.version:
        from rledger import __version__

        sys.stdout.write(f"rledger {__version__}\n")
        return 0
    if parsed.verb is None:
        parser.print_help()
        return 0
    try:
        return int(importlib.import_module(f"rledger.cli.{parsed.verb}").run(parsed))
    except UserError as error:
        sys.stderr.write(f"rledger {parsed.verb}: {error}\n")
        return 2
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        extra = _EXTRA_OF.get(missing)
        if extra is None:
            raise
        sys.stderr.write(
            f"rledger {parsed.verb}: needs the package {missing}; install it with"
            f" pip install 'rledger[{extra}]'\n"
        )
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the last checkpoint stands, the same command resumes\n")
        return 130


_EXTRA_OF = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "jinja2": "train",
    "math_verify": "train",
    "reasoning_gym": "train",
    "gguf": "gguf",
}
