"""Token losses to one number, with the normaliser stated by the caller.

The normaliser holds numbers of the whole update, so that the losses of its micro-batches (and
ranks) add up to the loss of the update however it is cut: sum, never average, over micro-batches
and ranks.

Legend for shapes: T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rledger.algo.segments import masked, segment_count, wide
from rledger.config.policy_loss import Aggregation

__all__ = ["Normaliser", "aggregate", "token_weights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normaliser:
    """What the loss of an update is divided by: counts over all its micro-batches and ranks.

    Count after a rejection to share the gradient among the tokens that are left, before it to let
    rejected tokens shrink it.
    """

    num_loss_tokens: int
    num_rows: int  # rows with at least one loss token
    scale: float | None = None  # tokens, for seq_mean_token_sum_norm

    @staticmethod
    def of(
        loss_mask: Tensor, rows: Tensor, num_rows: int, scale: float | None = None
    ) -> Normaliser:
        """The counts of an update that stands here in one piece."""
        counts = segment_count(rows, num_rows, loss_mask)
        return Normaliser(
            num_loss_tokens=int(loss_mask.sum()), num_rows=int((counts > 0).sum()), scale=scale
        )


def token_weights(
    mode: Aggregation, loss_mask: Tensor, rows: Tensor, num_rows: int, normaliser: Normaliser
) -> Tensor:
    """[T] the factor of each token's loss in the loss of the update; 0 outside the loss mask.

    token_mean: 1 / tokens. token_sum: 1. seq_mean_token_sum: 1 / rows. seq_mean_token_sum_norm: 1
    / (rows scale). seq_mean_token_mean: 1 / (rows tokens of the row). An update without loss
    tokens gives 0. `rows` [T] and `num_rows` number the micro-batch at hand; a row lies wholly
    inside it.
    """
    weights = wide(loss_mask)
    if mode == "token_mean":
        weights = weights / max(normaliser.num_loss_tokens, 1)
    elif mode != "token_sum":
        weights = weights / max(normaliser.num_rows, 1)
    if mode == "seq_mean_token_mean":
        weights = weights / segment_count(rows, num_rows, loss_mask).clamp(min=1)[rows]
    elif mode == "seq_mean_token_sum_norm":
        if normaliser.scale is None:
            raise ValueError("seq_mean_token_sum_norm needs Normaliser.scale")
        weights = weights / normaliser.scale
    return weights


def aggregate(
    token_losses: Tensor,
    mode: Aggregation,
    loss_mask: Tensor,
    rows: Tensor,
    num_rows: int,
    normaliser: Normaliser,
) -> Tensor:
    """[] this micro-batch's part of the update's loss, from token losses [T], in their dtype."""
    weights = token_weights(mode, loss_mask, rows, num_rows, normaliser)
    total = (wide(masked(token_losses, loss_mask)) * weights).sum()
    return total.to(token_losses.dtype)
