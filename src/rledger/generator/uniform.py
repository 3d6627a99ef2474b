"""Counter-based random numbers: the i-th of a request is a function of (seed, i) and nothing else.

SplitMix64 (Steele, Lea, Flood 2014): a counter in steps of the golden ratio, mixed by two
multiplications. The seed is mixed first, so that neighbouring seeds give unrelated streams.
"""

from __future__ import annotations

__all__ = ["uniform"]

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def uniform(seed: int, index: int) -> float:
    """The `index`-th number of `seed`, in [0, 1), in steps of 2^-53."""
    state = (_mix((seed + _GOLDEN) & _MASK) + (index + 1) * _GOLDEN) & _MASK
    return float(_mix(state) >> 11) * 2.0**-53
