"""Values as TOML text, the way a person would write them into a recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rledger.config.base import NONE

__all__ = ["toml_key", "toml_value"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_key(name: str) -> str:
    """A key, in quotes where TOML wants them."""
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def toml_value(value: Any) -> str:
    """A value on one line: numbers, text, lists and tables of them; None is "none"."""
    if value is None:
        return _text(NONE)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml_value(entry) for entry in value) + "]"
    return repr(value)


def _text(value: str) -> str:
    # JSON's escapes are TOML's, but for the one control character that JSON leaves alone.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
