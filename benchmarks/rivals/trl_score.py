"""TRL's GRPOTrainer on the arithmetic recipe, evaluated every few steps. Runs in the interpreter with trl.

Each "run" trains until the next evaluation. A checkpoint is written with each, outside the measured
time, and a later start with the same `folder` goes on from the last.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from benchmarks import rewards
from benchmarks.rivals.trl_trainer import build_trainer, versions
from benchmarks.side import Finished, Port


class Examiner(TrainerCallback):  # type: ignore[misc]
    """Times the steps, and measures accuracy between them."""

    def __init__(self, port: Port) -> None:
        self.trainer: Any = None  # known once the trainer that calls back is built
        self._port = port
        self._seconds: list[float] = []
        self._begin_s = 0.0
        self._figures: dict[str, Any] = {}
        self._must_wait = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._port.ready(
            versions=versions(),
            settings=self._port.workload["settings"],
            resumed_at_step=state.global_step,
        )
        self._port.wait()
        if state.global_step == 0:
            self._examine(0)
            self._report()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._must_wait:
            self._must_wait = False
            self._port.wait()
        self._begin_s = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._seconds.append(time.perf_counter() - self._begin_s)
        if state.global_step % self._port.workload["eval_every_steps"] == 0:
            self._examine(state.global_step)
            control.should_save = True

    def on_save(self, *_: Any, **__: Any) -> None:
        if self._figures:
            self._report()

    def _examine(self, step: int) -> None:
        begin_s = time.perf_counter()
        accuracy = greedy_accuracy(self.trainer, self._port.workload)
        self._figures = {
            "step": step,
            "step_s": self._seconds,
            "accuracy": accuracy,
            "evaluation_s": time.perf_counter() - begin_s,
        }

    def _report(self) -> None:
        self._port.answer(**self._figures)
        self._figures, self._seconds, self._must_wait = {}, [], True


def main() -> None:
    port = Port()
    folder = Path(port.workload["folder"])
    last = get_last_checkpoint(str(folder)) if folder.exists() else None
    examiner = Examiner(port)
    examiner.trainer, _ = build_trainer(
        port.workload, callbacks=[examiner], output_dir=str(folder), save_total_limit=1
    )
    try:
        examiner.trainer.train(resume_from_checkpoint=last)
    except Finished:
        return


def greedy_accuracy(trainer: Any, workload: dict[str, Any]) -> float:
    """Share of the held-out sums that the policy gets right, greedily."""
    model, tokenizer = trainer.model, trainer._tokenizer
    was_training = model.training
    model.eval()
    right, held_out = 0.0, workload["held_out"]
    for start in range(0, len(held_out), 64):
        part = held_out[start : start + 64]
        longest = max(len(p["token_ids"]) for p in part)
        pads = [longest - len(p["token_ids"]) for p in part]
        ids = [
            [tokenizer.pad_token_id] * n + p["token_ids"] for n, p in zip(pads, part, strict=True)
        ]
        mask = [[0] * n + [1] * (longest - n) for n in pads]
        with torch.inference_mode():
            made = model.generate(
                input_ids=torch.tensor(ids),
                attention_mask=torch.tensor(mask),
                max_new_tokens=workload["new_tokens"],
                do_sample=False,
                eos_token_id=trainer.eos_token_ids,
                pad_token_id=tokenizer.pad_token_id,
            )[:, longest:]
        texts = tokenizer.batch_decode(made, skip_special_tokens=True)
        right += sum(rewards.right_sum(t, p["answer"]) for t, p in zip(texts, part, strict=True))
    model.train(was_training)
    return right / len(held_out)


if __name__ == "__main__":
    main()
