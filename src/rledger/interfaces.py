"""What the roles promise each other. `launch/` wires implementations; siblings never import each other.

All role methods that may take long are `async`, so that one controller drives a role in its own thread,
in another process, or a fake in virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rledger.types import (
    Batch,
    Completion,
    Failure,
    GenerationRequest,
    OptimStats,
    Prompt,
    Score,
    Trajectory,
    UpdateStats,
)

__all__ = ["AdvantageEstimator", "Clock", "Generator", "Tasks", "Trainer", "WeightTransport"]


@runtime_checkable
class Clock(Protocol):
    """Time as the loop sees it: real, or virtual in a simulation."""

    def now_s(self) -> float:
        """Seconds on a monotonic clock of unspecified origin."""
        ...

    async def sleep(self, seconds: float) -> None: ...


@runtime_checkable
class Generator(Protocol):
    """Prompt tokens in; completion tokens, log-probabilities and version spans out."""

    @property
    def policy_version(self) -> int:
        """Version of the weights that the next token will be made with."""
        ...

    def generate(self, request: GenerationRequest) -> Awaitable[Completion]:
        """Admit a request and return at once; awaiting the result yields its completion."""
        ...

    async def load_weights(self, weights: Mapping[str, Any], policy_version: int) -> None:
        """Take whole weights (Hugging Face names) at a token boundary; all or nothing."""
        ...

    def weights_digest(self) -> str:
        """Digest of the weights served, comparable with the trainer's of the same version."""
        ...

    async def close(self) -> None:
        """Fail whatever is pending, free memory; calling twice is allowed."""
        ...


@runtime_checkable
class Trainer(Protocol):
    """One model that learns: the policy, or the critic (which has `compute_values`)."""

    @property
    def policy_version(self) -> int:
        """Number of committed steps."""
        ...

    async def compute_logprobs(self, batch: Batch) -> Batch:
        """The batch with `old_logprobs` under the current weights."""
        ...

    async def compute_ref_logprobs(self, batch: Batch) -> Batch:
        """The batch with `ref_logprobs` under the reference weights."""
        ...

    async def compute_values(self, batch: Batch) -> Batch:
        """The batch with `values`; only a critic has them."""
        ...

    async def forward_backward(self, batch: Batch) -> UpdateStats:
        """Accumulate the gradient of one update over all micro-batches of `batch`.

        Raises NonFiniteError, naming the trajectories, before any weight changed.
        """
        ...

    async def optim_step(self) -> OptimStats:
        """Apply the accumulated gradient. Raises NonFiniteError before any weight changed."""
        ...

    def commit(self) -> int:
        """End of a step: `policy_version` grows by one and is returned."""
        ...

    def export_weights(self) -> Mapping[str, Any]:
        """Weights under Hugging Face names, in the dtype that generators serve; views, not copies."""
        ...

    def weights_digest(self) -> str: ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, schedule and random states into an empty folder."""
        ...

    def load(self, folder: Path) -> None: ...

    def export_hf(self, folder: Path) -> None:
        """Write a Hugging Face folder that transformers loads."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class AdvantageEstimator(Protocol):
    """The `adv` stage: rewards (and KL, values) to advantages and returns. Holds the KL controller."""

    def __call__(self, batch: Batch) -> tuple[Batch, Mapping[str, float]]:
        """The batch with `token_rewards`, `advantages` and perhaps `returns`, and metrics."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@runtime_checkable
class Tasks(Protocol):
    """Datasets, environments and rewards."""

    def next_prompts(self, count: int) -> Sequence[Prompt]:
        """The next prompts of the training order; endless, reshuffled each epoch by the run's seed."""
        ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion, as the tokenizer and the model folder say."""
        ...

    def eval_prompts(self) -> Sequence[Prompt]:
        """The held-out prompts, always the same."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Completion tokens as the text that rewards see."""
        ...

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> Score | Failure:
        """The reward, within its deadline; whatever goes wrong comes back as a Failure."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Data position and random states, as JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class WeightTransport(Protocol):
    """Moves a published version from the trainer to each generator."""

    async def publish(
        self, trainer: Trainer, generators: Sequence[Generator], policy_version: int
    ) -> int:
        """Bytes moved. After it, each generator's digest equals the trainer's, or it raises."""
        ...
