"""Python values as JSON values and back, for rows that hold more than JSON can say.

Scoring functions of reasoning-gym tell tuples from lists and read integer keys, as JSON does not.
"""

from __future__ import annotations

from typing import Any

__all__ = ["decode_value", "encode_value"]

_TAGS = ("$tuple", "$set", "$pairs")


def encode_value(value: Any) -> Any:
    """JSON values from which `decode_value` restores `value`. TypeError for anything foreign."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [encode_value(item) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [encode_value(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {"$set": [encode_value(item) for item in sorted(value, key=repr)]}
    if isinstance(value, dict):
        if all(type(key) is str and key not in _TAGS for key in value):
            return {key: encode_value(item) for key, item in value.items()}
        return {"$pairs": [[encode_value(key), encode_value(item)] for key, item in value.items()]}
    item = getattr(value, "item", None)  # a number of numpy
    if callable(item) and getattr(value, "ndim", None) == 0:
        return encode_value(item())
    if isinstance(value, int | float | str):  # a subclass, such as a string enumeration
        for plain in (int, float, str):
            if isinstance(value, plain):
                return plain(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be kept as JSON")


def decode_value(value: Any) -> Any:
    """The inverse of `encode_value`."""
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1:
            if "$tuple" in value:
                return tuple(decode_value(item) for item in value["$tuple"])
            if "$set" in value:
                return {decode_value(item) for item in value["$set"]}
            if "$pairs" in value:
                return {decode_value(key): decode_value(item) for key, item in value["$pairs"]}
        return {key: decode_value(item) for key, item in value.items()}
    return value
