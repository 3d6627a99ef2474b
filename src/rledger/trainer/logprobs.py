"""Log-probabilities and entropies of chosen tokens without the logits ever standing whole.

Legend for shapes: N positions, D width, V vocabulary; n rows and v columns of a tile.

Logits are made tile by tile [n, v], in the weights' dtype, and reduced in float32. The exponentials of
a tile are kept for the backward pass up to `KEPT_BYTES`; the logits of the others are made again. So
at most `KEPT_BYTES` and three tiles of `MAX_TILE` logits (20 MB on a CPU) stand at any time,
whatever N and V. The gradient of the weight is added straight to its accumulator: in float32, and
without a second matrix of V rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["token_logprobs"]

# Logits of a tile. On a CPU it stays in the third-level cache; larger ones keep a GPU busy.
MAX_TILE = {"cpu": 1 << 21, "cuda": 1 << 27}
TILE_ROWS = {"cpu": 1024, "cuda": 8192}
# It saves these tiles a third of the backward pass's products, and every pass over the tile.
KEPT_BYTES = 1 << 28


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    weight_grad: Tensor | None = None,
    *,
    entropy_has_grad: bool = False,
) -> tuple[Tensor, Tensor]:
    """([N], [N]) float32 log-probabilities of `targets` [N] and entropies in nats.

    Of softmax(hidden weight^T / temperature), hidden [N, D] and weight [V, D]. The gradient of
    `hidden` flows; that of the weight is added to `weight_grad` [V, D] when the backward pass runs.
    Entropies carry a gradient only with `entropy_has_grad`, which costs more.
    """
    logprobs, entropies = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden, weight.detach(), targets, temperature, weight_grad, entropy_has_grad
    )
    return cast(Tensor, logprobs), cast(Tensor, entropies)


class _Tiles:
    """Row and column ranges, and the memory of a tile, used again for each."""

    def __init__(self, hidden: Tensor, weight: Tensor, temperature: float) -> None:
        kind = hidden.device.type if hidden.device.type in MAX_TILE else "cpu"
        self.hidden, self.weight, self.inverse_temperature = hidden, weight, 1.0 / temperature
        self.rows = min(TILE_ROWS[kind], max(len(hidden), 1))
        self.columns = min(MAX_TILE[kind] // self.rows, len(weight))
        self.wide = torch.promote_types(hidden.dtype, torch.float32)
        size = self.rows * self.columns
        self._narrow = hidden.new_empty(size)
        self._scaled = hidden.new_empty(size, dtype=self.wide)
        self._scratch = hidden.new_empty(size, dtype=self.wide)

    def row_ranges(self) -> Iterator[slice]:
        for start in range(0, len(self.hidden), self.rows):
            yield slice(start, min(start + self.rows, len(self.hidden)))

    def column_ranges(self) -> Iterator[slice]:
        for start in range(0, len(self.weight), self.columns):
            yield slice(start, min(start + self.columns, len(self.weight)))

    def scratch(self, rows: slice, columns: slice) -> Tensor:
        """[n, v] float32 whose content does not matter."""
        return self._cut(self._scratch, rows, columns)

    def narrow(self, rows: slice, columns: slice) -> Tensor:
        """[n, v] in the weights' dtype; overwritten by the next tile's logits."""
        return self._cut(self._narrow, rows, columns)

    def logits(self, rows: slice, columns: slice) -> Tensor:
        """[n, v] float32 over the temperature."""
        narrow = self.narrow(rows, columns)
        torch.mm(self.hidden[rows], self.weight[columns].t(), out=narrow)
        scaled = self._cut(self._scaled, rows, columns)
        return torch.mul(narrow, self.inverse_temperature, out=scaled)

    @staticmethod
    def _cut(memory: Tensor, rows: slice, columns: slice) -> Tensor:
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        return memory[: shape[0] * shape[1]].view(shape)


class _Kept:
    """Exponentials of tiles, by first row and first column, with what they are relative to."""

    def __init__(self, spare_bytes: int) -> None:
        self._spare_bytes = spare_bytes
        self._tiles: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def offer(
        self, rows: slice, columns: slice, powers: Tensor, dtype: torch.dtype, m: Tensor
    ) -> None:
        """Keep exp(logits - m) [n, v], m [n], where there is room."""
        num_bytes = powers.numel() * dtype.itemsize
        if num_bytes <= self._spare_bytes:
            self._spare_bytes -= num_bytes
            self._tiles[rows.start, columns.start] = (powers.to(dtype, copy=True), m)

    def take(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor] | None:
        """What was kept, and it is forgotten."""
        return self._tiles.pop((rows.start, columns.start), None)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        weight_grad: Tensor | None,
        entropy_has_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        tiles = _Tiles(hidden, weight, temperature)
        # the gradient of an entropy needs the logits themselves
        keeps = ctx.needs_input_grad[0] and not entropy_has_grad
        kept = _Kept(KEPT_BYTES if keeps else 0)
        num = len(hidden)
        normalisers = hidden.new_empty(num, dtype=tiles.wide)
        expected = torch.empty_like(normalisers)  # of the logit, under the softmax
        chosen = torch.empty_like(normalisers)
        for rows in tiles.row_ranges():
            normalisers[rows], expected[rows], chosen[rows] = _reduce(
                tiles, rows, targets[rows], kept
            )
        entropies = normalisers - expected
        ctx.save_for_backward(hidden, weight, targets, normalisers, entropies)
        ctx.temperature, ctx.weight_grad = temperature, weight_grad
        ctx.entropy_has_grad, ctx.kept = entropy_has_grad, kept
        if not entropy_has_grad:
            ctx.mark_non_differentiable(entropies)
        return chosen - normalisers, entropies

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor, grad_entropies: Tensor
    ) -> tuple[Tensor, None, None, None, None, None]:
        """With p the softmax and H the entropy: d logit = g (onehot - p) - h p (log p + H).

        The one-hot part is a gather and a scatter, apart from the tiles.
        """
        hidden, weight, targets, normalisers, entropies = ctx.saved_tensors
        tiles = _Tiles(hidden, weight, ctx.temperature)
        slope = grad_logprobs[:, None] * tiles.inverse_temperature
        grad_entropy = grad_entropies[:, None] * tiles.inverse_temperature
        grad_hidden = weight.index_select(0, targets).to(tiles.wide).mul_(slope)
        if ctx.weight_grad is not None:
            ctx.weight_grad.index_add_(0, targets, hidden.to(tiles.wide) * slope)
        for columns in tiles.column_ranges():
            for rows in tiles.row_ranges():
                found = ctx.kept.take(rows, columns)
                if found is not None:
                    # a row's factor goes to the narrow side of each product: no pass over the tile
                    grad, relative_to = found
                    factor = slope[rows] * (relative_to - normalisers[rows]).exp()[:, None]
                    grad_hidden[rows] -= factor * (grad @ weight[columns])
                    states = (hidden[rows] * factor).to(hidden.dtype)
                else:
                    logs = tiles.logits(rows, columns).sub_(normalisers[rows, None])
                    probabilities = torch.exp(logs, out=tiles.scratch(rows, columns))
                    factor = slope[rows]
                    if ctx.entropy_has_grad:
                        # p (g + h (log p + H)), the sign below
                        logs.add_(entropies[rows, None]).mul_(grad_entropy[rows]).add_(factor)
                        factor = logs
                    grad = torch.mul(probabilities, factor, out=tiles.narrow(rows, columns))
                    grad_hidden[rows] -= grad @ weight[columns]
                    states = hidden[rows]
                if ctx.weight_grad is not None:
                    ctx.weight_grad[columns] -= grad.t() @ states
        return grad_hidden.to(hidden.dtype), None, None, None, None, None


def _reduce(
    tiles: _Tiles, rows: slice, targets: Tensor, kept: _Kept
) -> tuple[Tensor, Tensor, Tensor]:
    """[n] each: log of the sum of exponentials, mean logit under the softmax, logit of the target.

    One pass over the columns, the sums kept relative to the largest logit so far.
    """
    size = rows.stop - rows.start
    largest = targets.new_full((size,), -torch.inf, dtype=tiles.wide)
    total = torch.zeros_like(largest)
    weighted = torch.zeros_like(largest)  # sum of exp(logit - largest) (logit - largest)
    chosen = torch.zeros_like(largest)
    for columns in tiles.column_ranges():
        logits = tiles.logits(rows, columns)
        place = targets - columns.start
        inside = (place >= 0) & (place < logits.shape[1])
        picked = logits.gather(1, place.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
        chosen = torch.where(inside, picked, chosen)
        higher = torch.maximum(largest, logits.amax(1))
        # the first time there is nothing to rescale, and -inf - higher times 0 would be NaN
        shift = torch.where(total > 0, largest - higher, torch.zeros_like(higher))
        scale = shift.exp()
        weighted = scale * (weighted + shift * total)
        total = total * scale
        relative = logits.sub_(higher[:, None])
        powers = torch.exp(relative, out=tiles.scratch(rows, columns))
        kept.offer(rows, columns, powers, tiles.hidden.dtype, higher)
        total += powers.sum(1)
        weighted += torch.linalg.vecdot(powers, relative)
        largest = higher
    normaliser = largest + total.log()
    return normaliser, largest + weighted / total, chosen
