"""Writes a run folder as a training would, out of thin air: a fake clock and made-up numbers."""

from __future__ import annotations

import json
import math
import random
import time
from pathlib import Path

from rledger.books import (
    METRICS,
    Books,
    BoundsMeasured,
    DropReason,
    GroupAdmitted,
    GroupEnded,
    MetricsWriter,
    Resumed,
    StageSkipped,
    StepCommitted,
    StepMeter,
    TokenCounts,
    TrajectoryEnded,
)

RECIPE = {
    "run": {
        "name": "demo",
        "seed": 1,
        "num_steps": 60,
        "num_prompts_per_step": 16,
        "group_size": 8,
        "max_policy_age": 0,
        "deterministic": False,
    },
    "model": {"path": "recipes/demo/model", "dtype": "float32", "device": "cpu"},
    "algorithm": {
        "advantage": {"type": "grpo"},
        "loss": {"type": "ppo"},
        "kl": {"type": "none"},
    },
    "trainer": {"num_updates_per_step": 1},
}
TASK = "spell_backward"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class SyntheticRun:
    """One attempt at a run; every number follows from `seed`."""

    def __init__(self, folder: Path, *, seed: int = 1, num_prompts: int = 16, group_size: int = 8):
        self.folder = folder
        self.clock = Clock()
        self.random = random.Random(seed)
        self.num_prompts, self.group_size = num_prompts, group_size
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.json").write_text(json.dumps(RECIPE))
        self.books = Books.open(folder, self.clock)
        self.lane = self.books.lane("main")
        self.metrics = MetricsWriter(folder, METRICS)
        self.meter = StepMeter(self.books, self.lane)

    def spend(self, seconds: float) -> None:
        self.clock.now_s += seconds * self.random.uniform(0.9, 1.1)

    def run(self, first: int, last: int, *, resumed: bool = False, close: bool = True) -> None:
        with self.lane.span("start_up"):
            self.spend(8)
            self.books.book(
                BoundsMeasured(flops_per_s=8.1e10, bytes_per_s=1.1e10, instrument="made up")
            )
        if resumed:
            self.books.book(Resumed(step=first - 1, policy_version=first - 1))
        with self.lane.step(0, first - 1):
            with self.lane.span("update_weights", bytes=540e6):
                self.spend(0.2)
            values = {} if resumed else self.test(0.31)
        if not resumed:
            self.metrics.write(0, 0, values)
        for step in range(first, last + 1):
            self.step(step)
        if close:
            self.close()

    def close(self) -> None:
        self.books.close()
        self.metrics.close()

    def test(self, accuracy: float) -> dict[str, float]:
        with self.lane.span("testing"):
            self.spend(2.5)
        aside = f"val-aux/{TASK}/acc/mean@1"
        return {
            f"val-core/{TASK}/acc/mean@1": accuracy,
            f"{aside}/ci_low": accuracy - 0.055,
            f"{aside}/ci_high": accuracy + 0.05,
            f"val-aux/{TASK}/num_prompts": 256,
        }

    def step(self, step: int) -> None:
        progress = 1 - math.exp(-step / 18)
        reward = 0.25 + 0.62 * progress + self.random.gauss(0, 0.03)
        length = 14 - 4 * progress + self.random.gauss(0, 0.4)
        with self.lane.step(step, step - 1):
            tokens = self.generate(step, length)
            with (
                self.lane.span("reward"),
                self.lane.span("wait", state="wait", on="reward workers"),
            ):
                self.spend(0.12)
            with self.lane.span("build_batch", state="copy", tokens=tokens.total_tokens):
                self.spend(0.004)
            self.books.book(StageSkipped(stage="old_log_prob", step=step, why="the ratio is 1"))
            with self.lane.span("adv"):
                self.spend(0.003)
            self.update(tokens)
            with self.lane.span("commit"):
                self.commit(step)
            with self.lane.span("update_weights", state="copy", bytes=14e6):
                self.spend(0.02)
            if step % 20 == 0:
                with self.lane.span("save_checkpoint", state="io", bytes=42e6):
                    self.spend(0.4)
            values = self.test(0.31 + 0.58 * progress) if step % 10 == 0 else {}
            self.spend(0.004)
        row = self.meter.read(tokens)
        row |= {
            "critic/score/mean": reward,
            "response_length/mean": length,
            "actor/entropy": 1.3 * math.exp(-step / 40) + self.random.gauss(0, 0.02),
            "actor/ppo_kl": 0.002 * self.random.random(),
            "actor/grad_norm": 0.8 * math.exp(-step / 30) + 0.1 * self.random.random(),
            "data/zero_signal_group_frac": 0.1 + 0.5 * progress,
            "training/global_step": step,
        }
        self.metrics.write(step, step, row | values)

    def generate(self, step: int, length: float) -> TokenCounts:
        rows = self.num_prompts * self.group_size
        generated = trained = 0
        self.groups: list[str] = []
        with self.lane.span("gen") as gen:
            with self.lane.span("prefill", tokens=self.num_prompts * 12, flops=2e8):
                self.spend(0.03)
            for _ in range(round(length)):
                with self.lane.span("decode", tokens=rows, flops=5e8, bytes=3e7):
                    self.spend(0.055)
                with self.lane.span("sample", tokens=rows):
                    self.spend(0.008)
            for number in range(self.num_prompts):
                group_id = f"g{step * self.num_prompts + number:08d}"
                sizes = [
                    max(2, round(self.random.gauss(length, 2))) for _ in range(self.group_size)
                ]
                generated += sum(sizes)
                trained += self.book_group(step, group_id, sizes, dropped=number == 3)
            gen.add(tokens=generated)
            self.spend(0.02)
        return TokenCounts(
            prompt_tokens=rows * 12,
            generated_tokens=generated,
            trained_tokens=trained,
            useful_tokens=round(trained * 0.6),
        )

    def book_group(self, step: int, group_id: str, sizes: list[int], *, dropped: bool) -> int:
        common = dict(group_id=group_id, step=step, policy_version=step - 1)
        self.books.book(GroupAdmitted(prompt_id="p", group_size=len(sizes), **common))
        for member, size in enumerate(sizes):
            self.books.book(
                TrajectoryEnded(
                    trajectory_id=f"{group_id}/{member}",
                    prompt_tokens=12,
                    generated_tokens=size,
                    finish_reason="stop",
                    reward=float(member % 2),
                    **common,
                )
            )
        if dropped:
            reason = DropReason.NO_SIGNAL
            self.books.book(
                GroupEnded(
                    fate="dropped",
                    reason=reason,
                    dropped_trajectories={reason: len(sizes)},
                    dropped_tokens={reason: sum(sizes)},
                    **common,
                )
            )
            return 0
        self.books.book(
            GroupEnded(
                fate="trained",
                num_trained_trajectories=len(sizes),
                trained_tokens=sum(sizes),
                useful_tokens=round(sum(sizes) * 0.6),
                **common,
            )
        )
        self.groups.append(group_id)
        return sum(sizes)

    def update(self, tokens: TokenCounts) -> None:
        with self.lane.span("update_actor", tokens=tokens.total_tokens):
            for _ in range(4):
                with self.lane.span("forward", flops=3.2e9):
                    self.spend(0.06)
                with self.lane.span("backward", flops=6.4e9):
                    self.spend(0.13)
            with self.lane.span("optimizer", flops=4e7, bytes=8e7):
                self.spend(0.02)
            self.spend(0.004)

    def commit(self, step: int) -> None:
        self.books.book(StepCommitted(step=step, policy_version=step, group_ids=tuple(self.groups)))


def write_run(folder: Path, num_steps: int = 60, *, killed_after: int | None = None) -> Path:
    """A finished run; with `killed_after` it died behind that step and resumed from ten before."""
    if killed_after is None:
        SyntheticRun(folder).run(1, num_steps)
        return folder
    SyntheticRun(folder).run(1, killed_after)
    SyntheticRun(folder, seed=2).run(killed_after - 9, num_steps, resumed=True)
    return folder


if __name__ == "__main__":
    import sys

    begin_s = time.perf_counter()
    write_run(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 60)
    print(f"{time.perf_counter() - begin_s:.1f} s")
