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
        self._kept_space = torch.zeros(0, self._padded, device=device)

    def draw(
        self, logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
    ) -> Drawn:
        """A token a row of logits [R, V], by its params and its uniform number in [0, 1).

        Both may be shorter than R: the rows after them are padding.
        """
        count = len(params)
        probs = self._probabilities(logits, params)
        sums = _block_sums(probs)
        whole = total = sums.sum(-1)
        truncated = [row for row, param in enumerate(params) if param.truncates]
        if truncated:
            rows = torch.tensor(truncated, device=self._device)
            kept = _truncate(
                logits[rows], probs[rows], whole[rows], [params[row] for row in truncated]
            )
            probs[rows], sums[rows] = kept, _block_sums(kept)
            total = sums.sum(-1)
        points = torch.zeros(len(logits), dtype=torch.float64)
        points[:count] = torch.tensor(uniforms, dtype=torch.float64)
        tokens = self._invert(probs, sums, points.to(self._device))
        greedy = [row for row, param in enumerate(params) if param.temperature == 0]
        rows = torch.tensor(greedy, dtype=torch.int64, device=self._device)
        if greedy:
            of_greedy = logits[rows]
            tokens[rows] = _first_of(of_greedy == of_greedy.amax(-1, keepdim=True))
        log_mass = probs.gather(1, tokens[:, None]).squeeze(1).double().log()
        sampled = log_mass - total.log()
        sampled[rows] = 0.0 * sampled[rows]  # all mass on one token; not a number if it was none
        return Drawn(
            tokens[:count].tolist(),
            sampled[:count].tolist(),
            (log_mass - whole.log())[:count].tolist(),
        )

    def _probabilities(self, logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
        """[R, padded V] softmax at each row's temperature, zero in the padding."""
        scores = logits.float()
        factors = np.ones((len(logits), 1), dtype=np.float32)
        for row, param in enumerate(params):
            if param.temperature > 0:
                factors[row] = 1.0 / param.temperature
        if (factors != 1).any():
            scores = scores * torch.from_numpy(factors).to(self._device)
        if self._padded == self._vocab_size:
            return torch.softmax(scores, dim=-1, out=self._space(len(logits)))
        space = self._space(len(logits))
        space[:, : self._vocab_size] = torch.softmax(scores, dim=-1)
        return space

    def _space(self, rows: int) -> Tensor:
        """[R, padded V] work space; its padding is zero for ever."""
        if len(self._kept_space) < rows:
            self._kept_space = torch.zeros(rows, self._padded, device=self._device)
        return self._kept_space[:rows]

    def _invert(self, probs: Tensor, sums: Tensor, points: Tensor) -> Tensor:
        """[R] token at which the cumulative distribution passes `points` [R]."""
        block, rest = _pass(sums, points * sums.sum(-1))
        rows = torch.arange(len(probs), device=self._device)
        inside = probs.view(len(probs), -1, BLOCK)[rows, block].double()
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


def _block_sums(probs: Tensor) -> Tensor:
    """[R, B] float64 sums of the blocks of probs [R, padded V]."""
    return probs.view(len(probs), -1, BLOCK).sum(-1).double()


def _truncate(
    logits: Tensor, probs: Tensor, whole: Tensor, params: Sequence[SamplingParams]
) -> Tensor:
    """`probs` [R, padded V] with zeros for tokens that top-k, top-p or min-p exclude.

    `whole` [R] is the mass of each row.
    """
    vocab_size = logits.shape[1]
    device = logits.device
    top_k = torch.tensor([p.top_k or vocab_size for p in params], device=device)
    min_p = torch.tensor([p.min_p for p in params], device=device)[:, None]
    wanted = [min(p.top_k, vocab_size) for p in params if p.top_k]
    if any(p.top_p < 1 for p in params):
        wanted.append(min(TOP, vocab_size))
    lowest = torch.full((len(params), 1), -torch.inf, device=device)  # smallest logit that stays
    if wanted:
        ranked, order = torch.topk(logits, max(wanted), dim=-1)
        inside = top_k < vocab_size
        kth = ranked.gather(1, (top_k.clamp(max=ranked.shape[1]) - 1)[:, None]).float()
        lowest = torch.where(inside[:, None], kth, lowest)
        left = torch.where(logits >= lowest, probs[:, :vocab_size], 0.0)
        mass = torch.where(inside, left.sum(-1).double(), whole)
        top_probs = probs.gather(1, order)
        for row, param in enumerate(params):
            if param.top_p < 1:
                reached = _nucleus(
                    ranked[row], top_probs[row], logits[row], probs[row], param.top_p * mass[row]
                )
                lowest[row] = torch.maximum(lowest[row], reached)
    kept = probs >= min_p * probs.amax(-1, keepdim=True)
    kept[:, :vocab_size] &= logits >= lowest
    return torch.where(kept, probs, 0.0)


def _nucleus(
    ranked: Tensor, top_probs: Tensor, logits: Tensor, probs: Tensor, mass: Tensor
) -> Tensor:
    """Logit [] of the token at which the most likely ones reach `mass`; `ranked` falls."""
    index = int((top_probs.double().cumsum(0) < mass).sum())
    if index == len(ranked) < len(logits):
        ranked, order = logits.sort(descending=True)
        index = int((probs[order].double().cumsum(0) < mass).sum())
    return ranked[min(index, len(ranked) - 1)].float()  # rounding may want more than there is
