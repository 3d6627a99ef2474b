"""A whole GRPO step of SmolLM2-135M, ours against TRL's GRPOTrainer, on the same machine in turns.

    python -m benchmarks.grpo_step [--trl ENVIRONMENT] [--rounds N]

8 prompts x 8 completions of exactly 64 new tokens, one update. TRL runs without activation
checkpointing; its precisions and micro-batches are tried first, one warm step and one measured step
each, and the fastest of them is what ours is compared with. `cpu_time` in the result compares processor
seconds: with --threads 1 a busy machine distorts those least.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.contest import Side, alternate, interpreter
from benchmarks.results import ratio, summary, write_result
from benchmarks.workloads import MODEL, training_prompts

__all__ = ["main"]

TRIED = [
    {"precision": precision, "micro_batch": size}
    for precision in ("bf16", "pure_bf16", "fp32")
    for size in (8, 16, 32)
]


def workload(args: argparse.Namespace, num_steps: int, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": str(args.model),
        "threads": args.threads,
        "prompts": training_prompts(args.model, num_steps * args.prompts, args.seed),
        "num_prompts_per_step": args.prompts,
        "group_size": args.group_size,
        "new_tokens": args.new_tokens,
        "forced_length": True,
        "reward": "spread",
        "learning_rate": 1e-6,
        "seed": args.seed,
        "settings": settings,
    }


def calibrate(args: argparse.Namespace, python: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """TRL's fastest setting, and what each took."""
    tried = []
    for settings in TRIED:
        if settings["precision"] not in args.precisions.split(","):
            continue
        if settings["micro_batch"] > args.prompts * args.group_size:
            continue
        with Side("trl", "rivals.trl_step", workload(args, 4, settings), python=python) as side:
            side.start().measure()
            tried.append({**settings, **side.measure()})
        print(f"  trl {settings}: {tried[-1]['step_s']:.1f} s a step", flush=True)
    best = min(tried, key=lambda figures: figures["step_s"])
    return {key: best[key] for key in ("precision", "micro_batch")}, tried


def measure(args: argparse.Namespace) -> dict[str, Any]:
    python = interpreter(args.trl)
    tried: list[dict[str, Any]] = []
    if args.settings:
        precision, size = args.settings.split(":")
        best = {"precision": precision, "micro_batch": int(size)}
    else:
        print("TRL's settings, one warm step and one measured step each")
        best, tried = calibrate(args, python)
    num_steps = args.rounds + 2
    print(f"in turns, TRL with {best}")
    with ExitStack() as stack:
        ours = stack.enter_context(
            Side("ours", "ours.step", workload(args, num_steps, {}), python=interpreter(None))
        ).start()
        trl = stack.enter_context(
            Side("trl", "rivals.trl_step", workload(args, num_steps, best), python=python)
        ).start()
        samples = alternate([ours, trl], args.rounds)
        facts = {side.name: side.facts for side in (ours, trl)}
    expected = args.prompts * args.group_size * args.new_tokens
    for name, figures in samples.items():
        for figure in figures:
            assert figure["trained_tokens"] == expected, (name, figure["trained_tokens"], expected)
    rates = {n: [f["trained_tokens"] / f["step_s"] for f in fs] for n, fs in samples.items()}
    return {
        "workload": {
            "prompts": args.prompts,
            "group_size": args.group_size,
            "new_tokens": args.new_tokens,
            "threads": args.threads,
            "rounds": args.rounds,
        },
        "sides": facts,
        "trl_settings_tried": tried,
        "samples": samples,
        "trained_tokens_per_s": {name: summary(rate) for name, rate in rates.items()},
        "step_s": {n: summary([f["step_s"] for f in fs]) for n, fs in samples.items()},
        "generation_s": {n: summary([f["generation_s"] for f in fs]) for n, fs in samples.items()},
        "update_s": {n: summary([f["update_s"] for f in fs]) for n, fs in samples.items()},
        "ratio": {
            "trained_tokens_per_s": ratio(rates["ours"], rates["trl"]),
            "generation": _faster(samples, "generation_s"),
            "update": _faster(samples, "update_s"),
            "cpu_time": _faster(samples, "cpu_s"),
        },
    }


def _faster(samples: dict[str, list[dict[str, Any]]], name: str) -> dict[str, float]:
    return ratio([f[name] for f in samples["trl"]], [f[name] for f in samples["ours"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--trl", default=".venv-trl", help="virtual environment that has trl")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--precisions", default="bf16,pure_bf16,fp32", help="those to try for TRL")
    parser.add_argument("--settings", help="TRL's, instead of trying: PRECISION:MICRO_BATCH")
    parser.add_argument("--output", type=Path, help="result file, instead of the usual one")
    args = parser.parse_args()
    result = measure(args)
    found = result["ratio"]["trained_tokens_per_s"]
    print(
        f"trained tokens/s: ours {result['trained_tokens_per_s']['ours']['median']:.0f}, TRL"
        f" {result['trained_tokens_per_s']['trl']['median']:.0f}: {found['median']:.1f} times"
        f" ({found['min']:.1f} to {found['max']:.1f})"
    )
    write_result("grpo_step", result, path=args.output)


if __name__ == "__main__":
    main()
