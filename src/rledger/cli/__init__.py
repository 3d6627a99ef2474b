"""`rledger VERB`: one thin file a verb, imported only when it is called, so that --help is instant."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
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
    _share_the_cores()
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="rledger",
        description="Trains language models with reinforcement learning and keeps the books of it.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    speaker = parser
    for verb, summary in _VERBS.items():
        child = verbs.add_parser(
            verb, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
        )
        if verb == chosen:
            importlib.import_module(f"rledger.cli.{verb}").add_arguments(child)
            speaker = child
    parsed, rest = parser.parse_known_args(arguments)
    _take_overrides(speaker, parsed, rest)
    if parsed.version:
        from rledger import __version__

        sys.stdout.write(f"rledger {__version__}\n")
        return 0
    if parsed.verb is None:
        parser.print_help()
        return 0
    try:
        status = int(importlib.import_module(f"rledger.cli.{parsed.verb}").run(parsed))
        sys.stdout.flush()
        return status
    except UserError as error:
        return _refuse(parsed.verb, str(error))
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        extra = _EXTRA_OF.get(missing)
        if extra is None:
            raise
        return _refuse(
            parsed.verb,
            f"needs the package {missing}; install it with pip install 'rledger[{extra}]'",
        )
    except BrokenPipeError:
        # Whoever read the output has seen enough, as in `rledger explain | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in _DISK_REFUSES:
            raise
        return _refuse(
            parsed.verb,
            f"{error.filename or 'a file'} cannot be written ({error.strerror}); free some space",
        )
    except KeyboardInterrupt:
        sys.stderr.write(f"rledger {parsed.verb}: interrupted{_AFTERWARDS.get(parsed.verb, '')}\n")
        return 130


def _take_overrides(
    speaker: argparse.ArgumentParser, parsed: argparse.Namespace, rest: Sequence[str]
) -> None:
    """`key=value` may stand behind an option too, and be written --section.key=value."""
    wrong = [word for word in rest if not _is_override(word)]
    if rest and (wrong or "overrides" not in parsed):
        speaker.error(f"unrecognized arguments: {' '.join(wrong or rest)}")
    if rest:
        parsed.overrides = [*parsed.overrides, *rest]


def _is_override(word: str) -> bool:
    key, separator, _ = word.partition("=")
    return bool(separator) and ("." in key or not key.startswith("-"))


def _refuse(verb: str, message: str) -> int:
    sys.stderr.write(f"rledger {verb}: {message}\n")
    return 2


_AFTERWARDS = {"train": "; the same command resumes at the last checkpoint, if there is one"}
_DISK_REFUSES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def _share_the_cores() -> None:
    """Let torch's threads sleep soon when they wait for each other; set before torch is loaded.

    GNU OpenMP spins for milliseconds by default. On cores that something else uses too (reward
    processes, a browser), the spinning takes the very core that the other thread needs: generation was
    up to ten times slower beside one busy process, and a few per cent faster without one.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


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
