"""A request on its way through the engine, and the prompt it shares with its group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rledger.generator.blocks import BLOCK_TOKENS
from rledger.types import Completion, FinishReason, GenerationRequest, VersionSpan

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAR", "Piece", "Sequence", "SharedPrompt"]

FAR = 2**30  # position of a cache slot that holds no token: later than every query
_OFFSETS = np.arange(BLOCK_TOKENS, dtype=np.int64)


@dataclass(slots=True, eq=False)
class SharedPrompt:
    """A prompt's keys and values, computed once for all requests that begin with it."""

    token_ids: tuple[int, ...]
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0  # tokens whose keys and values are in the cache
    hidden: Tensor | None = None  # [D] of the last token, from which each first token is sampled
    num_members: int = 0  # unfinished requests
    num_running: int = 0  # those of them that decode
    num_ever_cached: int = 0  # more than num_cached while it is computed again

    @property
    def is_ready(self) -> bool:
        return self.hidden is not None

    def key_positions(self) -> npt.NDArray[np.int64]:
        """[slots] position of the token in each slot of the blocks; FAR in the unused ones."""
        slots = np.arange(len(self.blocks) * BLOCK_TOKENS, dtype=np.int64)
        slots[len(self.token_ids) :] = FAR
        return slots


@dataclass(slots=True, eq=False)
class Sequence:
    """One request. Its own blocks begin after the prompt's, so that the prompt's can be shared."""

    request: GenerationRequest
    prompt: SharedPrompt
    blocks: list[int] = field(default_factory=list)
    num_cached: int = 0  # own tokens in the cache; the newest token is never there yet
    token_ids: list[int] = field(default_factory=list)
    sampled_logprobs: list[float] = field(default_factory=list)
    generator_logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    is_running: bool = False
    _table: npt.NDArray[np.int64] | None = None
    _key_positions: npt.NDArray[np.int64] | None = None

    @property
    def num_to_recompute(self) -> int:
        """Own tokens that must be computed again before the sequence can go on."""
        return max(len(self.token_ids) - 1, 0) - self.num_cached

    @property
    def needs_block(self) -> bool:
        """Whether the newest token's keys and values have no place yet."""
        return len(self.token_ids) > len(self.blocks) * BLOCK_TOKENS

    @property
    def num_context(self) -> int:
        """Prompt and own tokens in the cache."""
        return len(self.prompt.token_ids) + self.num_cached

    def table(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Block ids [J] of prompt and own tokens, and the position of each slot [J * BLOCK_TOKENS]."""
        if self._table is None or self._key_positions is None:
            self._table = np.array(self.prompt.blocks + self.blocks, dtype=np.int64)
            first = len(self.prompt.token_ids)
            own = first + np.arange(len(self.blocks) * BLOCK_TOKENS, dtype=np.int64)
            self._key_positions = np.concatenate((self.prompt.key_positions(), own))
        return self._table, self._key_positions

    def add_block(self, block: int) -> None:
        self.blocks.append(block)
        if self._table is not None and self._key_positions is not None:
            first = len(self.prompt.token_ids) + (len(self.blocks) - 1) * BLOCK_TOKENS
            self._table = np.append(self._table, block)
            self._key_positions = np.concatenate((self._key_positions, first + _OFFSETS))

    def forget_cache(self) -> list[int]:
        """Own blocks, to be released: all of it will be computed again."""
        blocks, self.blocks = self.blocks, []
        self.num_cached = 0
        self._table = self._key_positions = None
        return blocks

    def append(
        self, token_id: int, sampled: float, untruncated: float, policy_version: int
    ) -> None:
        index = len(self.token_ids)
        self.token_ids.append(token_id)
        self.sampled_logprobs.append(sampled)
        self.generator_logprobs.append(untruncated)
        last = self.spans[-1] if self.spans else None
        if last is not None and last.policy_version == policy_version:
            self.spans[-1] = VersionSpan(
                start=last.start, stop=index + 1, policy_version=policy_version
            )
        else:
            self.spans.append(
                VersionSpan(start=index, stop=index + 1, policy_version=policy_version)
            )

    def completion(self) -> Completion:
        if self.finish_reason is None:
            raise ValueError(f"request {self.request.id} is not finished")
        return Completion(
            request_id=self.request.id,
            token_ids=np.array(self.token_ids, dtype=np.int32),
            sampled_logprobs=np.array(self.sampled_logprobs, dtype=np.float32),
            generator_logprobs=np.array(self.generator_logprobs, dtype=np.float32),
            version_spans=tuple(self.spans),
            finish_reason=self.finish_reason,
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring tokens of a prompt (`sequence` None) or of a sequence, computed in one pass."""

    prompt: SharedPrompt
    sequence: Sequence | None
    start: int  # index of the first token within prompt or own tokens
    length: int

    @property
    def token_ids(self) -> list[int]:
        source = self.prompt.token_ids if self.sequence is None else self.sequence.token_ids
        return list(source[self.start : self.start + self.length])

    @property
    def first_position(self) -> int:
        return self.start if self.sequence is None else len(self.prompt.token_ids) + self.start

    @property
    def blocks(self) -> list[int]:
        """The blocks that the tokens' keys and values go to."""
        return self.prompt.blocks if self.sequence is None else self.sequence.blocks

    def table(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """As `Sequence.table`."""
        if self.sequence is not None:
            return self.sequence.table()
        return np.array(self.prompt.blocks, dtype=np.int64), self.prompt.key_positions()
