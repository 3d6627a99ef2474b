"""Tasks without a data set: prompts, rewards, latencies and failures as functions of a seed.

Time passes on the injected clock only, so a simulated run needs no real second.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rledger.interfaces import Clock
from rledger.tasks.datasets import Row
from rledger.tasks.order import TrainingOrder
from rledger.types import Failure, Prompt, Score, Trajectory

__all__ = ["FailureReason", "FakeTasks"]

FailureReason = Literal[
    "reward_raised", "reward_timeout", "reward_crashed", "reward_invalid", "environment"
]
_REASONS: tuple[FailureReason, ...] = (
    "reward_raised",
    "reward_timeout",
    "reward_crashed",
    "reward_invalid",
    "environment",
)
_VOCAB_SIZE = 1000


class FakeTasks:
    """The Tasks role in virtual time.

    The outcome of a trajectory is a function of (seed, its id, its policy version): running twice, or
    in another order, gives the same outcomes.
    """

    stop_token_ids = (0,)

    def __init__(
        self,
        clock: Clock,
        *,
        seed: int = 0,
        num_train_prompts: int = 1000,
        num_eval_prompts: int = 16,
        prompt_tokens: tuple[int, int] = (8, 32),
        latency_s: tuple[float, float] = (0.01, 0.1),
        deadline_s: float = 10.0,
        failure_frac: float = 0.0,
        failures: Mapping[str, FailureReason] | None = None,
        reward: Callable[[Prompt, Trajectory], float] | None = None,
    ) -> None:
        """Ranges are inclusive. `failures`: trajectory id -> reason, besides the random fraction
        `failure_frac`; a timeout takes `deadline_s`. `reward` None: 1 with a chance that rises with
        the policy version from 0.3, else 0.
        """
        self._clock = clock
        self._seed = seed
        self._prompt_tokens = prompt_tokens
        self._latency_s = latency_s
        self._deadline_s = deadline_s
        self._failure_frac = failure_frac
        self._failures = dict(failures or {})
        self._reward = self._rising_reward if reward is None else reward
        self._order = TrainingOrder([_FakeRows(num_train_prompts, num_eval_prompts)], seed)
        self._eval_prompts = tuple(self._prompt(_row("eval", i)) for i in range(num_eval_prompts))
        self._closed = False

    def next_prompts(self, count: int) -> Sequence[Prompt]:
        return [self._prompt(_row("train", self._order.next()[1])) for _ in range(count)]

    def eval_prompts(self) -> Sequence[Prompt]:
        return self._eval_prompts

    def decode(self, token_ids: Sequence[int]) -> str:
        """The tokens as numbers, stop tokens left out."""
        return " ".join(str(int(t)) for t in token_ids if int(t) not in self.stop_token_ids)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> Score | Failure:
        reason = self._failure_of(trajectory)
        if reason == "reward_timeout":
            await self._clock.sleep(self._deadline_s)
        else:
            low, high = self._latency_s
            await self._clock.sleep(low + (high - low) * self._uniform("latency", trajectory.id))
        if reason is not None:
            return Failure(reason=reason, message=f"trajectory {trajectory.id}: scripted {reason}")
        return Score(value=self._reward(prompt, trajectory))

    def state_dict(self) -> dict[str, Any]:
        return {"order": self._order.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._order.load_state_dict(state["order"])

    async def close(self) -> None:
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def _failure_of(self, trajectory: Trajectory) -> FailureReason | None:
        scheduled = self._failures.get(trajectory.id)
        if scheduled is not None:
            return scheduled
        if self._uniform("failure", trajectory.id) >= self._failure_frac:
            return None
        return _REASONS[int(self._uniform("reason", trajectory.id) * len(_REASONS))]

    def _rising_reward(self, prompt: Prompt, trajectory: Trajectory) -> float:
        spans = [span for c in trajectory.completions for span in c.version_spans]
        version = max((span.policy_version for span in spans), default=0)
        chance = 1.0 - 0.7 * math.exp(-version / 100)
        return float(self._uniform("reward", f"{version}/{trajectory.id}") < chance)

    def _prompt(self, row: Row) -> Prompt:
        low, high = self._prompt_tokens
        count = low + int((high - low + 1) * self._uniform("length", row.id))
        stream = hashlib.shake_128(f"{self._seed}/tokens/{row.id}".encode()).digest(2 * count)
        pairs = zip(stream[::2], stream[1::2], strict=True)
        tokens = tuple(1 + (256 * a + b) % (_VOCAB_SIZE - 1) for a, b in pairs)
        return Prompt(
            id=row.id, task="fake", text=row.question, token_ids=tokens, payload=row.payload
        )

    def _uniform(self, what: str, key: str) -> float:
        """A number in [0, 1) that depends on the seed, what it is for, and for whom."""
        digest = hashlib.blake2b(f"{self._seed}/{what}/{key}".encode(), digest_size=8).digest()
        # 53 bits: as many as a float holds, so that the result stays below 1.
        return (int.from_bytes(digest, "big") >> 11) / 2**53


class _FakeRows:
    """As many rows as one likes."""

    task = "fake"
    weight = 1.0

    def __init__(self, num_train_rows: int, num_eval_rows: int) -> None:
        self.num_train_rows = num_train_rows
        self.num_rows_to_check = 0
        self.fingerprint = f"fake-{num_train_rows}-{num_eval_rows}"
        self._num_eval_rows = num_eval_rows

    def train_row(self, index: int) -> Row | None:
        return _row("train", index)

    def eval_rows(self) -> Sequence[Row]:
        return [_row("eval", index) for index in range(self._num_eval_rows)]


def _row(split: str, index: int) -> Row:
    name = f"fake/{split}/{index:06d}"
    return Row(id=name, where=name, question=name, answer="", payload={"question": name})
