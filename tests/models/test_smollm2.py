"""The real model, where `rledger model get smollm2-135m` has brought it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from model_oracles import packed

from rledger.models.checkpoint import load_decoder

FOLDER = Path(__file__).parents[2] / "models" / "smollm2-135m"
pytestmark = pytest.mark.skipif(
    not (FOLDER / "config.json").is_file(),
    reason="models/smollm2-135m is absent: rledger model get smollm2-135m",
)


def test_logits_equal_transformers_and_the_answer_is_sensible() -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    answer = tokenizer("The capital of France is Paris.<|im_end|>")["input_ids"]
    token_ids = torch.tensor(tokenizer(prompt)["input_ids"] + answer)
    decoder = load_decoder(FOLDER)
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(token_ids[None]).logits[0]
        positions = torch.arange(len(token_ids))
        hidden = decoder.forward_hidden(token_ids, positions, packed([len(token_ids)]))
        logits = decoder.logits(hidden)
    # logits reach 38 and pass thirty layers: float32 itself differs by 9e-5 here
    assert (logits - expected).abs().max() < 3e-4
    greedy = logits[-len(answer) - 1 : -1].argmax(-1).tolist()
    assert greedy == answer
    assert answer[-1] in decoder.spec.eos_token_ids
