"""A GRPOTrainer of TRL for a workload. Runs in the interpreter that has trl.

`settings` of the workload: `precision` is "bf16" (autocast over float32 weights, as `bf16=True` does
it), "pure_bf16" (the weights themselves in bfloat16) or "fp32"; `micro_batch` is
`per_device_train_batch_size`.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from benchmarks import rewards

__all__ = ["build_trainer", "versions"]


def versions() -> dict[str, str]:
    import torch
    import transformers
    import trl

    return {
        "trl": trl.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


def build_trainer(
    workload: dict[str, Any], callbacks: list[Any], output_dir: str | None = None, **more: Any
) -> tuple[Any, dict[str, float]]:
    """The trainer, and a meter that its parts fill: seconds of generation and of all before the loss."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(workload["threads"])
    settings = workload["settings"]
    prompts, group_size = workload["prompts"], workload["group_size"]
    num_rows = workload["num_prompts_per_step"] * group_size
    precision = settings["precision"]
    arguments = {
        "output_dir": output_dir or tempfile.mkdtemp(prefix="trl-"),
        "per_device_train_batch_size": settings["micro_batch"],
        "gradient_accumulation_steps": num_rows // settings["micro_batch"],
        "num_generations": group_size,
        "max_completion_length": workload["new_tokens"],
        "generation_kwargs": {"min_new_tokens": workload["new_tokens"]}
        if workload["forced_length"]
        else None,
        "max_steps": len(prompts) // workload["num_prompts_per_step"],
        "learning_rate": workload["learning_rate"],
        "lr_scheduler_type": "constant",
        "model_init_kwargs": {"dtype": "bfloat16" if precision == "pure_bf16" else "float32"},
        "bf16": precision != "fp32",
        "gradient_checkpointing": False,
        "shuffle_dataset": False,
        "temperature": 1.0,
        "beta": 0.0,
        "seed": workload["seed"],
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    meter: dict[str, float] = defaultdict(float)
    rows = [
        {"prompt": [{"role": "user", "content": p["question"]}], "answer": p["answer"]}
        for p in prompts
    ]
    trainer = GRPOTrainer(
        model=workload["model"],
        reward_funcs=_reward(workload["reward"], meter),
        args=GRPOConfig(**{**arguments, **more}),
        train_dataset=Dataset.from_list(rows),
        callbacks=callbacks,
    )
    _check_prompts(trainer, prompts)
    trainer.model.generate = _timed(trainer.model.generate, meter, "generation_s")
    trainer._generate_and_score_completions = _timed(
        trainer._generate_and_score_completions, meter, "prepare_s"
    )
    return trainer, meter


def _reward(name: str, meter: dict[str, float]) -> Callable[..., list[float]]:
    def reward(
        completions: list[list[dict[str, str]]],
        completion_ids: list[list[int]],
        answer: list[str],
        **_: Any,
    ) -> list[float]:
        meter["trained_tokens"] += sum(len(ids) for ids in completion_ids)
        texts = [messages[0]["content"] for messages in completions]
        if name == "spread":
            return [rewards.spread(text) for text in texts]
        return [rewards.right_sum(t, a) for t, a in zip(texts, answer, strict=True)]

    return reward


def _timed(work: Callable[..., Any], meter: dict[str, float], name: str) -> Callable[..., Any]:
    def measured(*arguments: Any, **more: Any) -> Any:
        begin_s = time.perf_counter()
        result = work(*arguments, **more)
        meter[name] += time.perf_counter() - begin_s
        return result

    return measured


def _check_prompts(trainer: Any, prompts: list[dict[str, Any]]) -> None:
    """Both sides must be asked the same, token by token."""
    asked = [[{"role": "user", "content": p["question"]}] for p in prompts[:8]]
    theirs = trainer._tokenize_prompts(asked)[0]
    for mine, prompt in zip(theirs, prompts, strict=False):
        if list(mine) != prompt["token_ids"]:
            raise SystemExit(f"prompt tokens differ: {list(mine)} and {prompt['token_ids']}")
