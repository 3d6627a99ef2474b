"""Imports an optional package, or says which extra brings it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from rledger.errors import ConfigError

__all__ = ["require"]


def require(module: str, extra: str) -> ModuleType:
    """The module, or a ConfigError that names the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"sinks.{extra} is set, but {module} cannot be imported ({error});"
            f" pip install 'rledger[{extra}]', or take sinks.{extra} out of the recipe"
        ) from error
