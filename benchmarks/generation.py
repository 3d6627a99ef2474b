"""Native generation against transformers' `generate`, A/B alternately in one process.

python -m benchmarks.generation [--model models/smollm2-135m] [--requests 64] [--new-tokens 128]

Prints tokens per second of each round, medians with their spread, the ratio, and the bound that the
machine sets: weights over memory bandwidth, FLOPs over matmul rate, whichever is longer, for a decode
step of all requests. Both sides sample at temperature 1 from the whole vocabulary, lengths forced equal.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from rledger.books import Books
from rledger.config.generator import GeneratorConfig
from rledger.generator import build_generator
from rledger.generator.native import NativeGenerator
from rledger.models.checkpoint import load_decoder
from rledger.models.placement import Placement, choose_placement
from rledger.modelspec import ModelSpec
from rledger.types import GenerationRequest, SamplingParams


def main() -> None:
    args = _arguments()
    placement = choose_placement("cpu", args.dtype, args.threads)
    placement.apply_threads()
    source = torch.Generator().manual_seed(0)
    decoder = load_decoder(args.model, dtype=placement.compute_dtype)
    prompts = torch.randint(
        0,
        decoder.spec.vocab_size,
        (-(-args.requests // args.group_size), args.prompt_tokens),
        generator=source,
    ).repeat_interleave(args.group_size, 0)[: args.requests]
    modes = {"rledger": False, **({"rledger deterministic": True} if args.deterministic else {})}
    rivals: dict[str, Callable[[int], None]] = {}
    for name, deterministic in modes.items():
        generator = build_generator(
            GeneratorConfig(max_running_requests=args.requests),
            decoder,
            placement=placement,
            lane=Books.in_memory().lane("main"),
            deterministic=deterministic,
        )
        rivals[name] = _ours(generator, prompts, args.new_tokens)
    if args.rounds_transformers:
        rivals["transformers"] = _transformers(
            args.model, placement, prompts, args.new_tokens, args.attention
        )
    total = args.requests * args.new_tokens
    rates: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(args.rounds):
        for name, go in rivals.items():
            if name == "transformers" and number >= args.rounds_transformers:
                continue
            begin = time.perf_counter()
            go(number)
            rates[name].append(total / (time.perf_counter() - begin))
            print(f"round {number}  {name:<22} {rates[name][-1]:8.0f} tok/s", flush=True)
    print(
        f"\n{args.requests} requests, {args.prompt_tokens} prompt and {args.new_tokens} new tokens,"
        f" groups of {args.group_size}, {args.dtype}, {placement.threads} threads"
    )
    for name, values in rates.items():
        print(
            f"{name:<22} median {statistics.median(values):8.0f} tok/s"
            f"  (min {min(values):.0f}, max {max(values):.0f}, {len(values)} rounds)"
        )
    best = statistics.median(rates["rledger"])
    for name, values in rates.items():
        if name != "rledger":
            print(f"rledger / {name}: {best / statistics.median(values):.2f}")
    _bound(decoder.spec, placement, args, best)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("models/smollm2-135m"))
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rounds-transformers", type=int, default=3)
    parser.add_argument(
        "--attention", default="sdpa", help="transformers' attention implementation"
    )
    parser.add_argument("--deterministic", action="store_true", help="measure that mode as well")
    return parser.parse_args()


def _ours(
    generator: NativeGenerator, prompts: torch.Tensor, new_tokens: int
) -> Callable[[int], None]:
    sampling = SamplingParams(max_new_tokens=new_tokens, min_new_tokens=new_tokens)

    async def all_of_them(number: int) -> None:
        await asyncio.gather(
            *(
                generator.generate(
                    GenerationRequest(
                        id=f"{number}/{i}",
                        group_id=f"{number}/{i}",
                        prompt_token_ids=tuple(prompt),
                        sampling=sampling,
                        seed=1000 * number + i,
                    )
                )
                for i, prompt in enumerate(prompts.tolist())
            )
        )

    return lambda number: asyncio.run(all_of_them(number))


def _transformers(
    folder: Path, placement: Placement, prompts: torch.Tensor, new_tokens: int, attention: str
) -> Callable[[int], None]:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=placement.compute_dtype, attn_implementation=attention
    ).eval()

    def go(number: int) -> None:
        torch.manual_seed(number)
        with torch.inference_mode():
            out = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                pad_token_id=0,
            )
        assert out.shape[1] == prompts.shape[1] + new_tokens

    return go


def _bound(spec: ModelSpec, placement: Placement, args: argparse.Namespace, rate: float) -> None:
    """Decode steps at the speed of the weights' way from memory, and of the bare matmuls."""
    flops = 2 * args.requests * spec.num_matmul_parameters
    weight_bytes = spec.num_matmul_parameters * placement.compute_dtype.itemsize
    gb_s = _bandwidth_bytes_per_s() / 1e9
    flops_per_s = _matmul_flops_per_s(spec, placement, args.requests)
    step_s = max(weight_bytes / gb_s / 1e9, flops / flops_per_s)
    print(
        f"bound of a decode step: {weight_bytes / 1e6:.0f} MB of weights at {gb_s:.1f} GB/s ="
        f" {weight_bytes / gb_s / 1e6:.1f} ms; {flops / 1e9:.1f} GFLOP at"
        f" {flops_per_s / 1e9:.0f} GFLOP/s = {1e3 * flops / flops_per_s:.1f} ms;"
        f" hence at most {args.requests / step_s:.0f} tok/s, of which rledger reaches"
        f" {rate * step_s / args.requests:.2f} (prefill, cache and sampling included)"
    )


def _bandwidth_bytes_per_s() -> float:
    """Reading 512 MiB, best of five."""
    data = torch.ones(2**26, dtype=torch.int64)
    best = min(_seconds(lambda: data.sum()) for _ in range(5))
    return data.nbytes / best


def _matmul_flops_per_s(spec: ModelSpec, placement: Placement, rows: int) -> float:
    """oneDNN's packed product of `rows` rows with the feed-forward matrix, out of cache, best of five."""
    ffn, width = spec.ffn_width, spec.width
    packed = [
        torch.ops.mkldnn._reorder_linear_weight(
            torch.randn(2 * ffn, width).to(placement.compute_dtype), rows
        )
        for _ in range(30)
    ]
    x = torch.randn(rows, width).to(placement.compute_dtype)

    def go() -> None:
        for weight in packed:
            torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    best = min(_seconds(go) for _ in range(5))
    return 2 * rows * 2 * ffn * width * len(packed) / best


def _seconds(go: Callable[[], object]) -> float:
    begin = time.perf_counter()
    go()
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
