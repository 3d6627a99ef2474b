"""A trainer without a model: time passes on the injected clock, versions count, nothing is learned.

No torch here, so that a simulation starts at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rledger.errors import CheckpointError, DataError, ModelError, NonFiniteError
from rledger.interfaces import Clock
from rledger.schedule.packing import plan_micro_batches
from rledger.types import Batch, OptimStats, UpdateStats

__all__ = ["FakeAdvantages", "FakePace", "FakeTrainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePace:
    """How long the fake takes."""

    forward_s_per_token: float = 1e-5
    backward_s_per_token: float = 2e-5
    optim_step_s: float = 0.01


class FakeTrainer:
    """The Trainer role in virtual time.

    Its one weight is the number of its updates. `non_finite_ids` are trajectories whose loss is not finite.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        pace: FakePace | None = None,
        micro_batch_tokens: int = 4096,
        is_critic: bool = False,
        has_reference: bool = False,
        non_finite_ids: frozenset[str] = frozenset(),
    ) -> None:
        self._clock = clock
        self._pace = pace or FakePace()
        self._micro_batch_tokens = micro_batch_tokens
        self._is_critic, self._has_reference = is_critic, has_reference
        self._non_finite_ids = non_finite_ids
        self._policy_version = 0
        self._num_updates = 0
        self._is_pending = False
        self._closed = False

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def num_updates(self) -> int:
        """Optimizer steps so far."""
        return self._num_updates

    @property
    def closed(self) -> bool:
        return self._closed

    async def compute_logprobs(self, batch: Batch) -> Batch:
        """`old_logprobs` are the generator's: the fakes agree to the bit."""
        await self._forward(batch)
        return replace(batch, old_logprobs=self._masked(batch, batch.generator_logprobs))

    async def compute_ref_logprobs(self, batch: Batch) -> Batch:
        """`ref_logprobs` lie 0.01 nats below the generator's."""
        if not self._has_reference:
            raise ModelError("this fake has no reference: build it with has_reference=True")
        await self._forward(batch)
        return replace(batch, ref_logprobs=self._masked(batch, batch.generator_logprobs - 0.01))

    async def compute_values(self, batch: Batch) -> Batch:
        """`values` are 0.5 everywhere."""
        if not self._is_critic:
            raise ModelError("this fake is a policy: build it with is_critic=True for values")
        await self._forward(batch)
        half = np.full(batch.num_tokens, 0.5, np.float32)
        return replace(batch, values=self._masked(batch, half))

    async def forward_backward(self, batch: Batch) -> UpdateStats:
        """The rows that a real trainer would compute, in its order; the loss is 0."""
        assert not self._is_pending, "forward_backward twice without optim_step between"
        packs = plan_micro_batches(batch, self._micro_batch_tokens)
        if not packs:
            raise DataError("no token of this update is trained on")
        row_ids = tuple(batch.ids[row] for packed in packs for row in packed.rows)
        num_tokens = sum(packed.num_tokens for packed in packs)
        pace = self._pace
        await self._clock.sleep(num_tokens * (pace.forward_s_per_token + pace.backward_s_per_token))
        bad = [row_id for row_id in row_ids if row_id in self._non_finite_ids]
        if bad:
            raise NonFiniteError(
                f"the loss is not finite; trajectories {', '.join(bad)}. No weight was changed"
            )
        self._is_pending = True
        prefix = "critic" if self._is_critic else "actor"
        return UpdateStats(
            loss=0.0,
            num_loss_tokens=sum(packed.num_loss_tokens for packed in packs),
            num_micro_batches=len(packs),
            row_ids=row_ids,
            metrics={f"{prefix}/loss": 0.0, f"{prefix}/num_micro_batches": float(len(packs))},
        )

    async def optim_step(self) -> OptimStats:
        assert self._is_pending, "optim_step without forward_backward before"
        await self._clock.sleep(self._pace.optim_step_s)
        self._is_pending = False
        self._num_updates += 1
        return OptimStats(grad_norm=1.0, learning_rate=1e-6)

    def commit(self) -> int:
        self._policy_version += 1
        return self._policy_version

    def export_weights(self) -> Mapping[str, Any]:
        """{"num_updates": int64 array of one number}."""
        return {"num_updates": np.array([self._num_updates], np.int64)}

    def weights_digest(self) -> str:
        """SHA-256 over names, dtypes, shapes and bytes of the exported weights, by name."""
        digest = hashlib.sha256()
        for name, array in sorted(self.export_weights().items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        state = {"policy_version": self._policy_version, "num_updates": self._num_updates}
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def load(self, folder: Path) -> None:
        try:
            state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{folder}: the trainer's state cannot be read ({error}); resume from an earlier one"
            ) from error
        self._policy_version, self._num_updates = state["policy_version"], state["num_updates"]
        self._is_pending = False

    def export_hf(self, folder: Path) -> None:
        """A folder with a note in place of a model."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(
            json.dumps({"model_type": "fake", "num_updates": self._num_updates}), encoding="utf-8"
        )

    async def close(self) -> None:
        self._closed = True

    async def _forward(self, batch: Batch) -> None:
        await self._clock.sleep(batch.num_tokens * self._pace.forward_s_per_token)

    @staticmethod
    def _masked(
        batch: Batch, column: np.ndarray[Any, np.dtype[np.float32]]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.where(batch.loss_mask, column, 0.0).astype(np.float32)


class FakeAdvantages:
    """The AdvantageEstimator role without torch: reward minus the mean of the group, on every token."""

    def __call__(self, batch: Batch) -> tuple[Batch, Mapping[str, float]]:
        members = np.bincount(batch.groups)
        means = np.bincount(batch.groups, weights=batch.rewards) / members
        centred = (batch.rewards - means[batch.groups]).astype(np.float32)
        advantages = np.where(batch.loss_mask, np.repeat(centred, batch.lengths), 0.0)
        metrics = {"critic/score/mean": float(batch.rewards.mean())}
        return replace(batch, advantages=advantages.astype(np.float32)), metrics

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None
