"""After each step: one row of metrics, a few trajectories to read, and word to whoever watches."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from rledger.books import Books, Lane
from rledger.books.appender import LineFile
from rledger.books.metrics import MetricsWriter
from rledger.books.names import METRICS
from rledger.books.views import StepMeter, TokenCounts
from rledger.loop.context import Counters, LoopContext
from rledger.types import Batch, Failure, Group, Score

__all__ = ["Observer", "StepRecorder", "TrajectoryLog"]


class Observer(Protocol):
    """Somebody who watches a run: a terminal view, a test."""

    def on_step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None: ...


class StepMetricsSink(Protocol):
    """What takes a row of metrics; `MetricsWriter` in a run."""

    def write(self, step: int, policy_version: int, metrics: Mapping[str, float]) -> None: ...


class TrajectoryLog:
    """Appends a sample of each step's trajectories to `<run>/trajectories.jsonl`, for people to read."""

    def __init__(self, folder: Path, *, num_groups: int = 1) -> None:
        self._file = LineFile(folder / "trajectories.jsonl")
        self._num_groups = num_groups

    @property
    def problem(self) -> str:
        """Why trajectories are not getting through, in words; empty when they are."""
        return self._file.problem

    def close(self) -> None:
        self._file.close()

    def write(self, step: int, groups: Sequence[Group]) -> None:
        lines = []
        for group in groups[: self._num_groups]:
            for trajectory in group.trajectories:
                outcome = trajectory.outcome
                lines.append(
                    {
                        "step": step,
                        "id": trajectory.id,
                        "prompt_id": group.prompt.id,
                        "prompt": group.prompt.text,
                        "completion": trajectory.text,
                        "num_tokens": trajectory.num_tokens,
                        "finish_reason": trajectory.completions[-1].finish_reason,
                        "reward": outcome.value if isinstance(outcome, Score) else None,
                        "failure": asdict(outcome) if isinstance(outcome, Failure) else None,
                    }
                )
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        self._file.write(text.encode())


class StepRecorder:
    """Turns a closed step into its row of `metrics.jsonl`."""

    def __init__(
        self,
        books: Books,
        lane: Lane,
        *,
        metrics: MetricsWriter | StepMetricsSink,
        trajectories: TrajectoryLog | None = None,
        observers: Sequence[Observer] = (),
        max_prompt_tokens: int = 0,
        update_flops: Callable[[Batch], float] | None = None,
        peak_flops_per_s: float | None = None,
    ) -> None:
        """`update_flops` and `peak_flops_per_s` together give `perf/mfu/actor`."""
        self._meter = StepMeter(books, lane)
        self._metrics = metrics
        self._trajectories = trajectories
        self._observers = observers
        self._update_flops = update_flops
        self._peak_flops_per_s = peak_flops_per_s
        self.max_prompt_tokens = max_prompt_tokens

    def record_start(self, context: LoopContext, tested: Mapping[str, float]) -> None:
        """The row of step 0: the policy before training."""
        self._meter.read(
            TokenCounts(prompt_tokens=0, generated_tokens=0, trained_tokens=0, useful_tokens=0)
        )
        self._emit(context, dict(tested))

    def record(
        self,
        context: LoopContext,
        groups: Sequence[Group],
        batch: Batch,
        before: Counters,
        metrics: Mapping[str, float],
    ) -> None:
        """The row of the step that the lane has just closed; `before` are the counters at its start."""
        after = context.counters
        tokens = TokenCounts(
            prompt_tokens=int(batch.prompt_lengths.sum()),
            generated_tokens=after.generated_tokens - before.generated_tokens,
            trained_tokens=after.trained_tokens - before.trained_tokens,
            useful_tokens=after.useful_tokens - before.useful_tokens,
        )
        flops = None if self._update_flops is None else self._update_flops(batch)
        row = self._meter.read(
            tokens, update_flops=flops, peak_flops_per_s=self._peak_flops_per_s
        ) | dict(metrics)
        row["training/global_step"] = after.step
        row["data/num_groups_admitted"] = after.num_groups - before.num_groups
        row["data/num_groups_trained"] = batch.num_groups
        if self._trajectories is not None:
            self._trajectories.write(after.step, groups)
        self._emit(context, row)

    @staticmethod
    def reduce(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Metrics of several updates as one row, each by its declared reduction."""
        names = dict.fromkeys(name for metrics in history for name in metrics)
        return {
            name: METRICS.reduce(name, [m[name] for m in history if name in m]) for name in names
        }

    def _emit(self, context: LoopContext, row: dict[str, float]) -> None:
        step = context.counters.step
        self._metrics.write(step, context.roles.trainer.policy_version, row)
        for observer in self._observers:
            observer.on_step(step, context.plan.num_steps, row)
