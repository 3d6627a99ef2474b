"""Finds the algorithms of a package: each module is one, named like its schema's `type`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["discover"]


def discover(package: ModuleType, function: str) -> dict[str, Callable[..., Any]]:
    """Module name -> the function of that name in it, for each module of `package`.

    A module without the function is a defect and raises AttributeError.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {
        name: getattr(importlib.import_module(f"{package.__name__}.{name}"), function)
        for name in names
    }
