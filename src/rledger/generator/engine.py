"""The native engine without its asyncio: requests in, one forward pass a `step`, completions out.

Legend for shapes: T tokens of a pass, R rows of a deterministic pass, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rledger.books import Lane
from rledger.config.generator import GeneratorConfig
from rledger.errors import ConfigError, DataError, NonFiniteError, RLedgerError
from rledger.generator.attention import CacheAttention, PaddedAttention, RowSet, TiledAttention
from rledger.generator.blocks import BLOCK_TOKENS
from rledger.generator.kv_cache import KVCache
from rledger.generator.sampling import Sampler
from rledger.generator.scheduler import Scheduler
from rledger.generator.sequences import Piece
from rledger.generator.sequences import Sequence as Running
from rledger.generator.stats import GeneratorStats
from rledger.generator.stops import finish_reason
from rledger.generator.uniform import uniform
from rledger.models.inference import InferenceDecoder
from rledger.models.placement import Placement
from rledger.modelspec import ModelSpec
from rledger.types import GenerationRequest

__all__ = ["Engine"]

Decode = Callable[[Sequence[int]], str]
VECTOR = 32  # elements of torch's widest CPU vector


@dataclass(slots=True)
class _Counts:
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    decode_steps: int = 0
    finished: int = 0
    aborted: int = 0


class Engine:
    """Continuous batching over one decoder. Not safe for use from two threads.

    `decode` turns token ids into text; only stop strings need it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: GeneratorConfig,
        *,
        placement: Placement,
        lane: Lane,
        decode: Decode | None = None,
        deterministic: bool = False,
    ) -> None:
        self.spec = spec
        self.policy_version = 0
        self.decoder: InferenceDecoder | None = None
        self._config = config
        self._placement = placement
        self._lane = lane
        self._decode = decode
        # Threads share out elementwise work by rows * features; whole vectors each, or a tail is
        # computed by other instructions than the rest.
        unit = VECTOR * placement.threads
        rows = -(-config.max_running_requests // unit) * unit
        self._fixed_rows = rows if deterministic else None
        self._cache = KVCache(
            spec,
            dtype=placement.compute_dtype,
            device=placement.device,
            budget_bytes=config.kv_cache_bytes,
        )
        self._scheduler = Scheduler(self._cache.pool, max_running=config.max_running_requests)
        self._sampler = Sampler(spec.vocab_size, placement.device)
        self._counts = _Counts()

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.running or self._scheduler.waiting)

    def stats(self) -> GeneratorStats:
        counts, scheduler, cache = self._counts, self._scheduler, self._cache
        return GeneratorStats(
            prefill_tokens=counts.prefill_tokens,
            recomputed_tokens=counts.recomputed_tokens,
            generated_tokens=counts.generated_tokens,
            num_decode_steps=counts.decode_steps,
            num_preemptions=scheduler.num_preemptions,
            num_finished=counts.finished,
            num_aborted=counts.aborted,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            cache_bytes=cache.used_bytes,
            peak_cache_bytes=cache.peak_bytes,
            cache_budget_bytes=cache.budget_bytes,
        )

    def load_weights(self, weights: Mapping[str, Tensor], policy_version: int) -> None:
        """Serve other weights from the next token on. All cached keys and values are computed again.

        Raises ModelError, with the old weights still served, when a tensor is missing or misshapen.
        """
        self._placement.apply_threads()
        with torch.inference_mode():
            decoder = InferenceDecoder(
                self.spec,
                weights,
                dtype=self._placement.compute_dtype,
                device=self._placement.device,
                rows_hint=self._fixed_rows or min(self._config.max_running_requests, 64),
                row_invariant=self._fixed_rows is not None,
            )
        self.decoder = decoder
        self.policy_version = policy_version
        self._scheduler.invalidate()

    def submit(self, request: GenerationRequest) -> Running:
        """Queue a request. Raises a UserError when it can never be served."""
        if self.decoder is None:
            raise RLedgerError("the generator has no weights yet: call load_weights first.")
        params = request.sampling
        if params.max_new_tokens < 1:
            raise ConfigError(
                f"request {request.id}: max_new_tokens is {params.max_new_tokens}; ask for at least 1."
            )
        if params.stop_strings and self._decode is None:
            raise ConfigError(
                f"request {request.id}: stop strings need a decoder of tokens; build the generator with one."
            )
        wanted = len(request.prompt_token_ids) + params.max_new_tokens
        if wanted > self.spec.max_positions:
            raise ConfigError(
                f"request {request.id}: {len(request.prompt_token_ids)} prompt tokens and"
                f" {params.max_new_tokens} new ones exceed the model's {self.spec.max_positions} positions."
                " Lower sampling.max_new_tokens or the prompt's length."
            )
        for token_id in set(request.prompt_token_ids):
            if not 0 <= token_id < self.spec.vocab_size:
                raise DataError(
                    f"request {request.id}: token {token_id} of its prompt is not in the vocabulary of"
                    f" {self.spec.vocab_size}. Use the model's own tokenizer."
                )
        return self._scheduler.submit(request)

    def abort(self, sequence: Running) -> None:
        """Forget a request that nobody waits for any more."""
        self._scheduler.finish(sequence)
        self._counts.aborted += 1

    def free(self) -> None:
        """Let weights and cache go; the engine cannot be used afterwards."""
        self.decoder = None
        self._cache.layers.clear()

    def step(self) -> list[Running]:
        """One forward pass: of prompts if any are to be computed, else one token for each running request.

        Returns the sequences that it finished. Raises NonFiniteError, naming the request, when
        logits are not finite.
        """
        self._placement.apply_threads()
        with torch.inference_mode():
            self._scheduler.admit()
            chunk = self._scheduler.prefill_chunk(
                self._fixed_rows or self._config.prefill_chunk_tokens
            )
            if chunk:
                self._prefill(chunk)
                return []
            return self._generate()

    def _prefill(self, pieces: list[Piece]) -> None:
        pieces.sort(key=lambda piece: -piece.length)
        token_ids: list[int] = []
        positions: list[int] = []
        row_sets, slots = [], []
        for piece in pieces:
            table, key_positions = piece.table()
            first = piece.first_position
            row_sets.append(RowSet(len(token_ids), piece.length, first, table, key_positions))
            index = range(piece.start, piece.start + piece.length)
            slots += [(piece.blocks[i // BLOCK_TOKENS], i % BLOCK_TOKENS) for i in index]
            token_ids += piece.token_ids
            positions += range(first, first + piece.length)
        context = sum(piece.first_position * piece.length for piece in pieces)
        with self._lane.span(
            "prefill", tokens=len(token_ids), num_pieces=len(pieces), context_tokens=context
        ):
            hidden = self._forward(token_ids, positions, row_sets, slots)
        for piece, row_set in zip(pieces, row_sets, strict=True):
            self._computed(piece, hidden[row_set.row + row_set.length - 1])

    def _computed(self, piece: Piece, last_hidden: Tensor) -> None:
        """Note that a piece is in the cache."""
        counts, prompt = self._counts, piece.prompt
        if piece.sequence is not None:
            piece.sequence.num_cached += piece.length
            counts.recomputed_tokens += piece.length
            return
        prompt.num_cached += piece.length
        new = max(0, prompt.num_cached - prompt.num_ever_cached)
        prompt.num_ever_cached += new
        counts.prefill_tokens += new
        counts.recomputed_tokens += piece.length - new
        if prompt.num_cached == len(prompt.token_ids):
            prompt.hidden = last_hidden.clone()

    def _generate(self) -> list[Running]:
        self._scheduler.grow()
        running = self._scheduler.running
        decoding = sorted(
            (s for s in running if s.token_ids),
            key=lambda s: -(len(s.prompt.blocks) + len(s.blocks)),
        )
        hidden = [
            s.prompt.hidden for s in running if not s.token_ids and s.prompt.hidden is not None
        ]
        rows = decoding + [s for s in running if not s.token_ids and s.prompt.hidden is not None]
        if not rows:
            return []  # all were preempted but those that wait for their prompt
        first = torch.stack(hidden) if hidden else None
        self._counts.decode_steps += 1
        states = self._decode_rows(decoding) if decoding else None
        with self._lane.span("sample", rows=len(rows), tokens=len(rows)):
            if states is None:
                states = first
            elif first is not None:
                states = torch.cat((states[: len(decoding)], first))
            assert states is not None and self.decoder is not None
            logits = self.decoder.logits(self._pad(states))
            drawn = self._sampler.draw(
                logits,
                [s.request.sampling for s in rows],
                [uniform(s.request.seed, len(s.token_ids)) for s in rows],
            )
        return self._append(rows, drawn.token_ids, drawn.sampled_logprobs, drawn.generator_logprobs)

    def _decode_rows(self, decoding: list[Running]) -> Tensor:
        """[T, D] (or [R, D]) hidden states after the newest token of each sequence."""
        row_sets, slots, positions = [], [], []
        for row, sequence in enumerate(decoding):
            table, key_positions = sequence.table()
            index = sequence.num_cached
            position = sequence.num_context
            row_sets.append(RowSet(row, 1, position, table, key_positions))
            slots.append((sequence.blocks[index // BLOCK_TOKENS], index % BLOCK_TOKENS))
            positions.append(position)
        context = sum(positions)
        with self._lane.span(
            "decode", rows=len(decoding), tokens=len(decoding), context_tokens=context
        ):
            hidden = self._forward([s.token_ids[-1] for s in decoding], positions, row_sets, slots)
        for sequence in decoding:
            sequence.num_cached += 1
        return hidden

    def _forward(
        self,
        token_ids: list[int],
        positions: list[int],
        row_sets: list[RowSet],
        slots: list[tuple[int, int]],
    ) -> Tensor:
        """Hidden states [T, D], or [R, D] in deterministic mode; keys and values go to `slots`."""
        assert self.decoder is not None
        device, dtype = self._placement.device, self._placement.compute_dtype
        self._cache.clear_new_blocks()
        where = self._cache.slots([block for block, _ in slots], [index for _, index in slots])
        attend: CacheAttention
        rows = len(token_ids)
        if self._fixed_rows is None:
            attend = PaddedAttention(self._cache, row_sets, where, dtype=dtype, device=device)
        else:
            rows = self._fixed_rows
            attend = TiledAttention(
                self._cache, row_sets, where, num_rows=rows, dtype=dtype, device=device
            )
        inputs = np.zeros((2, rows), dtype=np.int64)
        inputs[0, : len(token_ids)] = token_ids
        inputs[1, : len(positions)] = positions
        ids, places = torch.from_numpy(inputs).to(device)
        return self.decoder.forward_hidden(ids, places, attend)

    def _pad(self, states: Tensor) -> Tensor:
        """[R, D] in deterministic mode, else as it is."""
        if self._fixed_rows is None or len(states) == self._fixed_rows:
            return states
        padded = states.new_zeros(self._fixed_rows, states.shape[1])
        padded[: min(len(states), self._fixed_rows)] = states[: self._fixed_rows]
        return padded

    def _append(
        self,
        rows: list[Running],
        token_ids: list[int],
        sampled: list[float],
        untruncated: list[float],
    ) -> list[Running]:
        """Give each sequence its token; the finished ones leave the engine and are returned."""
        finished = []
        for sequence, token_id, logprob, whole in zip(
            rows, token_ids, sampled, untruncated, strict=True
        ):
            if not math.isfinite(whole):
                raise NonFiniteError(
                    f"request {sequence.request.id}: the logits of policy version {self.policy_version}"
                    " are not finite: its weights are broken. Look at the update before it, or at"
                    " the model folder where none came before."
                )
            sequence.append(token_id, logprob, whole, self.policy_version)
            reason = finish_reason(sequence.request.sampling, sequence.token_ids, self._decode)
            if reason is not None:
                sequence.finish_reason = reason
                self._scheduler.finish(sequence)
                finished.append(sequence)
        self._counts.generated_tokens += len(rows)
        self._counts.finished += len(finished)
        return finished
