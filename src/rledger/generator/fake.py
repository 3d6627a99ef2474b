"""A generator without a model: lengths, tokens and latencies are functions of a request's seed.

Time passes on the injected clock only, and nothing here imports torch, so that a simulation starts at
once and its thousand steps take seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rledger.errors import ConfigError, DataError, RLedgerError
from rledger.generator.uniform import uniform
from rledger.interfaces import Clock
from rledger.types import Completion, FinishReason, GenerationRequest, VersionSpan

__all__ = ["FakeGenerator", "GenerationPace", "numpy_digest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPace:
    """How long the fake takes; requests do not slow each other down."""

    prefill_s_per_token: float = 1e-4
    decode_s_per_token: float = 0.01
    load_weights_s: float = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    future: asyncio.Future[Completion]
    task: asyncio.Task[None]


class FakeGenerator:
    """The Generator role in virtual time.

    A request's tokens and log-probabilities are functions of its seed (at temperature 0 of its
    prompt); `mean_length_frac` of `max_new_tokens` is the mean length. A completion that ends early
    ends with the first stop token, if the request has one.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        pace: GenerationPace | None = None,
        vocab_size: int = 1000,
        mean_length_frac: float = 0.5,
    ) -> None:
        self._clock = clock
        self._pace = pace or GenerationPace()
        self._vocab_size = vocab_size
        self._mean_length_frac = mean_length_frac
        self._versions: list[tuple[float, int]] = [(-np.inf, 0)]  # (from when, version)
        self._digest = hashlib.sha256().hexdigest()  # of no weights
        self._pending: set[_Pending] = set()
        self._closed = False

    @property
    def policy_version(self) -> int:
        return self._versions[-1][1]

    @property
    def closed(self) -> bool:
        return self._closed

    def generate(self, request: GenerationRequest) -> Awaitable[Completion]:
        """As `Generator.generate`. Raises a UserError for a request that no generator could serve."""
        if self._closed:
            raise RLedgerError(f"request {request.id}: the generator is closed.")
        if request.sampling.max_new_tokens < 1:
            raise ConfigError(f"request {request.id}: max_new_tokens must be at least 1.")
        if not request.prompt_token_ids:
            raise DataError(f"request {request.id}: its prompt has no tokens. Remove the row.")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        pending = _Pending(future, loop.create_task(self._run(request, future)))
        self._pending.add(pending)
        future.add_done_callback(lambda _: self._forget(pending))
        return future

    async def load_weights(self, weights: Mapping[str, Any], policy_version: int) -> None:
        """Tokens from the end of the load on carry the new version. Weights are numpy arrays."""
        await self._clock.sleep(self._pace.load_weights_s)
        self._digest = numpy_digest(weights)
        self._versions.append((self._clock.now_s(), policy_version))

    def weights_digest(self) -> str:
        """SHA-256 over names, dtypes, shapes and bytes, by name, as the fake trainer's."""
        return self._digest

    async def close(self) -> None:
        self._closed = True
        for pending in tuple(self._pending):
            pending.task.cancel()
            if not pending.future.done():
                pending.future.set_exception(
                    RLedgerError("the generator was closed before the request was finished.")
                )

    def _forget(self, pending: _Pending) -> None:
        pending.task.cancel()
        self._pending.discard(pending)

    async def _run(self, request: GenerationRequest, future: asyncio.Future[Completion]) -> None:
        start_s = self._clock.now_s()
        start_s += self._pace.prefill_s_per_token * len(request.prompt_token_ids)
        token_ids, logprobs, reason = self._draw(request)
        end_s = start_s + self._pace.decode_s_per_token * len(token_ids)
        await self._clock.sleep(end_s - self._clock.now_s())
        if not future.done():
            future.set_result(
                Completion(
                    request_id=request.id,
                    token_ids=token_ids,
                    sampled_logprobs=logprobs,
                    generator_logprobs=logprobs.copy(),
                    version_spans=self._spans(start_s, len(token_ids)),
                    finish_reason=reason,
                )
            )

    def _draw(
        self, request: GenerationRequest
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], FinishReason]:
        params = request.sampling
        seed = request.seed
        if params.temperature == 0:
            prompt = np.array(request.prompt_token_ids, np.int64).tobytes()
            seed = int.from_bytes(hashlib.blake2b(prompt, digest_size=8).digest(), "big")
        # uniform on 1 .. 2 * mean, cut at the limit
        wanted = 1 + int(2 * self._mean_length_frac * params.max_new_tokens * uniform(seed, 0))
        length = min(max(wanted, params.min_new_tokens, 1), params.max_new_tokens)
        source = np.random.Generator(np.random.Philox(seed & (2**64 - 1)))
        token_ids = source.integers(1, self._vocab_size, length, dtype=np.int32)
        logprobs = -source.exponential(1.0, length).astype(np.float32)
        for stop in params.stop_token_ids:
            token_ids[token_ids == stop] = 1 if stop != 1 else 2
        if length == params.max_new_tokens:
            return token_ids, logprobs, "length"
        if params.stop_token_ids:
            token_ids[-1] = params.stop_token_ids[0]
        return token_ids, logprobs, "stop"

    def _spans(self, start_s: float, num_tokens: int) -> tuple[VersionSpan, ...]:
        """Which version made which token: the i-th ends i + 1 paces after the start."""
        ends_s = start_s + self._pace.decode_s_per_token * np.arange(1, num_tokens + 1)
        times_s = [time_s for time_s, _ in self._versions]
        made_by = np.searchsorted(times_s, ends_s, side="left") - 1
        spans = []
        for index in np.unique(made_by):
            own = np.flatnonzero(made_by == index)
            spans.append(
                VersionSpan(
                    start=int(own[0]),
                    stop=int(own[-1]) + 1,
                    policy_version=self._versions[index][1],
                )
            )
        return tuple(spans)


def numpy_digest(weights: Mapping[str, Any]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of arrays, by name."""
    digest = hashlib.sha256()
    for name, array in sorted(weights.items()):
        array = np.asarray(array)
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
