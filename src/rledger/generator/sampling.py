"""One token a row from logits, with its log-probability under both distributions.

Legend for shapes: R rows, V vocabulary, B blocks of BLOCK tokens of the vocabulary.

Order of the truncations as in transformers: top-k, then top-p of what is left, then min-p. Each keeps
all tokens above a logit, ties included, so which tokens stay does not depend on a sort's order.

A token is drawn by inverting the cumulative distribution at one uniform number, in two levels: the
block first, then the token within it. A cumulative sum over the whole vocabulary would cost as much
as the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rledger.types import SamplingParams

__all__ = ["Drawn", "Sampler"]

BLOCK = 128
TOP = 512  # most likely tokens among which top-p is looked for before the whole row is sorted


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn for each row; not finite where the logits were not."""

    token_ids: list[int]
    sampled_logprobs: list[float]
    generator_logprobs: list[float]


class Sampler:
    """Draws tokens; keeps its [R, V] float32 work space between calls."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._padded = -(-vocab_size // BLOCK) * BLOCK
        self._device = device
        self._space = torch.zeros(0, self._padded, device=device)

    def draw(
        self, logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
    ) -> Drawn:
        """A token a row of logits [R, V], by its params and its uniform number in [0, 1).

        Both may be shorter than R: the rows after them are padding.
        """
        count = len(params)
        highest = logits.amax(-1, keepdim=True).float()
        inverse = np.ones((len(logits), 1), dtype=np.float32)
        for row, param in enumerate(params):
            inverse[row] = 1.0 / param.temperature if param.temperature > 0 else 1.0
        factors = torch.from_numpy(inverse).to(self._device)
        weights = self._weights(logits, highest, factors)
        sums = weights.view(len(logits), -1, BLOCK).sum(-1, dtype=torch.float32).double()
        whole = sums.sum(-1)
        total = whole
        truncated = [row for row, param in enumerate(params) if param.truncates]
        if truncated:
            rows = torch.tensor(truncated, device=self._device)
            kept = _truncate(
                logits[rows],
                weights[rows],
                highest[rows],
                factors[rows],
                whole[rows],
                [params[r] for r in truncated],
            )
            weights[rows] = kept
            sums[rows] = kept.view(len(rows), -1, BLOCK).sum(-1).double()
            total = sums.sum(-1)
        points = np.zeros(len(logits))
        points[:count] = uniforms
        tokens = self._invert(weights, sums, torch.from_numpy(points).to(self._device))
        greedy = [row for row, param in enumerate(params) if param.temperature == 0]
        if greedy:
            rows = torch.tensor(greedy, device=self._device)
            tokens[rows] = _first_of(logits[rows] == highest[rows])
        chosen = logits.gather(1, tokens[:, None]).float()
        exponent = ((chosen - highest) * factors).double().squeeze(1)
        sampled = exponent - total.log()
        if greedy:
            sampled[rows] = (
                0.0 * sampled[rows]
            )  # all the mass on one token; still not a number if it was none
        return Drawn(
            tokens[:count].tolist(),
            sampled[:count].tolist(),
            (exponent - whole.log())[:count].tolist(),
        )

    def _weights(self, logits: Tensor, highest: Tensor, factors: Tensor) -> Tensor:
        """[R, padded V] exp((logit - highest) / temperature), zero in the padding."""
        if len(self._space) < len(logits):
            self._space = torch.zeros(len(logits), self._padded, device=self._device)
        space = self._space[: len(logits)]
        part = space[:, : self._vocab_size]
        torch.sub(logits, highest, out=part)
        if bool((factors != 1).any()):
            part.mul_(factors)
        part.exp_()
        return space

    def _invert(self, weights: Tensor, sums: Tensor, points: Tensor) -> Tensor:
        """[R] token at which the cumulative distribution passes `points` [R]."""
        block, rest = _pass(sums, points * sums.sum(-1))
        rows = torch.arange(len(weights), device=self._device)
        inside = weights.view(len(weights), -1, BLOCK)[rows, block].double()
        # the block's sum was rounded to float32: stretch what is left of it to the exact one
        stretch = inside.sum(-1) / sums[rows, block].clamp_min(torch.finfo(torch.float64).tiny)
        token, _ = _pass(inside, rest * stretch)
        return (block * BLOCK + token).clamp_(max=self._vocab_size - 1)


def _pass(masses: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """First index [R] whose cumulative mass exceeds `target` [R], and what of the target is left in it.

    `masses` is [R, n] float64. An index without mass is never returned, even where rounding put the
    target at the total.
    """
    cumulative = masses.cumsum(-1)
    last = (cumulative < cumulative[:, -1:]).sum(-1, keepdim=True)  # the last one with mass
    index = torch.searchsorted(cumulative, target[:, None], right=True).minimum(last)
    mass = masses.gather(1, index)
    before = cumulative.gather(1, index) - mass
    return index.squeeze(1), (target[:, None] - before).clamp_min(0).minimum(mass).squeeze(1)


def _first_of(hits: Tensor) -> Tensor:
    """[R] lowest column of each row of hits [R, V] that is True; the last column if none is."""
    columns = torch.arange(hits.shape[1], dtype=torch.int32, device=hits.device)
    return torch.where(hits, columns, hits.shape[1] - 1).amin(-1).long()


def _truncate(
    logits: Tensor,
    weights: Tensor,
    highest: Tensor,
    factors: Tensor,
    whole: Tensor,
    params: Sequence[SamplingParams],
) -> Tensor:
    """`weights` [R, padded V] with zeros for tokens that top-k, top-p or min-p exclude."""
    vocab_size = logits.shape[1]
    device = logits.device
    top_k = torch.tensor([p.top_k if p.top_k else vocab_size for p in params], device=device)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device)
    min_p = torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device)[:, None]
    wanted = [min(p.top_k, vocab_size) for p in params if p.top_k]
    if any(p.top_p < 1 for p in params):
        wanted.append(min(TOP, vocab_size))
    lowest = torch.full_like(highest, -torch.inf)  # [R, 1] smallest logit that stays
    if wanted:
        ranked = torch.topk(logits, max(wanted), dim=-1).values.float()
        inside = (top_k < vocab_size)[:, None]
        kth = ranked.gather(1, (top_k.clamp(max=ranked.shape[1]) - 1)[:, None])
        lowest = torch.where(inside, kth, lowest)
        left = torch.where(logits.float() >= lowest, weights[:, :vocab_size], 0.0)
        mass = torch.where(inside.squeeze(1), left.sum(-1, dtype=torch.float64), whole)
        for row in (top_p < 1).nonzero().flatten().tolist():
            reached = _nucleus(
                ranked[row], logits[row], highest[row], factors[row], top_p[row] * mass[row]
            )
            lowest[row] = torch.maximum(lowest[row], reached)
    kept = weights >= min_p  # the most likely token weighs 1
    kept[:, :vocab_size] &= logits.float() >= lowest
    return torch.where(kept, weights, 0.0)


def _nucleus(
    ranked: Tensor, logits: Tensor, highest: Tensor, factor: Tensor, mass: Tensor
) -> Tensor:
    """Logit [] of the token at which the most likely ones reach `mass`; `ranked` falls."""
    for candidates in (ranked, None):
        if candidates is None:
            candidates = logits.float().sort(descending=True).values
        cumulative = ((candidates - highest) * factor).double().exp().cumsum(0)
        index = int((cumulative < mass).sum())
        if index < len(candidates):
            return candidates[index]
    return logits.amin().float()  # rounding: all of it is needed
