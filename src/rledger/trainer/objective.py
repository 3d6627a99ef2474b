"""The loss of a micro-batch as a part of its update's loss, for the policy and for the critic.

Legend for shapes: N loss tokens of the micro-batch, T tokens of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rledger.algo import loss as policy_losses
from rledger.algo.aggregate import Normaliser, aggregate
from rledger.algo.contract import LossInputs, MetricSums
from rledger.algo.kl import kl_loss
from rledger.algo.loss import value_loss
from rledger.algo.ratio import mean_over_tokens
from rledger.config.algorithm import AlgorithmConfig
from rledger.errors import DataError
from rledger.schedule.packing import PackedRows
from rledger.trainer.mismatch import mismatch_sums
from rledger.types import Batch

__all__ = ["CriticObjective", "MicroBatchLoss", "PolicyObjective", "update_normaliser"]


@dataclass(frozen=True, slots=True)
class MicroBatchLoss:
    """What is differentiated, and what is told about it."""

    loss: Tensor  # [] this micro-batch's part of the update's loss
    token_losses: Tensor  # [N] detached, before aggregation
    sums: MetricSums  # quotients of sums over micro-batches and ranks
    parts: Mapping[str, Tensor]  # [] that add up over micro-batches and ranks
    largest: Mapping[str, Tensor]  # [] of which the largest counts


def update_normaliser(
    batch: Batch, algorithm: AlgorithmConfig, add_up: Callable[[list[float]], list[float]]
) -> Normaliser:
    """The counts that the losses of all micro-batches, on all ranks, are divided by."""
    rows = np.searchsorted(batch.offsets, np.flatnonzero(batch.loss_mask), "right")
    tokens, num_rows = add_up([batch.num_loss_tokens, len(np.unique(rows))])
    return Normaliser(
        num_loss_tokens=int(tokens), num_rows=int(num_rows), scale=algorithm.aggregation_scale
    )


class _Columns:
    """Columns of the batch at the loss tokens of a micro-batch, as tensors."""

    def __init__(self, batch: Batch, packed: PackedRows, like: Tensor) -> None:
        self._batch, self._packed, self._like = batch, packed, like
        self.rows = self._tensor(packed.row_numbers)
        self.num_rows = len(packed.rows)
        self.loss_mask = torch.ones(len(packed.columns), dtype=torch.bool, device=like.device)

    def find(self, name: str) -> Tensor | None:
        """[N] in the dtype of `like`; None where no stage has written the column."""
        column = getattr(self._batch, name)
        if column is None:
            return None
        return self._tensor(column[self._packed.columns]).to(self._like.dtype)

    def need(self, name: str, stage: str) -> Tensor:
        column = self.find(name)
        if column is None:
            raise DataError(f"the batch has no {name}: stage {stage} must run before the update")
        return column

    def _tensor(self, column: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(column)).to(self._like.device)


@dataclass(frozen=True, slots=True)
class PolicyObjective:
    """Policy loss, KL in the loss and entropy bonus, aggregated alike."""

    algorithm: AlgorithmConfig

    @property
    def entropy_has_grad(self) -> bool:
        return self.algorithm.entropy_coef != 0.0

    def __call__(
        self,
        batch: Batch,
        packed: PackedRows,
        logprobs: Tensor,
        entropies: Tensor,
        normaliser: Normaliser,
        seed: int,
    ) -> MicroBatchLoss:
        """From logprobs [N] and entropies [N]; without old_logprobs the ratio is 1."""
        algorithm = self.algorithm
        columns = _Columns(batch, packed, logprobs)
        old = columns.find("old_logprobs")
        mask, rows, num_rows = columns.loss_mask, columns.rows, columns.num_rows
        policy = policy_losses.compute(
            algorithm.loss,
            LossInputs(
                logprobs=logprobs,
                old_logprobs=logprobs.detach() if old is None else old,
                advantages=columns.need("advantages", "adv"),
                loss_mask=mask,
                rows=rows,
                num_rows=num_rows,
                seed=seed,
            ),
        )
        mode = algorithm.effective_aggregation
        token_losses, sums = policy.token_losses, dict(policy.metrics)
        parts = {"actor/pg_loss": aggregate(token_losses, mode, mask, rows, num_rows, normaliser)}
        sums["actor/entropy"] = mean_over_tokens(entropies, mask)
        if self.entropy_has_grad:
            token_losses = token_losses - algorithm.entropy_coef * entropies
            parts["actor/entropy_loss"] = aggregate(
                entropies, mode, mask, rows, num_rows, normaliser
            )
        if algorithm.kl.type == "loss":
            ref = columns.need("ref_logprobs", "ref")
            kl = kl_loss(logprobs, ref, mask, algorithm.kl.estimator)
            token_losses = token_losses + algorithm.kl.coef * kl.token_losses
            sums |= kl.metrics
        loss = aggregate(token_losses, mode, mask, rows, num_rows, normaliser)
        parts["actor/loss"] = loss
        told, largest = mismatch_sums(batch, packed, logprobs.detach(), old)
        return MicroBatchLoss(
            loss=loss,
            token_losses=token_losses.detach(),
            sums=sums | told,
            parts={name: part.detach() for name, part in parts.items()},
            largest=largest,
        )


@dataclass(frozen=True, slots=True)
class CriticObjective:
    """The value loss, as the mean over the update's loss tokens."""

    algorithm: AlgorithmConfig

    def __call__(
        self, batch: Batch, packed: PackedRows, values: Tensor, normaliser: Normaliser
    ) -> MicroBatchLoss:
        """From values [N]."""
        columns = _Columns(batch, packed, values)
        outputs = value_loss(
            values,
            columns.need("values", "values"),
            columns.need("returns", "adv"),
            columns.loss_mask,
            self.algorithm.value_clip,
        )
        loss = aggregate(
            outputs.token_losses,
            "token_mean",
            columns.loss_mask,
            columns.rows,
            columns.num_rows,
            normaliser,
        )
        part = loss.detach()
        return MicroBatchLoss(
            loss=loss,
            token_losses=outputs.token_losses.detach(),
            sums=outputs.metrics,
            parts={"critic/loss": part, "critic/vf_loss": part},
            largest={},
        )
