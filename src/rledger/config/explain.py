"""What a configuration key means, what it defaults to, and who set it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rledger.config.load import LoadedRecipe, find_section
from rledger.config.recipe import Recipe
from rledger.errors import ConfigError

__all__ = ["Explanation", "all_keys", "explain_key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One key, or a section with the keys below it."""

    key: str
    meaning: str
    kind: str
    default: str
    value: str | None = None  # only when a recipe was given
    source: str | None = None
    children: tuple[str, ...] = ()


def all_keys() -> list[str]:
    """Every dotted key of a recipe, sections included."""
    return sorted(_walk(Recipe, ""))


def explain_key(key: str, loaded: LoadedRecipe | None = None) -> list[Explanation]:
    """What `key` is; one entry per variant that has it. Raises ConfigError naming the nearest keys."""
    *parents, last = key.split(".")
    found = [
        _explain(key, section, section.model_fields[last], loaded)
        for section in find_section(Recipe, parents)
        if last in section.model_fields
    ]
    if not found:
        near = difflib.get_close_matches(key, all_keys(), n=3, cutoff=0.5)
        tails = [known for known in all_keys() if known.split(".")[-1] == last]
        names = ", ".join(dict.fromkeys([*tails, *near])) or ", ".join(Recipe.model_fields)
        raise ConfigError(f"{key!r} is no configuration key; near it: {names}")
    return found


def _explain(
    key: str, section: type[BaseModel], field: FieldInfo, loaded: LoadedRecipe | None
) -> Explanation:
    children = sorted(
        {name for child in find_section(Recipe, key.split(".")) for name in child.model_fields}
    )
    default = (
        "required" if field.is_required() else _show(field.get_default(call_default_factory=True))
    )
    value = source = None
    if loaded is not None:
        node: Any = loaded.recipe
        for part in key.split("."):
            node = (
                node[int(part)]
                if isinstance(node, tuple)
                else getattr(node, part, PydanticUndefined)
            )
        value = None if node is PydanticUndefined else _show(node)
        source = loaded.sources.get(key, "default")
    meaning = (field.description or "").strip()
    variant = f" [{section.__name__}]" if len(find_section(Recipe, key.split(".")[:-1])) > 1 else ""
    return Explanation(
        key=key,
        meaning=meaning + variant,
        kind=_kind(field),
        default="a section" if children and not field.is_required() else default,
        value=None if children else value,
        source=None if children else source,
        children=tuple(f"{key}.{name}" for name in children),
    )


def _kind(field: FieldInfo) -> str:
    annotation = field.annotation
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    limits = ", ".join(
        f"{symbol} {getattr(limit, attribute)}"
        for limit in field.metadata
        for attribute, symbol in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        if hasattr(limit, attribute)
    )
    name = name.replace("typing.", "")
    return f"{name} ({limits})" if limits else name


def _show(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "a section"
    return repr(value)


def _walk(section: type[BaseModel], prefix: str) -> set[str]:
    keys: set[str] = set()
    for name in section.model_fields:
        key = f"{prefix}.{name}".lstrip(".")
        keys.add(key)
        for child in find_section(section, [name]):
            keys |= _walk(child, key)
    return keys
