"""The base of every configuration section: frozen, no unknown keys, documented fields."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator

__all__ = ["NONE", "Section", "may_be_none"]

NONE = "none"  # how a recipe writes what TOML has no word for


class Section(BaseModel):
    """A table of a recipe. The string under a field is its description; `rledger explain` prints it.

    TOML knows no empty value: "none" stands for it, on every key that may be unset. A table of
    several types that does not name its `type` is of the default's type.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        for name, field in cls.model_fields.items():
            value = filled.get(name)
            if value == NONE and may_be_none(field.annotation):
                filled[name] = None
            elif isinstance(value, dict) and "type" not in value:
                default = field.get_default(call_default_factory=True, validated_data={})
                if isinstance(default, Section) and "type" in type(default).model_fields:
                    filled[name] = {"type": type(default).model_fields["type"].default, **value}
        return filled


def may_be_none(annotation: Any) -> bool:
    """Whether None is a value of this type."""
    if get_origin(annotation) in (Union, types.UnionType):
        return any(may_be_none(argument) for argument in get_args(annotation))
    return annotation is None or annotation is type(None)
