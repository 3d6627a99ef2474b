"""Tells the user when the disk, or a sink, no longer takes what a run has to record.

Books, metrics and trajectories never stop a run: what the disk refuses waits in memory for room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rledger.books import Books
from rledger.books.metrics import MetricsWriter
from rledger.errors import RunFolderError
from rledger.loop.recorder import TrajectoryLog

__all__ = ["RecordWatch"]


class RecordWatch:
    """An observer of a run that looks after its files."""

    def __init__(
        self,
        books: Books,
        metrics: MetricsWriter,
        trajectories: TrajectoryLog,
        announce: Callable[[str], None],
    ) -> None:
        self._books = books
        self._metrics = metrics
        self._trajectories = trajectories
        self._announce = announce
        self._said: set[str] = set()

    def on_step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        """Say each problem once, and again when it comes back."""
        problems = {text for text in (*self._refused(), self._metrics.problem) if text}
        # The number of lines that wait grows with each step: the file is what counts.
        now = {text.partition(":")[0]: text for text in sorted(problems)}
        for name in now.keys() - self._said:
            self._announce(f"step {step}: {now[name]}; free some space, the run goes on")
        self._said = set(now)

    def require_complete(self) -> None:
        """Raises RunFolderError when the disk still refuses what the run has to record."""
        self._books.flush()
        refused = [text for text in self._refused() if text]
        if refused:
            raise RunFolderError(
                f"the record is incomplete: {'; '.join(refused)}. The checkpoints are whole; free some"
                " space, and raise run.num_steps if the run should go on"
            )

    def _refused(self) -> tuple[str, ...]:
        return (self._books.problem, self._metrics.file_problem, self._trajectories.problem)
