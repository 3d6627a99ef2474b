"""Seconds of training until SmolLM2 adds: our recipe against TRL on the same prompts and reward.

    python -m benchmarks.time_to_score [--trl ENVIRONMENT] [--seeds 1,2,3] [--trl-seeds 1]

8 prompts x 16 completions of at most 24 tokens, learning rate 1.5e-5, constant; greedy accuracy on the
same 256 held-out sums every few steps. Only steps count, on both sides: neither start-up nor
evaluation nor checkpoints. TRL needs most of an hour for a seed: its curve is kept in the results,
with the machine and the versions that it belongs to, and measured again only where these differ. An
interrupted one goes on from its last evaluation.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT, Side, interpreter
from benchmarks.results import cpu_name, result_path, summary, write_result
from benchmarks.workloads import MODEL, held_out_prompts, training_prompts

__all__ = ["curve_of_metrics", "main", "seconds_to"]

RECIPE = ROOT / "recipes" / "smollm2-arithmetic.toml"
ACCURACY = "val-core/arithmetic_sums/acc/mean@1"
LIMITS = (0.70, 0.85)
NEW_TOKENS, LEARNING_RATE = 24, 1.5e-5  # as in the recipe

Curve = list[dict[str, float]]


def seconds_to(curve: Curve, limit: float) -> float | None:
    """Seconds of training at the first evaluation above `limit`; None where there is none."""
    return next((point["train_s"] for point in curve if point["accuracy"] > limit), None)


def curve_of_metrics(lines: list[str]) -> Curve:
    """Accuracy over seconds of training, from a run's metrics.jsonl."""
    curve: Curve = []
    train_s = 0.0
    for line in lines:
        if not line.endswith("\n"):
            break  # the run is writing it
        row = json.loads(line)
        metrics = row.get("metrics", row)
        if row["step"] > 0:
            train_s += metrics["timing_s/step"] - metrics.get("timing_s/save_checkpoint", 0.0)
        if ACCURACY in metrics:
            curve.append({"step": row["step"], "train_s": train_s, "accuracy": metrics[ACCURACY]})
    return curve


def ours(args: argparse.Namespace, seed: int) -> Curve:
    """The recipe through its own command, stopped once it is above the last limit."""
    with tempfile.TemporaryDirectory(prefix="bench-") as root:
        overrides = {
            "run.name": f"seed{seed}",
            "run.root": root,
            "run.seed": seed,
            "run.num_steps": args.max_steps,
            "run.num_prompts_per_step": args.prompts,
            "run.group_size": args.group_size,
            "evaluation.num_prompts": args.held_out,
            "run.threads_per_role": args.threads,
            "model.path": args.model,
            "evaluation.every_steps": args.eval_every,
            "checkpoint.export_hf": "false",
        }
        command = [str(Path(sys.executable).parent / "rledger"), "train", str(RECIPE)]
        with tempfile.TemporaryFile("w+") as log:
            process = subprocess.Popen(
                command + [f"{key}={value}" for key, value in overrides.items()],
                cwd=ROOT,
                env=os.environ | {"HF_HUB_OFFLINE": "1"},
                stdout=log,
                stderr=log,
            )
            path = Path(root) / f"seed{seed}" / "metrics.jsonl"
            curve = _follow(process, path, f"ours, seed {seed}")
            if not curve or process.returncode not in (0, 130, -signal.SIGKILL):
                log.seek(0)
                raise SystemExit(f"`rledger train` failed:\n{log.read()[-4000:]}")
    return curve


def _follow(process: subprocess.Popen[bytes], path: Path, name: str) -> Curve:
    curve: Curve = []
    while True:
        ended = process.poll() is not None
        if path.exists():
            found = curve_of_metrics(path.read_text(encoding="utf-8").splitlines(keepends=True))
            for point in found[len(curve) :]:
                _tell(name, point)
            curve = found
        if ended:
            return curve
        if curve and curve[-1]["accuracy"] > LIMITS[-1]:
            process.kill()
            process.wait()
            return curve
        time.sleep(1.0)


