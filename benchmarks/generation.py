"""Generation with SmolLM2-135M: ours against transformers' `generate` and vLLM's CPU build, in turns.

    python -m benchmarks.generation [--trl ENVIRONMENT] [--vllm ENVIRONMENT] [--rounds N]

64 requests of exactly 128 new tokens at temperature 1, every round with other prompts. transformers
gets the better of bfloat16 and float32 and its best batch, vLLM its default compilation (and, apart,
eager mode) and all cores. Ours runs as it is by default, and in deterministic mode for its cost. Only
ours also returns log-probabilities. Start-up is told apart.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.bounds import generation_bound, measure_rates
from benchmarks.contest import Side, alternate, interpreter
from benchmarks.results import ratio, summary, write_result
from benchmarks.workloads import MODEL, training_prompts
from rledger.modelspec import load_spec

__all__ = ["main"]

HF_TRIED = [
    {"dtype": dtype, "batch": batch} for dtype in ("bfloat16", "float32") for batch in (16, 32, 64)
]
MODULES = {
    "ours": "ours.generate",
    "ours_deterministic": "ours.generate",
    "transformers": "rivals.hf_generate",
    "vllm": "rivals.vllm_generate",
    "vllm_eager": "rivals.vllm_generate",
}


def workload(args: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    prompts = training_prompts(args.model, (args.rounds + 1) * args.requests, args.seed)
    ids = [prompt["token_ids"] for prompt in prompts]
    return {
        "model": str(args.model),
        "threads": args.threads,
        "rounds": [ids[i : i + args.requests] for i in range(0, len(ids), args.requests)],
        "new_tokens": args.new_tokens,
        "seed": args.seed,
        "settings": settings,
    }


def best_of_transformers(args: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Its fastest dtype and batch, and what each took."""
    tried = []
    for settings in HF_TRIED:
        if settings["batch"] > args.requests:
            continue
        with Side(
            "transformers", MODULES["transformers"], workload(args, settings), python=args.trl
        ) as side:
            tried.append({**settings, **side.start().measure()})
        print(f"  transformers {settings}: {tried[-1]['seconds']:.1f} s", flush=True)
    best = min(tried, key=lambda figures: figures["seconds"])
    return {key: best[key] for key in ("dtype", "batch")}, tried


def measure(args: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, dict[str, Any]] = {
        "ours": {"dtype": "auto", "deterministic": False},
        "ours_deterministic": {"dtype": "auto", "deterministic": True},
        "vllm": {"dtype": "bfloat16", "eager": False, "kv_cache_gib": 2},
        "vllm_eager": {"dtype": "bfloat16", "eager": True, "kv_cache_gib": 2},
    }
    sides = args.sides.split(",")
    tried: list[dict[str, Any]] = []
    if "transformers" in sides:
        if args.transformers:
            dtype, batch = args.transformers.split(":")
            settings["transformers"] = {"dtype": dtype, "batch": int(batch)}
        else:
            print("transformers' settings, one measurement each")
            settings["transformers"], tried = best_of_transformers(args)
    pythons = {name: args.trl if name == "transformers" else args.vllm for name in MODULES}
    pythons |= {"ours": interpreter(None), "ours_deterministic": interpreter(None)}
    # Before the sides are up: an idle engine is not quite idle.
    spec, rates = load_spec(args.model), measure_rates(args.threads, torch.bfloat16, args.requests)
    with ExitStack() as stack:
        running = []
        for name in sides:
            side = Side(name, MODULES[name], workload(args, settings[name]), python=pythons[name])
            running.append(stack.enter_context(side).start())
            print(f"  {name} is ready after {side.facts['start_up_s']:.0f} s", flush=True)
        samples = alternate(running, args.rounds)
        facts = {side.name: side.facts for side in running}
    for name, figures in samples.items():
        for figure in figures:
            assert figure["tokens"] == args.requests * args.new_tokens, (name, figure)
    speeds = {n: [f["tokens"] / f["seconds"] for f in fs] for n, fs in samples.items()}
    lengths = [len(prompt) for prompt in workload(args, {})["rounds"][0]]
    return {
        "workload": {
            "requests": args.requests,
            "new_tokens": args.new_tokens,
            "prompt_tokens": sum(lengths),
            "threads": args.threads,
            "rounds": args.rounds,
        },
        "sides": facts,
        "transformers_settings_tried": tried,
        "rates": rates,
        "bound": generation_bound(spec, lengths, args.new_tokens, rates, 2),
        "samples": samples,
        "tokens_per_s": {name: summary(speed) for name, speed in speeds.items()},
        "ratio": {name: ratio(speeds["ours"], speeds[name]) for name in sides if name != "ours"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--trl", default=".venv-trl", help="virtual environment of transformers")
    parser.add_argument("--vllm", default=".venv-vllm", help="virtual environment that has vllm")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--transformers", help="its setting, instead of trying: DTYPE:BATCH")
    parser.add_argument("--sides", default=",".join(MODULES), help="those to measure, with `ours`")
    parser.add_argument("--output", type=Path, help="result file, instead of the usual one")
    args = parser.parse_args()
    if "transformers" in args.sides:
        args.trl = interpreter(args.trl)
    if "vllm" in args.sides:
        args.vllm = interpreter(args.vllm)
    result = measure(args)
    bound = result["bound"]["tokens_per_s"]
    for name, speed in result["tokens_per_s"].items():
        print(f"{name:20} {speed['median']:7.0f} tok/s, {speed['median'] / bound:.0%} of the bound")
    for name, found in result["ratio"].items():
        print(f"ours / {name}: {found['median']:.2f} ({found['min']:.2f} to {found['max']:.2f})")
    write_result("generation", result, path=args.output)


if __name__ == "__main__":
    main()
