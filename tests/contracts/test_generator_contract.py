"""What every generator promises: one suite for the native engine and the fake."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from rledger.books import Books
from rledger.config.generator import GeneratorConfig
from rledger.errors import RLedgerError, UserError
from rledger.generator import build_generator
from rledger.generator.fake import FakeGenerator, numpy_digest
from rledger.interfaces import Generator
from rledger.models.digest import weights_digest
from rledger.models.init import random_decoder
from rledger.models.names import export_hf_state
from rledger.models.placement import Placement
from rledger.modelspec import ModelSpec
from rledger.types import Completion, GenerationRequest, SamplingParams

VOCAB_SIZE = 61
SPEC = ModelSpec(
    family="llama",
    vocab_size=VOCAB_SIZE,
    width=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=8,
    ffn_width=48,
    max_positions=256,
    tied_embeddings=True,
)


class TurnsClock:
    """Time that passes a millisecond each time the event loop comes round."""

    def __init__(self) -> None:
        self._turns = 0

    def now_s(self) -> float:
        return self._turns / 1000

    async def sleep(self, seconds: float) -> None:
        end_s = self.now_s() + seconds
        while self.now_s() < end_s:
            self._turns += 1
            await asyncio.sleep(0)


@dataclass(frozen=True)
class Kind:
    make: Callable[[], Generator]
    weights: Callable[[int], dict[str, Any]]
    digest: Callable[[dict[str, Any]], str]


def _native(deterministic: bool) -> Kind:
    def weights(seed: int) -> dict[str, Any]:
        return export_hf_state(random_decoder(SPEC, seed))

    def make() -> Generator:
        return build_generator(
            GeneratorConfig(max_running_requests=8, kv_cache_bytes=2**21),
            random_decoder(SPEC, 0),
            placement=Placement(torch.device("cpu"), torch.float32, 1),
            lane=Books.in_memory().lane("main"),
            deterministic=deterministic,
        )

    return Kind(make, weights, weights_digest)


KINDS = {
    "native": _native(False),
    "native deterministic": _native(True),
    "fake": Kind(
        lambda: FakeGenerator(TurnsClock(), vocab_size=VOCAB_SIZE),
        lambda seed: {"w": np.full(3, seed, np.float32)},
        numpy_digest,
    ),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def ask(number: int, **sampling: Any) -> GenerationRequest:
    sampling.setdefault("max_new_tokens", 12)
    return GenerationRequest(
        id=f"r{number}",
        group_id=f"g{number // 4}",
        prompt_token_ids=tuple(range(1, 3 + number // 4)),
        sampling=SamplingParams(**sampling),
        seed=1000 + number,
    )


def run(kind: Kind, body: Callable[[Generator], Awaitable[None]]) -> None:
    async def main() -> None:
        generator = kind.make()
        try:
            await body(generator)
        finally:
            await generator.close()

    asyncio.run(asyncio.wait_for(main(), timeout=60))


def same(a: Completion, b: Completion) -> bool:
    return (
        np.array_equal(a.token_ids, b.token_ids)
        and np.array_equal(a.generator_logprobs, b.generator_logprobs)
        and a.finish_reason == b.finish_reason
    )


def test_is_a_generator(kind: Kind) -> None:
    async def body(generator: Generator) -> None:
        assert isinstance(generator, Generator)
        assert generator.policy_version == 0

    run(kind, body)


def test_completions_are_whole_and_versions_cover_them(kind: Kind) -> None:
    async def body(generator: Generator) -> None:
        asked = [ask(i, max_new_tokens=1 + i, stop_token_ids=(0, 5)) for i in range(20)]
        done = await asyncio.gather(*(generator.generate(one) for one in asked))
        for one, made in zip(asked, done, strict=True):
            count = len(made.token_ids)
            assert made.request_id == one.id
            assert 1 <= count <= one.sampling.max_new_tokens
            assert made.token_ids.dtype == np.int32
            assert ((made.token_ids >= 0) & (made.token_ids < VOCAB_SIZE)).all()
            for column in (made.sampled_logprobs, made.generator_logprobs):
                assert column.dtype == np.float32
                assert column.shape == (count,)
                assert (column <= 0).all()
            assert not set(made.token_ids[:-1].tolist()) & {0, 5}
            stopped = made.token_ids[-1] in (0, 5)
            assert made.finish_reason == ("stop" if stopped else "length")
            assert stopped or count == one.sampling.max_new_tokens
            assert made.version_spans[0].start == 0
            assert made.version_spans[-1].stop == count
        assert {made.finish_reason for made in done} == {"stop", "length"}

    run(kind, body)


def test_equal_minimum_and_maximum_force_the_length(kind: Kind) -> None:
    async def body(generator: Generator) -> None:
        asked = [
            ask(i, max_new_tokens=9, min_new_tokens=9, stop_token_ids=tuple(range(30)))
            for i in range(8)
        ]
        done = await asyncio.gather(*(generator.generate(one) for one in asked))
        assert [len(made.token_ids) for made in done] == [9] * 8

    run(kind, body)


def test_the_seed_decides_and_greedy_ignores_it(kind: Kind) -> None:
    async def body(generator: Generator) -> None:
        first, again = await generator.generate(ask(0)), await generator.generate(ask(0))
        assert same(first, again)
        other = await generator.generate(replace(ask(0), seed=7))
        assert not np.array_equal(other.token_ids, first.token_ids)
        greedy = [
            await generator.generate(replace(ask(0, temperature=0.0), seed=seed)) for seed in (1, 2)
        ]
        assert same(*greedy)

    run(kind, body)


def test_weights_carry_version_and_digest(kind: Kind) -> None:
    async def body(generator: Generator) -> None:
        weights = kind.weights(3)
        await generator.load_weights(weights, 4)
        assert generator.policy_version == 4
        assert generator.weights_digest() == kind.digest(weights)
        made = await generator.generate(ask(0))
        assert {span.policy_version for span in made.version_spans} == {4}
        await generator.load_weights(kind.weights(8), 5)
        assert generator.weights_digest() == kind.digest(kind.weights(8)) != kind.digest(weights)

    run(kind, body)


def test_a_load_in_flight_splits_versions_at_a_token(kind: Kind) -> None:
    async def body(generator: Generator) -> None:
        running = [
            asyncio.ensure_future(
                generator.generate(ask(i, max_new_tokens=150, min_new_tokens=150))
            )
            for i in range(3)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        await generator.load_weights(kind.weights(2), 1)
        for future in running:
            made = await future
            assert [span.policy_version for span in made.version_spans] == [0, 1]
            first, second = made.version_spans
            assert 0 == first.start < first.stop == second.start < second.stop == 150

    run(kind, body)


def test_impossible_requests_are_refused_by_name(kind: Kind) -> None:
    async def body(generator: Generator) -> None:
        for bad in (ask(3, max_new_tokens=0), replace(ask(3), prompt_token_ids=())):
            with pytest.raises(UserError, match="r3"):
                await generator.generate(bad)
        assert len((await generator.generate(ask(0, min_new_tokens=12))).token_ids) == 12

    run(kind, body)


def test_close_fails_what_is_pending_and_may_be_called_twice(kind: Kind) -> None:
    async def body(generator: Generator) -> None:
        pending = [
            asyncio.ensure_future(generator.generate(ask(i, max_new_tokens=200))) for i in range(3)
        ]
        await asyncio.sleep(0)
        await generator.close()
        await generator.close()
        for future in pending:
            with pytest.raises(RLedgerError, match="closed"):
                await future
        with pytest.raises(RLedgerError, match="closed"):
            await generator.generate(ask(9))

    run(kind, body)


def test_the_fake_imports_no_torch() -> None:
    program = "import sys, rledger.generator.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
