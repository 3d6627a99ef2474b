"""Time of one update of the trainer: SmolLM2-135M, 8 prompts x 8 completions of 64 tokens, one update.

    python -m benchmarks.update [--model FOLDER] [--threads N] [--micro-batch-tokens N] [--repeats N] ...

Without a model the weights are random, of the same shape. It prints trained tokens per second, the
floating-point operations done per second beside the measured rate of the same matrix products, and a
table of where the time goes, from the books' spans.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from rledger.books import Books, SpanRecord
from rledger.config.algorithm import AlgorithmConfig
from rledger.config.trainer import OptimizerConfig
from rledger.models.checkpoint import load_decoder
from rledger.models.decoder import Decoder
from rledger.models.init import random_decoder
from rledger.models.placement import choose_placement
from rledger.modelspec import ModelSpec
from rledger.trainer.allocator import keep_freed_memory
from rledger.trainer.trainer import DecoderTrainer, TrainerSetup
from rledger.types import Batch

__all__ = ["headline_batch", "main", "smollm2_spec"]


def smollm2_spec() -> ModelSpec:
    """The shape of SmolLM2-135M."""
    return ModelSpec(
        family="llama",
        vocab_size=49152,
        width=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_size=64,
        ffn_width=1536,
        max_positions=8192,
        rms_eps=1e-5,
        rope_theta=100_000.0,
        tied_embeddings=True,
    )


def headline_batch(
    spec: ModelSpec,
    *,
    num_prompts: int = 8,
    group_size: int = 8,
    prompt_tokens: int = 45,
    completion_tokens: int = 64,
    seed: int = 0,
) -> Batch:
    """Random tokens; prompts differ in length by up to 3, completions all have the same."""
    rng = np.random.default_rng(seed)
    rows, prompts = [], []
    for _ in range(num_prompts):
        prompt = rng.integers(0, spec.vocab_size, prompt_tokens + int(rng.integers(-3, 4)))
        for _ in range(group_size):
            rows.append(np.r_[prompt, rng.integers(0, spec.vocab_size, completion_tokens)])
            prompts.append(len(prompt))
    lengths = np.array([len(row) for row in rows])
    mask = np.concatenate([np.arange(n) >= p for n, p in zip(lengths, prompts, strict=True)])
    total = int(lengths.sum())
    groups = np.repeat(np.arange(num_prompts), group_size).astype(np.int32)
    advantages = np.repeat(rng.normal(size=len(rows)), lengths) * mask
    return Batch(
        ids=tuple(f"g{g:08d}/{i % group_size}" for i, g in enumerate(groups)),
        group_ids=tuple(f"g{g:08d}" for g in groups),
        groups=groups,
        offsets=np.r_[0, np.cumsum(lengths)].astype(np.int64),
        prompt_lengths=np.array(prompts, np.int32),
        token_ids=np.concatenate(rows).astype(np.int32),
        loss_mask=mask,
        policy_versions=np.where(mask, 0, -1).astype(np.int32),
        generator_logprobs=np.full(total, -8.0, np.float32) * mask,
        rewards=rng.random(len(rows)).astype(np.float32),
        advantages=advantages.astype(np.float32),
    )


def matmul_rate(like: torch.Tensor, clock: Callable[[], float]) -> float:
    """FLOP/s of the feed-forward product at 2048 tokens on `clock`, the best of twenty."""
    x = torch.randn(2048, 576).to(like)
    w = torch.randn(3072, 576).to(like)
    best_s = float("inf")
    for _ in range(20):
        start = clock()
        torch.nn.functional.linear(x, w)
        if like.is_cuda:
            torch.cuda.synchronize()
        best_s = min(best_s, clock() - start)
    return 2 * 2048 * 576 * 3072 / best_s


def report(
    spans: Sequence[SpanRecord], seconds: Sequence[float], batch: Batch, rate: float
) -> None:
    """Print the figures of all repeats; the table is that of the mean update."""
    best, middle = min(seconds), statistics.median(seconds)
    print(f"update: best {best:.3f} s, median {middle:.3f} s, worst {max(seconds):.3f} s")
    print(f"trained tokens/s: {batch.num_loss_tokens / middle:.0f} (median)")
    names = list(dict.fromkeys(span.name for span in spans))
    flops = sum(span.counts.get("flops", 0.0) for span in spans) / len(seconds)
    print(
        f"{flops / 1e12:.2f} TFLOP an update; {flops / middle / 1e9:.0f} GFLOP/s of {rate / 1e9:.0f}"
    )
    print(f"\n{'span':12} {'s':>7} {'share':>6} {'GFLOP/s':>8} {'of matmul':>9}")
    mean = statistics.mean(seconds)
    for name in names:
        mine = [span for span in spans if span.name == name]
        time_s = sum(span.seconds for span in mine) / len(seconds)
        done = sum(span.counts.get("flops", 0.0) for span in mine) / len(seconds)
        speed = f"{done / time_s / 1e9:8.0f} {done / time_s / rate:9.2f}" if done else ""
        print(f"{name:12} {time_s:7.3f} {time_s / mean:6.1%} {speed}")
    booked = sum(span.seconds for span in spans) / len(seconds)
    print(f"{'the rest':12} {mean - booked:7.3f} {1 - booked / mean:6.1%}")


def build(args: argparse.Namespace, books: Books) -> DecoderTrainer:
    placement = choose_placement(args.device, args.dtype, args.threads)
    placement.apply_threads()
    keep_freed_memory()
    if args.model is None:
        loaded = random_decoder(smollm2_spec(), 0, device=placement.device)
    else:
        loaded = load_decoder(args.model, device=placement.device)
    start = {name: p.detach() for name, p in loaded.named_parameters()}
    decoder = loaded
    if placement.compute_dtype != torch.float32:
        decoder = Decoder(loaded.spec, dtype=placement.compute_dtype, device=placement.device)
    setup = TrainerSetup(
        optimizer=OptimizerConfig(learning_rate=1e-6),
        algorithm=AlgorithmConfig(),
        micro_batch_tokens=args.micro_batch_tokens,
        num_updates=1000,
        temperature=1.0,
        activation_checkpointing=args.activation_checkpointing,
    )
    return DecoderTrainer(decoder, start, setup, placement=placement, lane=books.lane("main"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--micro-batch-tokens", type=int, default=4096)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure CPU seconds of the process: with --threads 1 a busy machine distorts them least",
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--activation-checkpointing", action="store_true")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=45)
    parser.add_argument("--completion-tokens", type=int, default=64)
    args = parser.parse_args()
    clock = time.process_time if args.cpu_time else time.perf_counter
    books = Books.in_memory(clock)
    trainer = build(args, books)
    spec = smollm2_spec() if args.model is None else load_decoder(args.model).spec
    batch = headline_batch(
        spec,
        num_prompts=args.prompts,
        group_size=args.group_size,
        prompt_tokens=args.prompt_tokens,
        completion_tokens=args.completion_tokens,
    )

    async def update() -> float:
        start = clock()
        await trainer.forward_backward(batch)
        await trainer.optim_step()
        return clock() - start

    asyncio.run(update())
    seen = len(books.records)
    seconds = [asyncio.run(update()) for _ in range(args.repeats)]
    spans = [record for record in books.records[seen:] if isinstance(record, SpanRecord)]
    rate = matmul_rate(trainer.export_weights()["model.norm.weight"], clock)
    report(spans, seconds, batch, rate)


if __name__ == "__main__":
    main()
