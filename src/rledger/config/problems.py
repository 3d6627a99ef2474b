"""What is wrong with a recipe, in words that need no knowledge of the program."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rledger.config.schema import (
    all_keys,
    field_kind,
    find_section,
    required_keys,
    sections_in,
    variant_of,
)
from rledger.config.toml_text import toml_value

__all__ = ["describe_problems", "listing", "source_of"]


def describe_problems(
    error: ValidationError, root: type[BaseModel], sources: Mapping[str, str]
) -> list[str]:
    """One line a problem: the key, what it was set to and where, and what it takes."""
    lines = []
    for detail in error.errors():
        lines += _describe(detail, _find(detail["loc"], root), root, sources)
    # Each type that a value could have had complains by itself; the lines are the same.
    return list(dict.fromkeys(lines))


def listing(path: object, problems: Sequence[str]) -> str:
    """A message over all problems of a file."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{path}: {count}", *(f"  {problem}" for problem in problems)])


def source_of(key: str, sources: Mapping[str, str]) -> str | None:
    """Who set a key: the source of the key itself, of what it lies in, or of what lies in it."""
    above = key
    while above:
        if above in sources:
            return sources[above]
        above = above.rpartition(".")[0]
    return next((s for k, s in sources.items() if k.startswith(f"{key}.")), None)


@dataclass(frozen=True)
class _Place:
    """Where in a recipe a problem lies."""

    key: str
    parent: type[BaseModel] | None  # the section that the last key is, or should be, in
    field: FieldInfo | None
    entry: int | None  # of the field's list
    in_table: bool = False  # the last key is one of the user's own, in the field's table


def _find(location: Sequence[str | int], root: type[BaseModel]) -> _Place:
    """Follow a location; the `type` of a chosen variant stands in it and is no part of the key."""
    sections: list[type[BaseModel]] = [root]
    parent: type[BaseModel] | None = None
    field: FieldInfo | None = None
    entry: int | None = None
    parts: list[str] = []
    in_table = False
    for part in location:
        chosen = [s for s in sections if len(sections) > 1 and variant_of(s) == part]
        if chosen:
            sections = chosen
        elif isinstance(part, int):
            entry = part
            if sections:
                parts.append(str(part))
        elif len(sections) == 1:
            parent, entry = sections[0], None
            parts.append(part)
            field = parent.model_fields.get(part)
            sections = [] if field is None else sections_in(field.annotation)
        elif field is not None and "a table" in field_kind(field):
            parts.append(part)
            in_table = True
    return _Place(".".join(parts), parent, field, entry, in_table)


def _describe(
    detail: Any, place: _Place, root: type[BaseModel], sources: Mapping[str, str]
) -> list[str]:
    key, kind, given = place.key, detail["type"], detail["input"]
    where = _where(key, sources)
    if kind == "extra_forbidden":
        return [f"{key}{where}: unknown key{_instead(place, root)}"]
    if kind == "missing":
        return _missing(place)
    if kind in ("union_tag_invalid", "union_tag_not_found") and isinstance(given, dict):
        return [_wrong_type(place, given, sources)]
    if kind == "value_error":
        message = str(detail["msg"]).removeprefix("Value error, ")
        if isinstance(given, dict):  # a contradiction inside a section
            return [f"{key}: {message}" if key else message]
        return [f"{key} = {_shown(given)}{where}: {message}"]
    assert place.field is not None, f"{detail['type']} at {detail['loc']}"
    wants = field_kind(place.field)
    if place.in_table:
        wants = wants.rpartition("each value is ")[2]
    what = f"{key} = {_shown(given)}"
    if place.entry is not None and not key.endswith(f".{place.entry}"):
        what = f"{key}: entry {place.entry + 1} is {_shown(given)}"
    finite = "finite, " if kind == "finite_number" else ""
    return [f"{what}{where}: must be {finite}{wants}{_meant(given, wants)}"]


def _where(key: str, sources: Mapping[str, str]) -> str:
    source = source_of(key, sources)
    return f" ({source})" if source else ""


def _missing(place: _Place) -> list[str]:
    assert place.field is not None
    children = sections_in(place.field.annotation)
    is_list = field_kind(place.field).startswith("a list")
    if len(children) == 1 and not is_list:
        needed = [(f"{place.key}.{key}", field) for key, field in required_keys(children[0])]
    else:
        needed = [(f"{place.key}.type" if children and not is_list else place.key, place.field)]
    return [
        f"{key}: missing. {' '.join((field.description or '').split())}"
        f" It takes {field_kind(field).removeprefix('a section; its type is ')}."
        for key, field in needed
    ]


def _wrong_type(place: _Place, given: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    assert place.field is not None
    wants = field_kind(place.field).rpartition("type is ")[2]
    key = f"{place.key}.type"
    if "type" not in given:
        return f"{key}: missing. It takes {wants}."
    value = given["type"]
    return f"{key} = {_shown(value)}{_where(key, sources)}: must be {wants}{_meant(value, wants)}"


def _instead(place: _Place, root: type[BaseModel]) -> str:
    """Where an unknown key may belong: near by, with another `type`, or in another section."""
    *parents, last = place.key.split(".")
    assert place.parent is not None
    own = list(place.parent.model_fields)
    siblings = [s for s in find_section(root, parents) if last in s.model_fields]
    types = [f'"{variant}"' for s in siblings if (variant := variant_of(s)) is not None]
    if types:
        chosen = variant_of(place.parent)
        return (
            f" with {'.'.join([*parents, 'type'])} = {_shown(chosen)}; it belongs to"
            f" {' or '.join(types)}: remove the key, or choose that type"
        )
    near = difflib.get_close_matches(last, own, n=1)
    if near:
        return f"; did you mean {'.'.join([*parents, near[0]])}?"
    elsewhere = [key for key in all_keys(root) if key.rpartition(".")[2] == last]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere[:3])}?"
    return f"; known here: {', '.join(own)}"


def _meant(given: Any, wants: str) -> str:
    """The choice that a misspelt one is near to."""
    if not isinstance(given, str):
        return ""
    near = difflib.get_close_matches(given, wants.split('"')[1::2], n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


def _shown(value: Any) -> str:
    text = toml_value(value)
    return text if len(text) <= 80 else text[:77] + "..."
