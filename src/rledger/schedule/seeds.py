"""Seeds as pure functions of what they are for, so that no order of events can change them."""

from __future__ import annotations

__all__ = ["derive_seed"]

_MASK = (1 << 64) - 1


def derive_seed(run_seed: int, *path: int) -> int:
    """A 63-bit seed for one purpose, e.g. `derive_seed(seed, TRAIN, group_number, member)`.

    Each number of the path is absorbed by one round of SplitMix64 (Steele, Lea and Flood 2014), so
    nearby paths give unrelated seeds, and the result depends on nothing else.
    """
    state = _mix(run_seed & _MASK)
    for number in path:
        state = _mix((state ^ (number & _MASK)) & _MASK)
    return state >> 1


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
