"""The engine as an asyncio role."""

from __future__ import annotations

import asyncio

import pytest
import torch
from tiny_model import decoder_of, placement, prompt_of, request, twin

from rledger.books import Books
from rledger.config.generator import GeneratorConfig
from rledger.errors import RLedgerError
from rledger.generator import build_generator
from rledger.generator.native import NativeGenerator
from rledger.models.checkpoint import save_decoder
from rledger.models.digest import weights_digest
from rledger.models.names import export_hf_state


def native(**config: int) -> NativeGenerator:
    return build_generator(
        GeneratorConfig(kv_cache_bytes=2**22, **config),
        decoder_of(twin()),
        placement=placement(),
        lane=Books.in_memory().lane("main"),
    )


def test_generate_returns_at_once_and_others_run_between_decode_steps() -> None:
    async def main() -> None:
        generator = native()
        outcome = generator.generate(request(0, prompt_of(0, 5), max_new_tokens=30))
        assert generator.stats().generated_tokens == 0
        turns = 0
        future = asyncio.ensure_future(outcome)
        while not future.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 30
        assert len((await future).token_ids) == 30

    asyncio.run(main())


def test_requests_made_together_share_every_decode_step() -> None:
    async def main() -> None:
        generator = native()
        asked = [request(i, prompt_of(i, 4), max_new_tokens=9, min_new_tokens=9) for i in range(12)]
        done = await asyncio.gather(*(generator.generate(one) for one in asked))
        assert [c.request_id for c in done] == [one.id for one in asked]
        assert generator.stats().num_decode_steps == 9
        # a second wave starts a new pump
        await asyncio.gather(*(generator.generate(one) for one in asked))
        assert generator.stats().num_decode_steps == 18
        assert generator.stats().num_finished == 24

    asyncio.run(main())


def test_a_cancelled_request_frees_its_place() -> None:
    async def main() -> None:
        generator = native(max_running_requests=1)
        first = asyncio.ensure_future(
            generator.generate(request(0, prompt_of(0, 5), max_new_tokens=400))
        )
        second = asyncio.ensure_future(
            generator.generate(request(1, prompt_of(1, 5), max_new_tokens=3))
        )
        for _ in range(10):
            await asyncio.sleep(0)
        assert not second.done()
        first.cancel()
        assert len((await second).token_ids) == 3
        stats = generator.stats()
        assert (stats.num_aborted, stats.num_finished, stats.num_running) == (1, 1, 0)
        assert stats.cache_bytes == 6144  # the null block alone

    asyncio.run(main())


def test_weights_change_between_two_tokens_of_a_running_request() -> None:
    async def main() -> None:
        generator = native()
        running = asyncio.ensure_future(
            generator.generate(request(0, prompt_of(0, 5), max_new_tokens=20))
        )
        for _ in range(6):
            await asyncio.sleep(0)
        await generator.load_weights(export_hf_state(decoder_of(twin(seed=1))), 1)
        spans = (await running).version_spans
        assert [s.policy_version for s in spans] == [0, 1]
        assert (spans[0].start, spans[1].stop) == (0, 20)
        assert 0 < spans[0].stop == spans[1].start < 20

    asyncio.run(main())


def test_an_error_of_the_engine_reaches_everybody_who_waits() -> None:
    async def main() -> None:
        generator = native()
        weights = export_hf_state(decoder_of(twin()))
        weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], float("nan"))
        await generator.load_weights(weights, 1)
        both = [generator.generate(request(i, (1, 2))) for i in range(2)]
        found = await asyncio.gather(*both, return_exceptions=True)
        assert [type(e).__name__ for e in found] == ["NonFiniteError"] * 2
        await generator.load_weights(export_hf_state(decoder_of(twin())), 2)
        assert len((await generator.generate(request(3, (1, 2)))).token_ids) == 8

    asyncio.run(main())


def test_a_folder_gives_the_shape_and_the_trainer_the_weights(tmp_path) -> None:
    decoder = decoder_of(twin())
    save_decoder(decoder, tmp_path / "model")

    async def main() -> None:
        generator = build_generator(
            GeneratorConfig(kv_cache_bytes=2**22),
            tmp_path / "model",
            placement=placement(),
            lane=Books.in_memory().lane("main"),
        )
        with pytest.raises(RLedgerError, match="no weights yet"):
            generator.generate(request(0, (1, 2)))
        await generator.load_weights(export_hf_state(decoder), 7)
        assert generator.policy_version == 7
        assert generator.weights_digest() == weights_digest(export_hf_state(decoder))
        assert len((await generator.generate(request(0, (1, 2)))).token_ids) == 8

    asyncio.run(main())
