"""What a configuration key means, what it takes, what it defaults to, and who set it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rledger.config.load import LoadedRecipe
from rledger.config.problems import source_of
from rledger.config.recipe import Recipe
from rledger.config.schema import all_keys, field_kind, find_section, sections_in, variant_of
from rledger.config.toml_text import toml_value
from rledger.errors import ConfigError

__all__ = ["Child", "Explanation", "explain_key", "recipe_keys"]


@dataclass(frozen=True, slots=True)
class Child:
    """A key of a section, or a type that one can choose, with its meaning in one line."""

    name: str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One key, or a section with what is below it."""

    key: str
    meaning: str
    kind: str
    default: str | None  # None for a section whose keys have their own
    only_with: tuple[
        str, ...
    ] = ()  # "tasks.data.type = "jsonl"", where not every variant has the key
    value: str | None = None  # only when a recipe was given
    source: str | None = None
    children: tuple[Child, ...] = ()


def recipe_keys() -> list[str]:
    """Every dotted key of a recipe, sections included."""
    return all_keys(Recipe)


def explain_key(key: str, loaded: LoadedRecipe | None = None) -> list[Explanation]:
    """What `key` is; several entries where it means different things with different types.

    Raises ConfigError naming the nearest keys.
    """
    parts = [part for part in key.split(".") if not part.isdigit()]
    name = ".".join(parts)
    found: list[Explanation] = []
    for conditions, field in _fields(Recipe, parts):
        entry = _explain(name, field)
        same = next((i for i, e in enumerate(found) if replace(e, only_with=()) == entry), None)
        only_with = tuple(dict.fromkeys(conditions))
        if same is None:
            found.append(replace(entry, only_with=only_with))
        else:
            both = dict.fromkeys([*found[same].only_with, *only_with])
            found[same] = replace(found[same], only_with=tuple(both))
    if not found:
        raise ConfigError(f"{key!r} is no configuration key; {_near(key)}")
    if loaded is None:
        return found
    value, source = _given(key, loaded)
    return [replace(entry, value=value, source=source) for entry in found]


def _fields(
    root: type[BaseModel], parts: Sequence[str], prefix: str = ""
) -> Iterator[tuple[list[str], FieldInfo]]:
    """The fields at a path, each with the choices of `type` that lead to it."""
    name, *rest = parts
    field = root.model_fields.get(name)
    if field is None:
        return
    if not rest:
        yield [], field
        return
    path = f"{prefix}{name}"
    children = sections_in(field.annotation)
    for child in children:
        chosen = variant_of(child) if len(children) > 1 else None
        for conditions, below in _fields(child, rest, f"{path}."):
            # The choice nearest to the key says it all, and `type` itself belongs to every variant.
            nearest = rest != ["type"] and chosen is not None and not conditions
            yield ([f'{path}.type = "{chosen}"'] if nearest else conditions), below


def _explain(key: str, field: FieldInfo) -> Explanation:
    *parents, last = key.split(".")
    if last == "type":
        return _explain_type(key, parents)
    sections = sections_in(field.annotation)
    meaning = " ".join((field.description or "").split())
    if not sections:
        default = "required" if field.is_required() else _default(field)
        return Explanation(key=key, meaning=meaning, kind=field_kind(field), default=default)
    children = {
        name: Child(f"{key}.{name}", _first_line(below.description))
        for section in sections
        for name, below in section.model_fields.items()
    }
    if "type" in children:
        children["type"] = Child(f"{key}.type", "Which kind; it decides the other keys.")
    if len(sections) == 1 and sections[0].__doc__:
        meaning = f"{meaning} {' '.join(sections[0].__doc__.split())}"
    return Explanation(
        key=key,
        meaning=meaning,
        kind=field_kind(field),
        default=toml_value(None) if field.default is None else None,
        children=tuple(children.values()),
    )


def _explain_type(key: str, parents: Sequence[str]) -> Explanation:
    """The choice between the variants of a section, each with its own meaning."""
    defaults = {
        _type_of_default(field) for _, field in _fields(Recipe, parents) if not field.is_required()
    }
    variants = {variant_of(s): _first_line(s.__doc__) for s in find_section(Recipe, parents)}
    return Explanation(
        key=key,
        meaning=f"Which kind of {'.'.join(parents)}; it decides the other keys there.",
        kind="one of these",
        default=" or ".join(sorted(defaults)) if defaults else "required",
        children=tuple(Child(f'"{name}"', meaning) for name, meaning in variants.items()),
    )


def _type_of_default(field: FieldInfo) -> str:
    return toml_value(variant_of(type(field.default)))


def _default(field: FieldInfo) -> str:
    return toml_value(field.get_default(call_default_factory=True, validated_data={}))


def _given(key: str, loaded: LoadedRecipe) -> tuple[str | None, str | None]:
    """Value and source of a key in a recipe; (None, None) where it is a section or not in use."""
    node: Any = loaded.recipe
    for part in key.split("."):
        if isinstance(node, tuple) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, BaseModel) and part in type(node).model_fields:
            node = getattr(node, part)
        else:
            return "not in use", f"the types that {loaded.path} chooses"
    if isinstance(node, BaseModel):
        return None, None
    if isinstance(node, tuple) and any(isinstance(entry, BaseModel) for entry in node):
        return f"{len(node)} entries", source_of(key, loaded.sources)
    return toml_value(node), source_of(key, loaded.sources) or "default"


def _first_line(text: str | None) -> str:
    first = (text or "").strip().split("\n\n")[0]
    return " ".join(first.split())


def _near(key: str) -> str:
    keys = recipe_keys()
    last = key.split(".")[-1]
    tails = [known for known in keys if known.split(".")[-1] == last]
    close = difflib.get_close_matches(key, keys, n=4, cutoff=0.6)
    by_tail = difflib.get_close_matches(last, {known.split(".")[-1] for known in keys}, n=2)
    similar = [known for known in keys if known.split(".")[-1] in by_tail]
    near = list(dict.fromkeys([*tails, *close, *similar]))[:6]
    if near:
        return "near it: " + ", ".join(near)
    return "sections: " + ", ".join(Recipe.model_fields) + " (rledger explain lists all keys)"
