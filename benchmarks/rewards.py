"""Rewards that both sides compute, from the text alone. Needs nothing but the standard library."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any

__all__ = ["checksum_reward", "right_sum", "spread"]


def spread(completion: str) -> float:
    """A number in [0, 1) that differs between completions: no advantage is zero."""
    return zlib.crc32(completion.encode()) % 997 / 997


def checksum_reward(prompt: str, completion: str, payload: Mapping[str, Any]) -> float:
    """`spread` in the form of a recipe's reward function."""
    return spread(completion)


def right_sum(completion: str, answer: str) -> float:
    """1 if the last integer of the completion is the answer: the recipe's `last_integer` reward."""
    numbers = re.findall(r"(?<![0-9])-?[0-9]+", completion)
    return float(bool(numbers) and int(numbers[-1][:9]) == int(answer))