def trl(args: argparse.Namespace, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """TRL's curve: the kept one where it is of this machine, these versions and this workload."""
    workload = {
        "model": str(args.model),
        "threads": args.threads,
        "prompts": training_prompts(args.model, args.trl_max_steps * args.prompts, seed),
        "held_out": held_out_prompts(args.model)[: args.held_out],
        "num_prompts_per_step": args.prompts,
        "group_size": args.group_size,
        "new_tokens": NEW_TOKENS,
        "forced_length": False,
        "reward": "right_sum",
        "learning_rate": LEARNING_RATE,
        "eval_every_steps": args.eval_every,
        "seed": seed,
        "settings": settings,
    }
    told = {key: value for key, value in workload.items() if key != "model"}
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    path = args.kept or result_path("time_to_score_trl")
    kept: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    key = f"{cpu_name()} {digest}"
    entry = kept.get("curves", {}).get(key, {"seed": seed, "settings": settings, "curve": []})
    if entry.get("finished"):
        print(f"TRL, seed {seed}: kept from {entry['date']}")
        return dict(entry)
    workload["folder"] = str(ROOT / "outputs" / "benchmarks" / f"trl-{digest}")
    python = interpreter(args.trl)
    with Side("trl", "rivals.trl_score", workload, python=python, deadline_s=7_200) as side:
        side.start()
        entry |= {"versions": side.facts["versions"], "date": time.strftime("%Y-%m-%d")}
        at = side.facts["resumed_at_step"]
        # What came after the checkpoint that it goes on from happens again.
        curve: Curve = [p for p in entry["curve"] if p["step"] <= at and at > 0]
        entry["curve"] = curve
        while not (curve and curve[-1]["accuracy"] > LIMITS[0]):
            if curve and curve[-1]["step"] >= args.trl_max_steps:
                break
            figures = side.measure()
            before = curve[-1]["train_s"] if curve else 0.0
            curve.append(
                {
                    "step": figures["step"],
                    "train_s": before + sum(figures["step_s"]),
                    "accuracy": figures["accuracy"],
                    "evaluation_s": figures["evaluation_s"],
                }
            )
            _tell(f"TRL, seed {seed}", curve[-1])
            _keep(path, kept, key, entry)
    shutil.rmtree(workload["folder"], ignore_errors=True)
    entry["finished"] = True
    _keep(path, kept, key, entry)
    return dict(entry)


def _keep(path: Path, kept: dict[str, Any], key: str, entry: dict[str, Any]) -> None:
    curves = kept.setdefault("curves", {})
    curves[key] = entry
    write_result("time_to_score_trl", {"curves": curves}, path=path)


def _tell(name: str, point: dict[str, float]) -> None:
    print(
        f"  {name}: step {point['step']}, {point['train_s']:.0f} s of training, accuracy"
        f" {point['accuracy']:.3f}",
        flush=True,
    )


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """TRL's setting: the given one, else the fastest bf16 one that `benchmarks.grpo_step` found.

    Its weights stay float32 (autocast): with weights in bfloat16 an update of this learning rate is
    mostly rounded away.
    """
    if args.settings:
        precision, size = args.settings.split(":")
        return {"precision": precision, "micro_batch": int(size)}
    path = result_path("grpo_step")
    tried = json.loads(path.read_text("utf-8"))["trl_settings_tried"] if path.exists() else []
    tried = [figures for figures in tried if figures["precision"] == "bf16"]
    if not tried:
        raise SystemExit("no result of benchmarks.grpo_step here to take TRL's best setting from; run"
                         " it first, or give --settings bf16:32")  # fmt: skip
    best = min(tried, key=lambda figures: figures["step_s"])
    return {key: best[key] for key in ("precision", "micro_batch")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--trl", default=".venv-trl", help="virtual environment that has trl")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--held-out", type=int, default=256)
    parser.add_argument("--seeds", default="1,2,3", help="ours")
    parser.add_argument("--trl-seeds", default="1")
    parser.add_argument("--eval-every", type=int, default=2, help="steps between evaluations")
    parser.add_argument("--max-steps", type=int, default=60, help="ours, at most")
    parser.add_argument("--trl-max-steps", type=int, default=40)
    parser.add_argument("--settings", help="TRL's, PRECISION:MICRO_BATCH")
    parser.add_argument("--kept", type=Path, help="file of TRL's curves, instead of the usual one")
    parser.add_argument("--output", type=Path, help="result file, instead of the usual one")
    args = parser.parse_args()
    settings = settings_of(args) if args.trl_seeds else {}
    theirs = [trl(args, int(seed), settings) for seed in args.trl_seeds.split(",") if seed]
    mine = {seed: ours(args, int(seed)) for seed in args.seeds.split(",") if seed}
    result: dict[str, Any] = {
        "workload": {
            "prompts": args.prompts,
            "group_size": args.group_size,
            "held_out": args.held_out,
            "max_new_tokens": NEW_TOKENS,
            "learning_rate": LEARNING_RATE,
            "threads": args.threads,
            "eval_every_steps": args.eval_every,
        },
        "ours": mine,
        "trl": theirs,
        "seconds_to": {},
        "ratio": {},
    }
    for limit in LIMITS:
        by_side = {
            "ours": [seconds_to(curve, limit) for curve in mine.values()],
            "trl": [seconds_to(entry["curve"], limit) for entry in theirs],
        }
        result["seconds_to"][f"{limit:.2f}"] = by_side
        if all(by_side.values()) and all(None not in seconds for seconds in by_side.values()):
            lower = summary([s for s in by_side["ours"] if s is not None])
            upper = summary([s for s in by_side["trl"] if s is not None])
            result["ratio"][f"{limit:.2f}"] = {
                "median": upper["median"] / lower["median"],
                "min": upper["min"] / lower["max"],
                "max": upper["max"] / lower["min"],
            }
        print(f"seconds to {limit:.2f}: {by_side}")
    write_result("time_to_score", result, path=args.output)


if __name__ == "__main__":
    main()
