"""What the sections allow, read from their classes: keys, variants, and kinds in words."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rledger.config.base import NONE

__all__ = [
    "all_keys",
    "field_kind",
    "find_section",
    "required_keys",
    "sections_in",
    "takes_text",
    "variant_of",
]

_LIMITS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))


def find_section(root: type[BaseModel], parts: Sequence[str]) -> list[type[BaseModel]]:
    """The sections that a dotted path can lead to; several where a `type` chooses a variant.

    Numbers in the path are places in a list of sections.
    """
    sections = [root]
    for part in parts:
        if part.isdigit():
            continue
        following = [
            child
            for section in sections
            if part in section.model_fields
            for child in sections_in(section.model_fields[part].annotation)
        ]
        sections = list(dict.fromkeys(following))
    return sections


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a value of this type can be, or be a list of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [s for argument in get_args(annotation) for s in sections_in(argument)]


def variant_of(section: type[BaseModel]) -> str | None:
    """The `type` by which a recipe chooses this section, None where there is no choice."""
    field = section.model_fields.get("type")
    return None if field is None else str(get_args(field.annotation)[0])


def all_keys(root: type[BaseModel]) -> list[str]:
    """Every dotted key below `root`, sections included."""
    return sorted(set(_walk(root, "")))


def required_keys(section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Dotted keys without a default, down to the values; of a choice only its `type`."""
    for name, field in section.model_fields.items():
        if not field.is_required():
            continue
        children = sections_in(field.annotation)
        if len(children) > 1:
            yield f"{name}.type", field
        elif children:
            yield from ((f"{name}.{key}", below) for key, below in required_keys(children[0]))
        else:
            yield name, field


def takes_text(root: type[BaseModel], key: Sequence[str]) -> bool:
    """Whether the key takes text and nothing else, so that 2024 on a command line means "2024"."""
    *parents, last = key
    fields = [s.model_fields[last] for s in find_section(root, parents) if last in s.model_fields]
    return bool(fields) and all(_options(f.annotation) <= {str, type(None)} for f in fields)


def field_kind(field: FieldInfo) -> str:
    """What values a key takes, in words: "a whole number, at least 1"."""
    return _kind(field.annotation, field.metadata)


def _walk(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        key = f"{prefix}.{name}".lstrip(".")
        yield key
        for child in sections_in(field.annotation):
            yield from _walk(child, key)


def _options(annotation: Any) -> set[Any]:
    """The plain types that a union is made of."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _options(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return set().union(*(_options(argument) for argument in get_args(annotation)))
    return {annotation}


def _kind(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = [m for extra in arguments[1:] for m in _flat(extra)]
        return _kind(arguments[0], [*metadata, *inner])
    if origin in (Union, types.UnionType):
        return _union_kind(arguments, metadata)
    if origin is Literal:
        return _one_of(arguments)
    for kind, words in _PLAIN:
        if annotation is kind:
            return words + _limits(metadata)
    if origin in (tuple, list):
        return "a list; each entry is " + _kind(arguments[0])
    if origin is dict:
        return f"a table; each value is {_kind(arguments[1])}".replace("is any value", "is free")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a section"
    return "any value"  # a JSON value


_PLAIN: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "text"),
)


def _union_kind(arguments: Sequence[Any], metadata: Sequence[Any]) -> str:
    variants = [variant_of(s) for a in arguments for s in sections_in(a)]
    if len(variants) > 1:
        return "a section; its type is " + _one_of([v for v in variants if v is not None])
    words, choices = [], []
    for argument in arguments:
        if argument is type(None):
            choices.append(NONE)
        elif get_origin(argument) is Literal:
            choices += get_args(argument)
        else:
            words.append(_kind(argument, metadata))
    return ", or ".join(words + ([_one_of(choices)] if choices else []))


def _one_of(choices: Sequence[Any]) -> str:
    shown = [f'"{choice}"' for choice in choices]
    return shown[0] if len(shown) == 1 else "one of " + ", ".join(shown)


def _flat(extra: Any) -> list[Any]:
    return list(extra.metadata) if isinstance(extra, FieldInfo) else [extra]


def _limits(metadata: Sequence[Any]) -> str:
    found = {
        name: str(int(value)) if value == int(value) else f"{value:g}"
        for limit in metadata
        for name in ("ge", "gt", "le", "lt")
        if (value := getattr(limit, name, None)) is not None
    }
    if found.keys() == {"ge", "le"}:
        return f" from {found['ge']} to {found['le']}"
    return " and".join(f" {word} {found[name]}" for name, word in _LIMITS if name in found)
