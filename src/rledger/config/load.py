"""From a TOML recipe and dotted overrides to a checked `Recipe`.

Every problem of a recipe is reported at once, each with its key, its source and the nearest fix, before
anything starts.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rledger.config.problems import describe_problems, listing
from rledger.config.recipe import Recipe
from rledger.config.resolve import check_recipe
from rledger.config.schema import takes_text
from rledger.errors import ConfigError

__all__ = [
    "COMMAND_LINE",
    "LoadedRecipe",
    "load_recipe",
    "load_schema",
    "parse_override",
    "read_resolved",
]

Schema = TypeVar("Schema", bound=BaseModel)
COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRecipe:
    """A checked recipe and where each given value came from; keys that are absent are defaults."""

    path: str
    recipe: Recipe
    sources: dict[str, str]  # dotted key -> "recipes/demo.toml" or "command line"


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Read `path`, apply `key.subkey=value` overrides, check all of it. Raises ConfigError."""
    recipe, sources = load_schema(Recipe, path, overrides)
    problems = check_recipe(recipe)
    if problems:
        raise ConfigError(listing(path, problems))
    return LoadedRecipe(path=str(path), recipe=recipe, sources=sources)


def load_schema(
    schema: type[Schema], path: Path | str, overrides: Sequence[str] = ()
) -> tuple[Schema, dict[str, str]]:
    """A TOML file under any root section, and the source of each key that was given."""
    data = _read_toml(Path(path))
    if schema is Recipe and "warmup" in data:
        raise ConfigError(f"{path} is a warm-up recipe; run it with `rledger warmup {path}`")
    sources = {key: str(path) for key in _leaves(data)}
    for override in overrides:
        key, value = parse_override(override, schema)
        _assign(data, key, value)
        name = ".".join(key)
        sources = {k: v for k, v in sources.items() if not f"{k}.".startswith(f"{name}.")}
        sources.update({leaf: COMMAND_LINE for leaf in _leaves(_nest(key, value))})
    try:
        return schema.model_validate(data), sources
    except ValidationError as error:
        raise ConfigError(listing(path, describe_problems(error, schema, sources))) from None


def read_resolved(path: Path) -> Recipe:
    """The resolved recipe that a run keeps, `recipe.json`. Raises ConfigError; FileNotFoundError
    where there is none."""
    text = path.read_text(encoding="utf-8")
    try:
        return Recipe.model_validate(json.loads(text))
    except ValidationError as error:
        raise ConfigError(listing(path, describe_problems(error, Recipe, {}))) from None
    except ValueError as error:
        raise ConfigError(f"{path} is not the JSON that a run writes: {error}") from None


def parse_override(text: str, schema: type[BaseModel]) -> tuple[tuple[str, ...], Any]:
    """`trainer.learning_rate=1e-5` -> (("trainer", "learning_rate"), 1e-05).

    The value is read as TOML; what is no TOML value, or belongs to a key that takes only text, is
    taken as text. Raises ConfigError.
    """
    key, separator, raw = text.partition("=")
    parts = tuple(part.strip() for part in key.lstrip("-").split("."))
    if not separator or not all(parts):
        raise ConfigError(
            f"override {text!r} is not of the form section.key=value, such as run.num_steps=20"
        )
    raw = raw.strip()
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    if isinstance(value, bool | int | float) and takes_text(schema, parts):
        value = raw
    return parts, value


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"recipe {path} does not exist; name a TOML file, such as recipes/demo.toml"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"recipe {path} cannot be read: {error.strerror}; name a TOML file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"recipe {path} is not UTF-8 text: {error.reason}; save it so") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"recipe {path} is not valid TOML: {error}; correct that line") from None


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
