"""Whole steps of RLedger: the real controller and the real roles of a recipe, one step a request."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.side import Finished, Port
from rledger.books import Books
from rledger.books.metrics import MetricsWriter
from rledger.books.names import METRICS
from rledger.config.recipe import Recipe
from rledger.launch.inline import build_roles
from rledger.loop.checkpoint import CheckpointStore
from rledger.loop.context import LoopContext
from rledger.loop.controller import Controller
from rledger.loop.eventloop import RealClock, run_booked
from rledger.loop.plan import plan_run
from rledger.loop.recorder import StepRecorder
from rledger.loop.savepoint import Savepoints
from rledger.loop.shutdown import StopSignal

_UPDATE = ("timing_s/old_log_prob", "timing_s/update_actor")


class Timer:
    """Observes the recorder: a step begins when it is asked for and ends when it is recorded."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._begin_s = self._begin_cpu_s = 0.0

    def on_step(self, step: int, num_steps: int, metrics: Mapping[str, float]) -> None:
        if step == 0:
            self._port.ready(
                versions={"torch": version("torch")}, settings=self._port.workload["settings"]
            )
        else:
            step_s = time.perf_counter() - self._begin_s
            update_s = sum(metrics.get(name, 0.0) for name in _UPDATE)
            generation_s = metrics["timing_s/gen"]
            self._port.answer(
                step_s=step_s,
                cpu_s=time.process_time() - self._begin_cpu_s,
                generation_s=generation_s,
                update_s=update_s,
                rest_s=step_s - generation_s - update_s,
                trained_tokens=int(metrics["data/trained_tokens"]),
                metrics={n: v for n, v in metrics.items() if n.startswith("timing_s/")},
            )
        self._port.wait()
        self._begin_s, self._begin_cpu_s = time.perf_counter(), time.process_time()


def recipe_of(workload: Mapping[str, Any], root: Path) -> Recipe:
    """The recipe of a workload; nothing in it but sizes and seed differs from the defaults."""
    return Recipe.model_validate(
        {
            "run": {
                "name": "bench",
                "root": str(root),
                "seed": workload["seed"],
                "num_steps": 10_000,
                "num_prompts_per_step": workload["num_prompts_per_step"],
                "group_size": workload["group_size"],
                "threads_per_role": workload["threads"],
                **workload["settings"].get("run", {}),
            },
            "model": {"path": workload["model"]},
            "tasks": {
                "max_prompt_tokens": 96,
                "data": {
                    "type": "arithmetic_sums",
                    "reward": {"type": "function", "path": "benchmarks.rewards:checksum_reward"},
                },
            },
            "sampling": {"max_new_tokens": workload["new_tokens"]},
            "trainer": {
                "learning_rate": workload["learning_rate"],
                **workload["settings"].get("trainer", {}),
            },
            "evaluation": {"before_training": False},
        }
    )


def main() -> None:
    port = Port()
    with tempfile.TemporaryDirectory(prefix="rledger-bench-") as root:
        recipe = recipe_of(port.workload, Path(root))
        plan = plan_run(recipe)
        books = Books.open(Path(root))
        lane = books.lane("main")
        roles = build_roles(recipe, plan, lane)
        # Without stop tokens every completion ends at the length limit: the length is forced.
        context = LoopContext(
            plan=plan, roles=roles, books=books, lane=lane, clock=RealClock(), stop_token_ids=()
        )
        recorder = StepRecorder(
            books,
            lane,
            metrics=MetricsWriter(Path(root), METRICS, []),
            observers=[Timer(port)],
            max_prompt_tokens=recipe.tasks.max_prompt_tokens,
        )
        store = CheckpointStore(Path(root) / "checkpoints", keep=1)
        controller = Controller(
            context, recorder=recorder, savepoints=Savepoints(store), stop=StopSignal()
        )

        async def run() -> None:
            try:
                await controller.run()
            finally:
                await roles.close()

        try:
            run_booked(run(), lane, context.waiting)
        except Finished:
            asyncio.set_event_loop(None)


if __name__ == "__main__":
    main()
