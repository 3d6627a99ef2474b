"""The native engine as a role: `rledger.interfaces.Generator` on the loop's own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

from rledger.errors import RLedgerError
from rledger.generator.engine import Engine
from rledger.generator.sequences import Sequence
from rledger.generator.stats import GeneratorStats
from rledger.types import Completion, GenerationRequest

__all__ = ["NativeGenerator"]


class NativeGenerator:
    """Pumps an engine from a task of the running event loop: one forward pass, then others' turn.

    Weights change only between two passes, hence at a token boundary; running requests go on with
    the new ones, and what of them is cached is computed again, so no token ever comes from a
    mixture of versions.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: dict[Sequence, asyncio.Future[Completion]] = {}
        self._pump: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def policy_version(self) -> int:
        return self._engine.policy_version

    def generate(self, request: GenerationRequest) -> Awaitable[Completion]:
        """Admit a request; must be called on a running event loop.

        Raises a UserError at once when the request can never be served. Cancelling the result, or
        the task that awaits it, frees what the request holds.
        """
        if self._closed:
            raise RLedgerError(f"request {request.id}: the generator is closed.")
        loop = asyncio.get_running_loop()
        sequence = self._engine.submit(request)
        future = self._pending[sequence] = loop.create_future()
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        return future

    async def load_weights(self, weights: Mapping[str, Any], policy_version: int) -> None:
        """Take whole weights (Hugging Face names, torch tensors); the caller's may change afterwards."""
        if self._closed:
            raise RLedgerError("load_weights: the generator is closed.")
        self._engine.load_weights(weights, policy_version)

    def weights_digest(self) -> str:
        """Digest of the weights that compute, unpacked from their kernels' layout."""
        if self._engine.decoder is None:
            raise RLedgerError("the generator has no weights yet: call load_weights first.")
        return self._engine.decoder.digest()

    def stats(self) -> GeneratorStats:
        """Counters of the engine."""
        return self._engine.stats()

    async def close(self) -> None:
        """Fail whatever is pending and free the weights and the cache."""
        if self._closed:
            return
        self._closed = True
        if self._pump is not None and not self._pump.done():
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)
        self._fail(RLedgerError("the generator was closed before the request was finished."))
        self._engine.free()

    async def _run(self) -> None:
        """Step the engine until it has nothing to do."""
        try:
            while self._pending:
                self._drop_cancelled()
                for sequence in self._engine.step() if self._pending else ():
                    self._pending.pop(sequence).set_result(sequence.completion())
                await asyncio.sleep(0)
        except Exception as error:  # whoever awaits a completion gets it
            self._fail(error)

    def _drop_cancelled(self) -> None:
        for sequence in [s for s, future in self._pending.items() if future.done()]:
            del self._pending[sequence]
            self._engine.abort(sequence)

    def _fail(self, error: Exception) -> None:
        pending, self._pending = self._pending, {}
        for sequence, future in pending.items():
            self._engine.abort(sequence)
            if not future.done():
                future.set_exception(error)
