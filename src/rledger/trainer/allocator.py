"""How the C library hands memory back: an update frees and takes the same gigabytes each time."""

from __future__ import annotations

import ctypes
import platform

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD = -1  # numbers of glibc's mallopt
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for the next allocation; whether it could be told.

    By default it returns large blocks to the system at once, which then has to map and clear them
    anew: thousands of page faults an update, in which one thread works and the others wait. The
    process stays as large as it has once been; it grows no further by this.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    largest = 2**31 - 1
    return bool(
        libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30) and libc.mallopt(_M_TRIM_THRESHOLD, largest)
    )
