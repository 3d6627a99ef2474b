"""RLedger's native generator. `settings` of the workload: `deterministic`, `dtype`, `generator`."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version

from benchmarks.side import Finished, Port
from rledger.books import Books
from rledger.config.generator import GeneratorConfig
from rledger.generator import build_generator
from rledger.generator.native import NativeGenerator
from rledger.models.checkpoint import load_decoder
from rledger.models.placement import choose_placement
from rledger.types import GenerationRequest, SamplingParams


async def generate(
    generator: NativeGenerator, prompts: list[list[int]], new_tokens: int, number: int
) -> int:
    """Tokens made for one request a prompt; without stop tokens each has the full length."""
    sampling = SamplingParams(max_new_tokens=new_tokens)
    completions = await asyncio.gather(
        *(
            generator.generate(
                GenerationRequest(
                    id=f"{number}-{index}",
                    group_id=f"{number}-{index}",
                    prompt_token_ids=tuple(prompt),
                    sampling=sampling,
                    seed=1_000 * number + index,
                )
            )
            for index, prompt in enumerate(prompts)
        )
    )
    return sum(len(completion.token_ids) for completion in completions)


def main() -> None:
    port = Port()
    workload = port.workload
    settings, new_tokens = workload["settings"], workload["new_tokens"]
    placement = choose_placement("auto", settings["dtype"], workload["threads"])
    decoder = load_decoder(
        workload["model"], dtype=placement.compute_dtype, device=placement.device
    )
    generator = build_generator(
        GeneratorConfig(**settings.get("generator", {})),
        decoder,
        placement=placement,
        lane=Books.in_memory().lane("main"),
        deterministic=settings["deterministic"],
    )
    asyncio.run(generate(generator, workload["rounds"][0][:1], new_tokens, 0))
    port.ready(versions={"torch": version("torch")}, settings=settings)
    number = 0
    while True:
        try:
            port.wait()
        except Finished:
            return
        prompts = workload["rounds"][number % len(workload["rounds"])]
        number += 1
        begin_s = time.perf_counter()
        tokens = asyncio.run(generate(generator, prompts, new_tokens, number))
        port.answer(seconds=time.perf_counter() - begin_s, tokens=tokens)


if __name__ == "__main__":
    main()
