"""From a TOML recipe and dotted overrides to a checked `Recipe`.

Every problem of a recipe is reported at once, each with its key, its source and the nearest fix, before
anything starts.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from rledger.config.recipe import Recipe
from rledger.config.resolve import check_recipe
from rledger.errors import ConfigError

__all__ = ["LoadedRecipe", "find_section", "load_recipe", "load_schema", "parse_override"]

Schema = TypeVar("Schema", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRecipe:
    """A checked recipe and where each given value came from; keys that are absent are defaults."""

    recipe: Recipe
    sources: dict[str, str]  # dotted key -> "recipes/demo.toml" or "command line"


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Read `path`, apply `key.subkey=value` overrides, check all of it. Raises ConfigError."""
    recipe, sources = load_schema(Recipe, path, overrides)
    problems = check_recipe(recipe)
    if problems:
        raise ConfigError(_listing(path, problems))
    return LoadedRecipe(recipe=recipe, sources=sources)


def load_schema(
    schema: type[Schema], path: Path | str, overrides: Sequence[str] = ()
) -> tuple[Schema, dict[str, str]]:
    """A TOML file under any root section, and the source of each key that was given."""
    data = _read_toml(Path(path))
    sources = {key: str(path) for key in _leaves(data)}
    for override in overrides:
        key, value = parse_override(override)
        _assign(data, key, value)
        sources.update({leaf: "command line" for leaf in _leaves(_nest(key, value))})
    try:
        return schema.model_validate(data), sources
    except ValidationError as error:
        problems = [_describe(detail, sources, schema) for detail in error.errors()]
        raise ConfigError(_listing(path, problems)) from None


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """`trainer.learning_rate=1e-5` -> (("trainer", "learning_rate"), 1e-05).

    The value is read as TOML; what is no TOML value is taken as a string.
    """
    key, separator, raw = text.partition("=")
    parts = tuple(part.strip() for part in key.lstrip("-").split("."))
    if not separator or not all(parts):
        raise ConfigError(f"override {text!r} is not of the form section.key=value")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    return parts, value


def find_section(model: type[BaseModel], parts: Sequence[str]) -> list[type[BaseModel]]:
    """The sections that a dotted path can lead to; several where a `type` tag chooses a variant."""
    sections = [model]
    for part in parts:
        following: list[type[BaseModel]] = []
        for section in sections:
            field = section.model_fields.get(part)
            if field is not None:
                following.extend(_sections_in(field.annotation))
        sections = following
    return sections


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for argument in get_args(annotation):
        found.extend(_sections_in(argument))
    return found


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"recipe {path} does not exist; the repository's are in recipes/"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {path} cannot be read: {error}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"recipe {path} is not valid TOML: {error}") from None


def _leaves(data: Any, prefix: str = "") -> list[str]:
    if not isinstance(data, dict):
        return [prefix]
    return [
        leaf
        for key, value in data.items()
        for leaf in _leaves(value, f"{prefix}.{key}".lstrip("."))
    ]


def _nest(key: Sequence[str], value: Any) -> dict[str, Any]:
    for part in reversed(key):
        value = {part: value}
    nested: dict[str, Any] = value
    return nested


def _assign(data: dict[str, Any], key: Sequence[str], value: Any) -> None:
    node = data
    for depth, part in enumerate(key[:-1]):
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError(
                f"override {'.'.join(key)}: {'.'.join(key[: depth + 1])} is a value, not a section"
            )
        node = child
    node[key[-1]] = value


def _describe(detail: Any, sources: dict[str, str], schema: type[BaseModel]) -> str:
    """One line for one pydantic error: key, what is wrong, where it was set, what it could be."""
    location = tuple(str(part) for part in detail["loc"])
    # A tagged union puts the tag into the location; it is no part of the key that a person writes.
    key = ".".join(part for part in location if not _is_tag(part, location, schema))
    source = sources.get(key)
    where = f" (from {source})" if source else ""
    if detail["type"] == "extra_forbidden":
        return f"{key}: unknown key{where}{_suggestion(key, schema)}"
    if detail["type"] == "missing":
        return f"{key}: missing; add it to the recipe or pass {key}=..."
    message = detail["msg"].removeprefix("Value error, ")
    given = detail["input"]
    shown = f", got {given!r}" if not isinstance(given, dict) else ""
    return f"{key}: {message}{shown}{where}"


def _is_tag(part: str, location: tuple[str, ...], schema: type[BaseModel]) -> bool:
    index = location.index(part)
    parents = find_section(schema, location[:index])
    return (
        not part.isdigit()
        and bool(parents)
        and not any(part in p.model_fields for p in parents)
        and (index < len(location) - 1)
    )


def _suggestion(key: str, schema: type[BaseModel]) -> str:
    *parents, last = key.split(".")
    names = [name for section in find_section(schema, parents) for name in section.model_fields]
    near = difflib.get_close_matches(last, names, n=1)
    if near:
        return f"; did you mean {'.'.join([*parents, near[0]])}?"
    known = ", ".join(sorted(set(names)))
    return f"; known here: {known}" if known else ""


def _listing(path: Path | str, problems: Sequence[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f"{path}: {count}", *(f"  {problem}" for problem in problems)])
