"""An append-only file of lines that a full disk cannot corrupt and that never stops a run."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["LineFile"]

_MAX_PENDING_BYTES = 64 * 1024 * 1024


class LineFile:
    """Appends whole lines. What the disk refuses is kept and tried again with the next write.

    `exclusive` creates the file and fails if it is there. Bytes reach the operating system at each
    `write`, so they survive a SIGKILL of the process.
    """

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        self.path = path
        self.written_bytes = 0
        self.lost_lines = 0
        self.error: OSError | None = None  # the disk's refusal, until lines get through again
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = not exclusive and _ends_torn(path)
        self._file = path.open("xb" if exclusive else "ab", buffering=0)
        self._pending = b"\n" if torn else b""

    def write(self, lines: bytes) -> None:
        """Append `lines`, which end with a newline each. An OSError is kept in `error`."""
        if len(self._pending) > _MAX_PENDING_BYTES:
            self.lost_lines += lines.count(b"\n")
        else:
            self._pending += lines
        try:
            while self._pending:
                num_written = os.write(self._file.fileno(), self._pending)
                self._pending = self._pending[num_written:]
                self.written_bytes += num_written
            self.error = None
        except OSError as error:
            self.error = error

    @property
    def problem(self) -> str:
        """Why lines are waiting, in words; empty when none are."""
        if self.error is None:
            return ""
        num_waiting = self._pending.count(b"\n")
        return f"{self.path}: {self.error.strerror}; {num_waiting} lines wait for room"

    def close(self) -> None:
        if not self._file.closed:
            self.write(b"")
            self.lost_lines += self._pending.count(b"\n")
            self._file.close()


def _ends_torn(path: Path) -> bool:
    """True when a kill left half a line at the end of the file."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
