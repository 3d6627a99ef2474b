"""transformers' own `generate`. Runs in the interpreter that has transformers.

`settings` of the workload: `dtype`, and `batch` (requests computed at once).
"""

from __future__ import annotations

import time

from benchmarks.side import Finished, Port


def main() -> None:
    port = Port()
    workload = port.workload
    import torch
    import transformers
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(workload["threads"])
    settings, new_tokens = workload["settings"], workload["new_tokens"]
    model = AutoModelForCausalLM.from_pretrained(
        workload["model"], dtype=getattr(torch, settings["dtype"])
    ).eval()
    model.generation_config.update(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
    )
    pad = model.generation_config.pad_token_id

    def generate(prompts: list[list[int]]) -> int:
        longest = max(map(len, prompts))
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        with torch.inference_mode():
            return model.generate(input_ids=ids, attention_mask=mask)[:, longest:].numel()

    torch.manual_seed(workload["seed"])
    generate([workload["rounds"][0][0]])  # what is made lazily is made now
    port.ready(
        versions={"transformers": transformers.__version__, "torch": torch.__version__},
        settings=settings,
    )
    number, batch = 0, settings["batch"]
    while True:
        try:
            port.wait()
        except Finished:
            return
        prompts = workload["rounds"][number % len(workload["rounds"])]
        number += 1
        begin_s = time.perf_counter()
        tokens = sum(generate(prompts[i : i + batch]) for i in range(0, len(prompts), batch))
        port.answer(seconds=time.perf_counter() - begin_s, tokens=tokens)


if __name__ == "__main__":
    main()
