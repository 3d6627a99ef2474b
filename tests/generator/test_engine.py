"""What the native engine promises, against transformers as the oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_model import (
    VOCAB_SIZE,
    budget,
    decoder_of,
    engine_of,
    finish,
    prompt_of,
    request,
    twin,
)

from rledger.books import Books
from rledger.errors import ConfigError, DataError, ModelError, NonFiniteError
from rledger.models.names import export_hf_state
from rledger.types import Completion, GenerationRequest


def oracle_logprobs(model, asked: GenerationRequest, made: Completion) -> np.ndarray:
    """Log-probabilities of the completion at its temperature, from one transformers forward."""
    ids = torch.tensor([[*asked.prompt_token_ids, *made.token_ids.tolist()]])
    with torch.no_grad():
        logits = model(ids).logits[0].double()
    logits = logits / (asked.sampling.temperature or 1.0)
    first = len(asked.prompt_token_ids)
    logprobs = logits.log_softmax(-1)[first - 1 : -1]
    return logprobs.gather(1, ids[0, first:, None])[:, 0].numpy()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_logprobs_equal_transformers_forward(family: str, deterministic: bool) -> None:
    model = twin(family)
    engine = engine_of(decoder_of(model), deterministic=deterministic)
    asked = [
        request(i, prompt_of(i, 3 + 7 * i), max_new_tokens=20 + i, temperature=0.5 + 0.25 * i)
        for i in range(7)
    ]
    for one in asked:
        engine.submit(one)
    done = finish(engine)
    for one in asked:
        made = done[one.id]
        np.testing.assert_allclose(
            made.generator_logprobs, oracle_logprobs(model, one, made), atol=1e-4
        )
        np.testing.assert_allclose(made.sampled_logprobs, made.generator_logprobs, atol=1e-6)
        assert len(made.token_ids) == one.sampling.max_new_tokens
        assert made.finish_reason == "length"


def test_bfloat16_logprobs_are_close_to_the_float32_forward() -> None:
    model = twin("llama")
    engine = engine_of(decoder_of(model, torch.bfloat16))
    asked = [request(i, prompt_of(i, 20), max_new_tokens=30) for i in range(8)]
    for one in asked:
        engine.submit(one)
    done = finish(engine)
    errors = [
        done[one.id].generator_logprobs - oracle_logprobs(model, one, done[one.id]) for one in asked
    ]
    assert 0 < np.abs(np.concatenate(errors)).mean() < 0.1


@pytest.mark.parametrize("deterministic", [False, True])
def test_temperature_zero_is_transformers_greedy(deterministic: bool) -> None:
    model = twin("llama")
    engine = engine_of(decoder_of(model), deterministic=deterministic)
    prompt = prompt_of(3, 11)
    engine.submit(request(0, prompt, max_new_tokens=25, temperature=0.0))
    made = finish(engine)["r0"]
    with torch.no_grad():
        wanted = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=25,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert made.token_ids.tolist() == wanted[0, len(prompt) :].tolist()
    assert made.sampled_logprobs.tolist() == [0.0] * 25
    np.testing.assert_allclose(
        made.generator_logprobs,
        oracle_logprobs(model, request(0, prompt, temperature=0.0), made),
        atol=1e-4,
    )


def test_a_groups_prompt_is_prefilled_once() -> None:
    engine = engine_of(decoder_of(twin()), max_running=6)
    prompts = [prompt_of(i, 10 + 13 * i) for i in range(5)]
    for group, prompt in enumerate(prompts):
        for member in range(8):
            engine.submit(request(100 * group + member, prompt, group=f"g{group}"))
    done = finish(engine)
    assert len(done) == 40
    assert engine.stats().prefill_tokens == sum(len(p) for p in prompts)
    assert engine.stats().recomputed_tokens == 0
    assert engine.stats().generated_tokens == 40 * 8
    assert len({done[f"r{m}"].token_ids.tobytes() for m in range(8)}) > 1


def test_a_request_admitted_in_flight_starts_within_one_decode_step() -> None:
    engine = engine_of(decoder_of(twin()))
    early = engine.submit(request(0, prompt_of(0, 9), max_new_tokens=50))
    while len(early.token_ids) < 10:
        engine.step()
    late = engine.submit(request(1, prompt_of(1, 60), max_new_tokens=5))
    before = engine.stats().num_decode_steps
    while not late.token_ids:
        engine.step()
    assert engine.stats().num_decode_steps == before + 1
    assert len(early.token_ids) == 11
    assert len(finish(engine)) == 2


@pytest.mark.parametrize("deterministic", [False, True])
def test_fourfold_overload_stays_within_the_budget_and_nothing_fails(deterministic: bool) -> None:
    model = twin()
    decoder = decoder_of(model)
    asked = [
        request(i, prompt_of(i // 2, 20 + i // 2), max_new_tokens=60, min_new_tokens=60)
        for i in range(16)
    ]
    block = 2 * 3 * 16 * 16 * 4  # keys and values, layers, features, tokens, bytes
    assert budget(decoder, 1) == block
    wanted_blocks = 16 * 4 + 8 * 2
    engine = engine_of(
        decoder, kv_cache_bytes=budget(decoder, wanted_blocks // 4), deterministic=deterministic
    )
    for one in asked:
        engine.submit(one)
    done = finish(engine)
    stats = engine.stats()
    assert sorted(done) == sorted(one.id for one in asked)
    assert stats.num_preemptions > 0
    assert stats.recomputed_tokens > 0
    assert stats.peak_cache_bytes <= wanted_blocks // 4 * block
    assert stats.cache_bytes == block  # the null block alone
    for one in asked:
        made = done[one.id]
        assert len(made.token_ids) == 60
        np.testing.assert_allclose(
            made.generator_logprobs, oracle_logprobs(model, one, made), atol=1e-4
        )


def test_preemption_changes_no_token_of_a_float32_request() -> None:
    decoder = decoder_of(twin())
    asked = [request(i, prompt_of(i, 20), max_new_tokens=50) for i in range(6)]
    results = []
    for blocks in (200, 8):
        engine = engine_of(decoder, kv_cache_bytes=budget(decoder, blocks))
        for one in asked:
            engine.submit(one)
        results.append(finish(engine))
        assert (engine.stats().num_preemptions > 0) == (blocks == 8)
    for one in asked:
        assert results[0][one.id].token_ids.tolist() == results[1][one.id].token_ids.tolist()


def test_a_request_that_can_never_fit_is_refused_with_the_fix() -> None:
    decoder = decoder_of(twin())
    engine = engine_of(decoder, kv_cache_bytes=budget(decoder, 6))
    with pytest.raises(ConfigError, match=r"request r7: .*generator\.kv_cache_bytes"):
        engine.submit(request(7, prompt_of(0, 40), max_new_tokens=60))
    with pytest.raises(ConfigError, match="512 positions"):
        engine.submit(request(8, prompt_of(0, 40), max_new_tokens=500))
    with pytest.raises(DataError, match="no tokens"):
        engine.submit(request(9, ()))
    with pytest.raises(DataError, match="token 97"):
        engine.submit(request(10, (1, VOCAB_SIZE)))
    with pytest.raises(ConfigError, match="max_new_tokens is 0"):
        engine.submit(request(11, (1,), max_new_tokens=0))
    with pytest.raises(ConfigError, match="stop strings"):
        engine.submit(request(12, (1,), stop_strings=("x",)))
    assert not engine.has_work
    engine.submit(request(13, prompt_of(0, 40), max_new_tokens=33))  # 3 + 2 blocks: all there are
    assert len(finish(engine)["r13"].token_ids) == 33


def text_of(token_ids) -> str:
    return "".join(chr(97 + t % 26) for t in token_ids)


def test_stop_tokens_stop_strings_and_length_limits() -> None:
    engine = engine_of(decoder_of(twin()), decode=text_of)
    prompt = prompt_of(1, 12)
    engine.submit(request(0, prompt, seed=5, max_new_tokens=40))
    free = finish(engine)["r0"].token_ids.tolist()
    stop = free[9]
    first = free.index(stop)
    again = free.index(stop, first + 1) if stop in free[first + 1 :] else None
    engine.submit(request(1, prompt, seed=5, max_new_tokens=40, stop_token_ids=(stop,)))
    made = finish(engine)["r1"]
    assert (made.token_ids.tolist(), made.finish_reason) == (free[: first + 1], "stop")
    engine.submit(
        request(
            2, prompt, seed=5, max_new_tokens=40, stop_token_ids=(stop,), min_new_tokens=first + 2
        )
    )
    made = finish(engine)["r2"]
    assert made.token_ids.tolist() == (free if again is None else free[: again + 1])
    string = text_of(free)[4:8]
    ends = text_of(free).index(string) + 4
    engine.submit(request(3, prompt, seed=5, max_new_tokens=40, stop_strings=("never!", string)))
    made = finish(engine)["r3"]
    assert (made.token_ids.tolist(), made.finish_reason) == (free[:ends], "stop")
    engine.submit(
        request(4, prompt, seed=5, max_new_tokens=40, min_new_tokens=40, stop_token_ids=tuple(free))
    )
    made = finish(engine)["r4"]
    assert (made.token_ids.tolist(), made.finish_reason) == (free, "stop")


def test_new_weights_in_flight_make_the_tokens_after_them() -> None:
    old, new = twin(seed=0), twin(seed=1)
    engine = engine_of(decoder_of(old), version=3)
    asked = [request(i, prompt_of(i // 2, 20), max_new_tokens=30) for i in range(4)]
    running = [engine.submit(one) for one in asked]
    while len(running[0].token_ids) < 12:
        engine.step()
    engine.load_weights(export_hf_state(decoder_of(new)), 4)
    done = finish(engine)
    assert engine.policy_version == 4
    for one in asked:
        made = done[one.id]
        assert [(s.start, s.stop, s.policy_version) for s in made.version_spans] == [
            (0, 12, 3),
            (12, 30, 4),
        ]
        np.testing.assert_allclose(
            made.generator_logprobs[:12], oracle_logprobs(old, one, made)[:12], atol=1e-4
        )
        np.testing.assert_allclose(
            made.generator_logprobs[12:], oracle_logprobs(new, one, made)[12:], atol=1e-4
        )
    assert engine.stats().prefill_tokens == 40
    assert engine.stats().recomputed_tokens == 40 + 4 * 11


def test_weights_load_whole_or_not_at_all() -> None:
    engine = engine_of(decoder_of(twin(seed=0)))
    assert engine.decoder is not None
    before = engine.decoder.digest()
    weights = export_hf_state(decoder_of(twin(seed=1)))
    broken = dict(weights)
    broken["model.layers.2.mlp.down_proj.weight"] = torch.zeros(3, 3)
    with pytest.raises(ModelError, match=r"model\.layers\.2\.mlp\.down_proj\.weight"):
        engine.load_weights(broken, 9)
    broken.pop("model.layers.2.mlp.down_proj.weight")
    with pytest.raises(ModelError, match="missing"):
        engine.load_weights(broken, 9)
    assert (engine.decoder.digest(), engine.policy_version) == (before, 0)


def test_the_callers_tensors_may_change_after_a_load() -> None:
    decoder = decoder_of(twin())
    engine = engine_of(decoder)
    assert engine.decoder is not None
    before = engine.decoder.digest()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(1.0)
    assert engine.decoder.digest() == before


def test_broken_weights_name_request_and_version() -> None:
    decoder = decoder_of(twin())
    with torch.no_grad():
        decoder.final_norm.weight.fill_(float("nan"))
    engine = engine_of(decoder, version=5)
    engine.submit(request(0, (1, 2, 3)))
    with pytest.raises(NonFiniteError, match=r"request r0: .*policy version 5"):
        finish(engine)


def test_time_is_booked_as_prefill_decode_and_sample_with_their_tokens() -> None:
    books = Books.in_memory()
    engine = engine_of(decoder_of(twin()), books=books)
    with books.lane("main").step(1, 0):
        for i in range(3):
            engine.submit(request(i, prompt_of(0, 10), max_new_tokens=4))
        finish(engine)
    spans = books.lane("main").last_step
    counted = {
        name: sum(span.counts.get("tokens", 0) for span in spans if span.name == name)
        for name in ("prefill", "decode", "sample")
    }
    assert counted == {"prefill": 10, "decode": 9, "sample": 12}
    assert {span.state for span in spans} == {"compute"}
