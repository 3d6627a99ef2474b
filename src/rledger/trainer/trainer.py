"""One rank of a mesh that trains a decoder: the policy, or the critic.

Legend for shapes: T tokens of the batch, S tokens of a micro-batch, N its loss tokens, D width.

    batch -> pack -> for each micro-batch: forward -> logprobs or values -> loss -> backward
                                                                  update: clip -> AdamW <-+
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rledger.algo.aggregate import Normaliser
from rledger.books import Lane
from rledger.config.algorithm import AlgorithmConfig
from rledger.config.trainer import OptimizerConfig
from rledger.cost import backward_cost, head_cost, layers_cost
from rledger.errors import DataError, ModelError, NonFiniteError
from rledger.models.checkpoint import export_hf_state, save_decoder
from rledger.models.decoder import Decoder
from rledger.models.digest import weights_digest
from rledger.models.placement import Placement
from rledger.schedule.packing import PackedRows, plan_micro_batches, select_rows
from rledger.schedule.seeds import derive_seed
from rledger.trainer.attention import PackedAttention
from rledger.trainer.checkpoint import load_state, save_state
from rledger.trainer.logprobs import token_logprobs
from rledger.trainer.mesh import Mesh
from rledger.trainer.mismatch import mismatch_metrics
from rledger.trainer.objective import (
    CriticObjective,
    MicroBatchLoss,
    PolicyObjective,
    update_normaliser,
)
from rledger.trainer.optimizer import MasterWeights
from rledger.types import Batch, OptimStats, UpdateStats

__all__ = ["DecoderTrainer", "TrainerSetup"]

_LOSS_SEEDS = 7  # first number of the seed path of losses that draw tokens at random


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSetup:
    """What a trainer is told, apart from its weights."""

    optimizer: OptimizerConfig
    algorithm: AlgorithmConfig
    micro_batch_tokens: int
    num_updates: int  # of the whole run; decaying schedules end there
    temperature: float  # that the generator samples at; 0 counts as 1, as its log-probabilities do
    activation_checkpointing: bool = False
    seed: int = 0
    model_folder: Path | None = None  # gives tokenizer and settings to `export_hf`


@dataclass(slots=True)
class _Totals:
    """What the micro-batches of an update add up to."""

    loss: float = 0.0
    sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)

    def add(self, result: MicroBatchLoss) -> None:
        self.loss += float(result.loss.detach())
        for name, (numerator, denominator) in result.sums.items():
            before = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (before[0] + float(numerator), before[1] + float(denominator))
        for name, part in result.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + float(part)
        for name, number in result.largest.items():
            self.largest[name] = max(self.largest.get(name, -math.inf), float(number))

    def metrics(self, mesh: Mesh) -> dict[str, float]:
        """Quotients, sums and largest values over all micro-batches and ranks."""
        names = sorted(self.sums)
        tops = mesh.add_up_numbers([self.sums[name][0] for name in names])
        bottoms = mesh.add_up_numbers([self.sums[name][1] for name in names])
        quotients = {n: t / b for n, t, b in zip(names, tops, bottoms, strict=True) if b > 0}
        part_names = sorted(self.parts)
        parts = mesh.add_up_numbers([self.parts[name] for name in part_names])
        return {
            **mismatch_metrics(quotients),
            **dict(zip(part_names, parts, strict=True)),
            **{name: mesh.largest(number) for name, number in sorted(self.largest.items())},
        }


class DecoderTrainer:
    """Implements `rledger.interfaces.Trainer`; a critic when `decoder` has a value head.

    `start` holds the weights to begin with, under the decoder's parameter names; the decoder takes
    them over in its own dtype. `reference` is frozen, and needed only where KL is.
    """

    def __init__(
        self,
        decoder: Decoder,
        start: Mapping[str, Tensor],
        setup: TrainerSetup,
        *,
        placement: Placement,
        lane: Lane,
        mesh: Mesh | None = None,
        reference: Decoder | None = None,
    ) -> None:
        self._decoder, self._setup, self._reference = decoder, setup, reference
        self._placement, self._lane, self._mesh = placement, lane, mesh or Mesh()
        self._temperature = setup.temperature or 1.0
        self._is_critic = decoder.has_value_head
        self._prefix = "critic" if self._is_critic else "actor"
        self._policy_objective = PolicyObjective(setup.algorithm)
        self._critic_objective = CriticObjective(setup.algorithm)
        decoder.checkpoint_activations = setup.activation_checkpointing
        self._weights = MasterWeights(
            decoder, start, setup.optimizer, self._mesh, num_updates=setup.num_updates
        )
        self._policy_version = 0
        self._pending: Batch | None = None  # its gradient is accumulated, not yet applied

    @property
    def policy_version(self) -> int:
        return self._policy_version

    async def compute_logprobs(self, batch: Batch) -> Batch:
        """The batch with `old_logprobs` [T], 0 where nothing is trained on."""
        column = self._compute(batch, lambda packed: self._logprobs(self._decoder, packed)[0])
        return replace(batch, old_logprobs=column)

    async def compute_ref_logprobs(self, batch: Batch) -> Batch:
        """The batch with `ref_logprobs` [T]. ModelError without a reference."""
        reference = self._reference
        if reference is None:
            raise ModelError(
                "this trainer was built without reference weights: algorithm.kl.type is none;"
                " set it to loss or reward, or leave the ref stage out"
            )
        column = self._compute(batch, lambda packed: self._logprobs(reference, packed)[0])
        return replace(batch, ref_logprobs=column)

    async def compute_values(self, batch: Batch) -> Batch:
        """The batch with `values` [T] before each trained token. ModelError for a policy."""
        return replace(batch, values=self._compute(batch, self._values))

    async def forward_backward(self, batch: Batch) -> UpdateStats:
        """Accumulate the gradient of one update; `row_ids` in the order of computation.

        A row without a loss token is not computed. A micro-batch whose loss depends on none of its
        tokens (all advantages 0, and no other term) is measured, and its backward pass left out: the
        gradient is 0. Raises NonFiniteError naming the trajectories,
        and DataError where no row has a loss token.
        """
        assert self._pending is None, "forward_backward twice without optim_step between"
        self._placement.apply_threads()
        packs = self._pack_update(batch)
        if not packs:
            raise DataError(
                "no token of this update is trained on: every completion is empty or masked out"
            )
        normaliser = update_normaliser(batch, self._setup.algorithm, self._mesh.add_up_numbers)
        totals, failure = _Totals(), None
        for number, packed in enumerate(packs):
            try:
                totals.add(self._accumulate(batch, packed, normaliser, number))
            except NonFiniteError as error:
                failure = error
                break
        self._raise_together(failure)
        self._pending = batch
        metrics = totals.metrics(self._mesh)
        metrics[f"{self._prefix}/num_micro_batches"] = float(len(packs))
        return UpdateStats(
            loss=totals.loss,
            num_loss_tokens=sum(packed.num_loss_tokens for packed in packs),
            num_micro_batches=len(packs),
            row_ids=tuple(batch.ids[row] for packed in packs for row in packed.rows),
            metrics=metrics,
        )

    async def optim_step(self) -> OptimStats:
        """Clip and apply the gradient. Raises NonFiniteError before any weight changed."""
        assert self._pending is not None, "optim_step without forward_backward before"
        self._placement.apply_threads()
        batch, self._pending = self._pending, None
        with self._lane.span("grad_norm"):
            grad_norm = self._weights.share_gradient()
        if not math.isfinite(grad_norm):
            culprits = self._find_culprits(batch)
            self._weights.drop_gradient()
            raise _not_finite(f"the gradient of the {self._role()}", culprits)
        with self._lane.span("optimizer"):
            rate = self._weights.step(grad_norm)
        return OptimStats(grad_norm=grad_norm, learning_rate=rate)

    def commit(self) -> int:
        self._policy_version += 1
        return self._policy_version

    def export_weights(self) -> Mapping[str, Tensor]:
        """Hugging Face names, in the dtype of computation; views that the next update changes."""
        return export_hf_state(self._decoder)

    def weights_digest(self) -> str:
        return weights_digest(export_hf_state(self._decoder))

    def save(self, folder: Path) -> None:
        """Write `state.json`, `weights.safetensors` and `optimizer.safetensors`, flushed to disk.

        There are no random states: what is drawn depends on seed and update alone.
        """
        save_state(folder, self._weights, self._policy_version)

    def load(self, folder: Path) -> None:
        """Raises CheckpointError when the folder belongs to another model or is damaged."""
        self._policy_version = load_state(folder, self._weights)
        self._pending = None

    def export_hf(self, folder: Path) -> None:
        """Write the weights as generators serve them."""
        save_decoder(self._decoder, folder, source_folder=self._setup.model_folder)

    async def close(self) -> None:
        """Forget the gradient; the weights stay readable."""
        self._pending = None

    def _role(self) -> str:
        return "critic" if self._is_critic else "policy"

    def _pack(self, batch: Batch, *parts: Sequence[int]) -> list[PackedRows]:
        """Micro-batches of all groups, or of each part of them by itself."""
        budget = self._setup.micro_batch_tokens
        with self._lane.span("pack", state="copy") as span:
            packs = [
                packed
                for groups in parts or (None,)
                for packed in plan_micro_batches(batch, budget, groups)
            ]
            span.add(
                tokens=sum(packed.num_tokens for packed in packs), num_micro_batches=len(packs)
            )
        return packs

    def _pack_update(self, batch: Batch) -> list[PackedRows]:
        """Micro-batches of an update; groups that cannot have a gradient stand apart from the others.

        Not so where the loss selects among the tokens of a micro-batch: that would change it.
        """
        advantages = batch.advantages
        depends = self._setup.algorithm.loss.depends_on_micro_batching
        if self._is_critic or depends or advantages is None:
            return self._pack(batch)
        rows = np.repeat(np.arange(batch.num_rows), batch.lengths)[batch.loss_mask]
        moves = advantages[batch.loss_mask] != 0.0
        with_signal = set(batch.groups[rows[moves]].tolist())
        return self._pack(
            batch,
            sorted(with_signal),
            [group for group in range(batch.num_groups) if group not in with_signal],
        )

    def _compute(
        self, batch: Batch, compute: Callable[[PackedRows], Tensor]
    ) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """[T] float32 of what `compute` gives [N] for each micro-batch, without gradients."""
        self._placement.apply_threads()
        column = np.zeros(batch.num_tokens, np.float32)
        with torch.no_grad():
            for packed in self._pack(batch):
                column[packed.columns] = compute(packed).float().cpu().numpy()
        return column

    def _hidden(self, decoder: Decoder, packed: PackedRows) -> Tensor:
        """[N, D] states that predict the loss tokens."""
        device, spec = decoder.device, decoder.spec
        with self._lane.span("layout", state="copy"):
            token_ids, positions, sources = (
                torch.from_numpy(column).to(device)
                for column in (packed.token_ids, packed.positions, packed.sources)
            )
            attend = PackedAttention(packed.pieces, spec, decoder.dtype, device)
        with self._lane.span("forward") as span:
            cost = layers_cost(spec, packed.num_tokens, packed.num_pairs, decoder.dtype.itemsize)
            span.add(tokens=packed.num_tokens, flops=cost.flops)
            return decoder.forward_hidden(token_ids, positions, attend).index_select(0, sources)

    def _logprobs(
        self, decoder: Decoder, packed: PackedRows, weight_grad: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies [N] of the loss tokens."""
        hidden = self._hidden(decoder, packed)
        with self._lane.span("logprobs") as span:
            cost = head_cost(decoder.spec, packed.num_loss_tokens, decoder.dtype.itemsize)
            span.add(loss_tokens=packed.num_loss_tokens, flops=cost.flops)
            return token_logprobs(
                hidden,
                decoder.lm_head_weight,
                torch.from_numpy(packed.targets).to(decoder.device),
                self._temperature,
                weight_grad,
                entropy_has_grad=self._policy_objective.entropy_has_grad,
            )

    def _values(self, packed: PackedRows) -> Tensor:
        return self._decoder.values(self._hidden(self._decoder, packed))

    def _outputs(self, packed: PackedRows) -> tuple[Tensor, ...]:
        """Log-probabilities and entropies [N] of the policy, or values [N] of the critic."""
        if self._is_critic:
            return (self._values(packed),)
        weight_grad = self._weights.grad_of(self._decoder.lm_head_weight)
        return self._logprobs(self._decoder, packed, weight_grad)

    def _loss(
        self,
        batch: Batch,
        packed: PackedRows,
        outputs: Sequence[Tensor],
        normaliser: Normaliser,
        number: int,
    ) -> tuple[MicroBatchLoss, list[Tensor]]:
        """The loss of outputs without a history, and its gradients by them. NonFiniteError."""
        leaves = [x.detach().requires_grad_(x.requires_grad) for x in outputs]
        if self._is_critic:
            result = self._critic_objective(batch, packed, leaves[0], normaliser)
        else:
            path = (_LOSS_SEEDS, self._weights.num_updates_done, number)
            seed = derive_seed(self._setup.seed, *path)
            logprobs, entropies = leaves
            result = self._policy_objective(batch, packed, logprobs, entropies, normaliser, seed)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        grads = list(torch.autograd.grad(result.loss, wanted))
        columns = [leaves[0].detach(), result.token_losses, *grads]
        is_bad = ~torch.stack([column.isfinite() for column in columns]).all(0)
        if bool(is_bad.any()) or not math.isfinite(float(result.loss.detach())):
            numbers = np.unique(packed.row_numbers[is_bad.cpu().numpy()])
            rows = [packed.rows[number] for number in numbers] or packed.rows
            ids = [batch.ids[row] for row in rows]
            raise _not_finite(f"the loss of the {self._role()}", ids)
        return result, grads

    def _accumulate(
        self, batch: Batch, packed: PackedRows, normaliser: Normaliser, number: int
    ) -> MicroBatchLoss:
        outputs = self._outputs(packed)
        with self._lane.span("loss"):
            result, grads = self._loss(batch, packed, outputs, normaliser, number)
            is_flat = not any(bool(grad.any()) for grad in grads)
        if is_flat:
            return result
        spec, size = self._decoder.spec, self._decoder.dtype.itemsize
        num_scored = 0 if self._is_critic else packed.num_loss_tokens
        cost = backward_cost(
            spec,
            packed.num_tokens,
            packed.num_pairs,
            num_scored,
            size,
            recompute=self._setup.activation_checkpointing,
        )
        with self._lane.span("backward") as span:
            span.add(tokens=packed.num_tokens, flops=cost.flops)
            torch.autograd.backward([x for x in outputs if x.requires_grad], grads)
        return result

    def _raise_together(self, failure: NonFiniteError | None) -> None:
        """Every rank leaves the update when one must: else the others would wait for it."""
        if self._mesh.largest(float(failure is not None)) > 0:
            self._weights.drop_gradient()
            raise failure or NonFiniteError("the loss is not finite on another rank; see its log")

    def _find_culprits(self, batch: Batch) -> list[str]:
        """Ids of the rows that alone have a gradient that is not finite.

        Computed again, micro-batch by micro-batch and then row by row; where no single row does it,
        all rows of the first micro-batch that does, and where none does, all rows.
        """
        normaliser = update_normaliser(batch, self._setup.algorithm, self._mesh.add_up_numbers)
        for packed in plan_micro_batches(batch, self._setup.micro_batch_tokens):
            if self._is_finite(batch, packed, normaliser):
                continue
            alone = [row for row in packed.rows if not self._row_is_finite(batch, row, normaliser)]
            return [batch.ids[row] for row in alone or packed.rows]
        return list(batch.ids)

    def _row_is_finite(self, batch: Batch, row: int, normaliser: Normaliser) -> bool:
        one = select_rows(batch, [row])
        (packed,) = plan_micro_batches(one, self._setup.micro_batch_tokens)
        return self._is_finite(one, packed, normaliser)

    def _is_finite(self, batch: Batch, packed: PackedRows, normaliser: Normaliser) -> bool:
        self._weights.drop_gradient()
        self._accumulate(batch, packed, normaliser, 0)
        return self._weights.gradient_is_finite()


def _not_finite(what: str, ids: list[str]) -> NonFiniteError:
    shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
    return NonFiniteError(
        f"{what} is not finite; trajectories {shown}. No weight was changed: look at these"
        " trajectories' rewards and advantages, lower the learning rate, or go back to an earlier"
        " checkpoint"
    )
