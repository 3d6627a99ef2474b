"""Who decodes, who waits, who gives blocks back. Bookkeeping only: no tensor, no clock.

Requests run in the order of their arrival. When blocks run out, prompts that nobody decodes from go
first, then the youngest running request; the oldest is never touched, so everything ends.
"""

from __future__ import annotations

from collections import deque

from rledger.errors import ConfigError, DataError
from rledger.generator.blocks import BLOCK_TOKENS, BlockPool, num_blocks_for
from rledger.generator.sequences import Piece, Sequence, SharedPrompt
from rledger.types import GenerationRequest

__all__ = ["Scheduler"]


_MAX_SCORES = 2**21  # queries times keys of a piece: what attention holds for each head at a time
_MIN_PIECE_TOKENS = 16


def _piece_length(wanted: int, left: int, num_before: int) -> int:
    """Tokens to compute next of `wanted` ones that follow `num_before` others."""
    length = min(wanted, left)
    return min(length, max(_MIN_PIECE_TOKENS, _MAX_SCORES // max(num_before + length, 1)))


class Scheduler:
    """Admission, growth and preemption of sequences over a pool of blocks."""

    def __init__(self, pool: BlockPool, *, max_running: int) -> None:
        self.pool = pool
        self.running: list[Sequence] = []  # in the order of admission
        self.waiting: deque[Sequence] = deque()
        self.num_preemptions = 0
        self._max_running = max_running
        self._prompts: dict[tuple[int, ...], SharedPrompt] = {}

    def submit(self, request: GenerationRequest) -> Sequence:
        """Queue a request. Raises ConfigError when it could not fit even alone."""
        own = num_blocks_for(request.sampling.max_new_tokens - 1)
        needed = num_blocks_for(len(request.prompt_token_ids)) + own
        if needed > self.pool.num_blocks:
            raise ConfigError(
                f"request {request.id}: a prompt of {len(request.prompt_token_ids)} tokens and"
                f" {request.sampling.max_new_tokens} new ones need {needed} cache blocks of"
                f" {BLOCK_TOKENS} tokens, the budget holds {self.pool.num_blocks}. Raise"
                " generator.kv_cache_bytes, or lower sampling.max_new_tokens or the prompt's length."
            )
        key = request.prompt_token_ids
        if not key:
            raise DataError(f"request {request.id}: its prompt has no tokens. Remove the row.")
        prompt = self._prompts.setdefault(key, SharedPrompt(key))
        prompt.num_members += 1
        sequence = Sequence(request, prompt)
        self.waiting.append(sequence)
        return sequence

    def admit(self) -> None:
        """Move waiting sequences to the running ones while rows and blocks last."""
        while self.waiting and len(self.running) < self._max_running:
            sequence = self.waiting[0]
            prompt = sequence.prompt
            for_prompt = 0 if prompt.blocks else num_blocks_for(len(prompt.token_ids))
            # room for the token that decoding writes next, or it would be preempted at once
            last = sequence.request.sampling.max_new_tokens - 1
            own = num_blocks_for(min(len(sequence.token_ids) + 1, last))
            if not self._make_room(for_prompt + own, keep=prompt):
                return
            self.waiting.popleft()
            if for_prompt:
                prompt.blocks = self.pool.allocate(for_prompt)
            for block in self.pool.allocate(num_blocks_for(sequence.num_to_recompute)):
                sequence.add_block(block)
            prompt.num_running += 1
            sequence.is_running = True
            self.running.append(sequence)

    def prefill_chunk(self, max_tokens: int) -> list[Piece]:
        """The next at most `max_tokens` tokens to compute before sequences can decode; else none."""
        pieces: list[Piece] = []
        planned: set[int] = set()  # prompts that this chunk completes
        left = max_tokens
        for sequence in self.running:
            if left == 0:
                break
            prompt = sequence.prompt
            if not prompt.is_ready and id(prompt) not in planned:
                if any(s.prompt is prompt for s in pieces):
                    continue  # its rest comes with the next chunk
                length = _piece_length(
                    len(prompt.token_ids) - prompt.num_cached, left, prompt.num_cached
                )
                pieces.append(Piece(prompt, None, prompt.num_cached, length))
                left -= length
                if prompt.num_cached + length < len(prompt.token_ids):
                    continue
                planned.add(id(prompt))
            length = _piece_length(sequence.num_to_recompute, left, sequence.num_context)
            if length:
                pieces.append(Piece(prompt, sequence, sequence.num_cached, length))
                left -= length
        return pieces

    def grow(self) -> None:
        """Give each decoding sequence the block its newest token goes to, preempting if it must."""
        for sequence in tuple(self.running):
            while sequence.is_running and sequence.needs_block:
                if self._make_room(1, keep=sequence.prompt):
                    sequence.add_block(self.pool.allocate(1)[0])
                else:
                    self.num_preemptions += 1
                    self._requeue(self.running[-1])  # the sequence itself, if it is the youngest

    def finish(self, sequence: Sequence) -> None:
        """Free what a sequence holds, wherever it stands."""
        if sequence.is_running:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
        prompt = sequence.prompt
        prompt.num_members -= 1
        if prompt.num_members == 0:
            self._forget(prompt)
            del self._prompts[prompt.token_ids]

    def invalidate(self) -> None:
        """All cached keys and values are stale: everything that runs is computed again."""
        for sequence in reversed(tuple(self.running)):
            self._requeue(sequence)
        for prompt in self._prompts.values():
            self._forget(prompt)

    def _make_room(self, count: int, *, keep: SharedPrompt) -> bool:
        """Whether `count` blocks are free once prompts that nobody decodes from are forgotten."""
        for prompt in self._prompts.values():
            if self.pool.num_free >= count:
                break
            if prompt.num_running == 0 and prompt is not keep:
                self._forget(prompt)
        return self.pool.num_free >= count

    def _requeue(self, sequence: Sequence) -> None:
        self._stop(sequence)
        self.waiting.appendleft(sequence)

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        sequence.is_running = False
        sequence.prompt.num_running -= 1
        self.pool.release(sequence.forget_cache())

    def _forget(self, prompt: SharedPrompt) -> None:
        """Release a prompt's blocks; it is computed again if it is needed again."""
        self.pool.release(prompt.blocks)
        prompt.blocks = []
        prompt.num_cached = 0
        prompt.hidden = None
