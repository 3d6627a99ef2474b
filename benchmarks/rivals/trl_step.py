"""Whole steps of TRL's GRPOTrainer. Runs in the interpreter that has trl."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.rivals.trl_trainer import build_trainer, versions
from benchmarks.side import Finished, Port


def main() -> None:
    port = Port()
    workload = port.workload
    from transformers import TrainerCallback

    class Timer(TrainerCallback):  # type: ignore[misc]
        """A step begins when it is asked for and ends when the weights have changed."""

        def __init__(self) -> None:
            self.begin_s = self.begin_cpu_s = 0.0
            self.is_ready = False

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not self.is_ready:
                self.is_ready = True
                port.ready(versions=versions(), settings=workload["settings"])
            port.wait()
            meter.clear()
            self.begin_s, self.begin_cpu_s = time.perf_counter(), time.process_time()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            step_s = time.perf_counter() - self.begin_s
            port.answer(
                step_s=step_s,
                cpu_s=time.process_time() - self.begin_cpu_s,
                generation_s=meter["generation_s"],
                rest_of_generation_s=meter["prepare_s"] - meter["generation_s"],
                update_s=step_s - meter["prepare_s"],
                trained_tokens=int(meter["trained_tokens"]),
            )

    trainer, meter = build_trainer(workload, callbacks=[Timer()])
    try:
        trainer.train()
    except Finished:
        return


if __name__ == "__main__":
    main()
