"""deterministic = true: a request's bits depend on weights, prompt, sampling and seed alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_model import budget, decoder_of, engine_of, finish, prompt_of, request, twin

from rledger.generator.sampling import Sampler
from rledger.models import inference
from rledger.models.inference import InferenceDecoder
from rledger.models.init import random_decoder
from rledger.models.names import export_hf_state
from rledger.types import Completion, GenerationRequest

SAMPLINGS = (
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 20, "min_p": 0.02},
    {"temperature": 0.0},
)


def asked() -> list[GenerationRequest]:
    """Prompts from one token to more than two tiles, in groups, with every kind of sampling."""
    return [
        request(
            i,
            prompt_of(i // 2, 1 + 43 * (i // 2)),
            max_new_tokens=40 + 3 * i,
            min_new_tokens=40,
            **SAMPLINGS[i % 4],
        )
        for i in range(14)
    ]


def bits(made: Completion) -> tuple[str, ...]:
    return (
        made.token_ids.tobytes().hex(),
        made.sampled_logprobs.tobytes().hex(),
        made.generator_logprobs.tobytes().hex(),
    )


def run(
    dtype: torch.dtype, threads: int, family: str, order: list[int], num_blocks: int | None = None
) -> dict[str, tuple[str, ...]]:
    decoder = decoder_of(twin(family), dtype)
    memory = {} if num_blocks is None else {"kv_cache_bytes": budget(decoder, num_blocks)}
    made = engine_of(decoder, deterministic=True, threads=threads, **memory)
    for i in order:
        made.submit(asked()[i])
    done = finish(made)
    assert (made.stats().num_preemptions > 0) == (num_blocks is not None)
    return {name: bits(completion) for name, completion in done.items()}


def test_only_without_it_neighbours_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On matmuls whose rows do depend on their number (torch's plain ones, in float32)."""
    monkeypatch.setattr(inference, "_can_pack", lambda device, dtype: False)
    decoder = decoder_of(twin("llama"))
    same = {}
    for deterministic in (False, True):
        found = []
        for orders in ([range(14)], [(i,) for i in range(14)]):
            bits_of = {}
            for order in orders:
                engine = engine_of(decoder, deterministic=deterministic)
                for i in order:
                    engine.submit(asked()[i])
                bits_of.update((name, bits(c)) for name, c in finish(engine).items())
            found.append(bits_of)
        same[deterministic] = found[0] == found[1]
    assert same == {False: False, True: True}


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_alone_in_a_full_batch_in_another_order_and_preempted_are_equal_bits(
    family: str, dtype: torch.dtype, threads: int
) -> None:
    def go(order: list[int], num_blocks: int | None = None) -> dict[str, tuple[str, ...]]:
        return run(dtype, threads, family, order, num_blocks)

    full = go(list(range(14)))
    assert len({b[0] for b in full.values()}) == 14
    assert go(list(reversed(range(14)))) == full
    assert go(list(range(14)), num_blocks=27) == full
    for i in (0, 5, 13):
        assert go([i]) == {f"r{i}": full[f"r{i}"]}


def test_arrival_in_flight_changes_no_bit() -> None:
    full = run(torch.bfloat16, 1, "llama", list(range(14)))
    engine = engine_of(decoder_of(twin("llama"), torch.bfloat16), deterministic=True, max_running=5)
    done: dict[str, tuple[str, ...]] = {}
    for i, one in enumerate(asked()):
        engine.submit(one)
        for _ in range(3 * i):
            done.update((s.request.id, bits(s.completion())) for s in engine.step())
    done.update((name, bits(c)) for name, c in finish(engine).items())
    assert done == full


def test_a_fresh_process_gives_equal_bits() -> None:
    """What a run that was killed does when it resumes: another process asks again."""
    program = (
        "import sys, json, torch; sys.path.insert(0, sys.argv[1])\n"
        "from test_deterministic import run\n"
        "print(json.dumps(run(torch.bfloat16, 1, 'llama', [9, 2, 11])))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    full = run(torch.bfloat16, 1, "llama", list(range(14)))
    fresh = {name: tuple(b) for name, b in json.loads(out).items()}
    assert fresh == {name: full[name] for name in ("r2", "r9", "r11")}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_the_real_shapes_may_change_places(dtype: torch.dtype, threads: int) -> None:
    """One layer of SmolLM2's shape, and a vocabulary that fills no vector: matmuls, norms, sampling."""
    torch.set_num_threads(threads)
    spec = decoder_of(twin("llama")).spec

    spec = replace(
        spec,
        vocab_size=5003,
        width=576,
        num_layers=1,
        num_heads=9,
        num_kv_heads=3,
        head_size=64,
        ffn_width=1536,
    )
    source = random_decoder(spec, 0, dtype=dtype)
    decoder = InferenceDecoder(
        spec, export_hf_state(source), dtype=dtype, device=torch.device("cpu"), row_invariant=True
    )
    rows = 32 * threads
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(1))
    ids, positions = torch.arange(rows) * 31, torch.arange(rows)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q + v.repeat_interleave(3, 1)

    sampler = Sampler(spec.vocab_size, torch.device("cpu"))
    with torch.inference_mode():
        hidden = decoder.forward_hidden(ids, positions, attend)
        logits = 30 * decoder.logits(hidden)
        moved = decoder.forward_hidden(ids[order], positions[order], attend)
        assert torch.equal(moved, hidden[order])
        assert torch.equal(30 * decoder.logits(moved), logits[order])
        params = [r.sampling for r in asked()] * 5
        points = [i / 64 for i in range(64)]
        here = sampler.draw(logits, params[:rows], points[:rows])
        there = sampler.draw(
            logits[order],
            [params[i] for i in order.tolist()],
            [points[i] for i in order.tolist()],
        )
    assert there.token_ids == [here.token_ids[i] for i in order.tolist()]
    assert there.generator_logprobs == [here.generator_logprobs[i] for i in order.tolist()]
    assert there.sampled_logprobs == [here.sampled_logprobs[i] for i in order.tolist()]
