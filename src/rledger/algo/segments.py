"""Reductions and scans over ragged segments without padding and without a loop over rows.

Legend for shapes: N elements, S segments. `segments[i]` is the index of element i's segment.
Reductions take segments in any order; scans need the elements of a segment to stand together, in
order.

Sums are made in float64 (float32 where the device has no float64), so that the order in which a
device adds does not show in float32 results.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "masked",
    "masked_mean",
    "next_in_segment",
    "reverse_discounted_scan",
    "segment_count",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_std",
    "segment_sum",
    "whiten",
    "wide",
]


def wide(values: Tensor) -> Tensor:
    """The values in the dtype that sums are made in."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def masked(values: Tensor, mask: Tensor | None) -> Tensor:
    """The values with 0 where the mask is false, whatever stood there; no gradient flows there."""
    return values if mask is None else torch.where(mask, values, torch.zeros_like(values))


def segment_sum(
    values: Tensor, segments: Tensor, num_segments: int, mask: Tensor | None = None
) -> Tensor:
    """[S] sum of each segment's values [N] under the mask; 0 for a segment without any."""
    values = wide(masked(values, mask))
    return values.new_zeros(num_segments).index_add(0, segments, values)


def segment_count(segments: Tensor, num_segments: int, mask: Tensor | None = None) -> Tensor:
    """[S] number of elements of each segment under the mask, as a float."""
    ones = torch.ones(segments.shape, dtype=torch.float32, device=segments.device)
    return segment_sum(ones, segments, num_segments, mask)


def segment_mean(
    values: Tensor, segments: Tensor, num_segments: int, mask: Tensor | None = None
) -> Tensor:
    """[S] mean of each segment's values [N] under the mask; 0 for a segment without any."""
    total = segment_sum(values, segments, num_segments, mask)
    return total / segment_count(segments, num_segments, mask).clamp(min=1)


def segment_std(
    values: Tensor, segments: Tensor, num_segments: int, mask: Tensor | None = None
) -> Tensor:
    """[S] standard deviation of each segment (n - 1 in the denominator); 0 for fewer than two."""
    mean = segment_mean(values, segments, num_segments, mask)
    squares = (wide(masked(values, mask)) - mean[segments]).square()
    total = segment_sum(squares, segments, num_segments, mask)
    return (total / (segment_count(segments, num_segments, mask) - 1).clamp(min=1)).sqrt()


def _segment_extreme(
    values: Tensor, segments: Tensor, num_segments: int, mask: Tensor | None, *, largest: bool
) -> Tensor:
    empty = -torch.inf if largest else torch.inf
    kept = values if mask is None else torch.where(mask, values, torch.full_like(values, empty))
    start = torch.full((num_segments,), empty, dtype=values.dtype, device=values.device)
    return start.scatter_reduce(0, segments, kept, reduce="amax" if largest else "amin")


def segment_max(
    values: Tensor, segments: Tensor, num_segments: int, mask: Tensor | None = None
) -> Tensor:
    """[S] largest value of each segment under the mask; -inf for a segment without any."""
    return _segment_extreme(values, segments, num_segments, mask, largest=True)


def segment_min(
    values: Tensor, segments: Tensor, num_segments: int, mask: Tensor | None = None
) -> Tensor:
    """[S] smallest value of each segment under the mask; inf for a segment without any."""
    return _segment_extreme(values, segments, num_segments, mask, largest=False)


def next_in_segment(values: Tensor, segments: Tensor) -> Tensor:
    """[N] the value that follows within the segment; 0 at the segment's last element."""
    following = torch.zeros_like(values)
    following[:-1] = masked(values[1:], segments[1:] == segments[:-1])
    return following


def reverse_discounted_scan(values: Tensor, segments: Tensor, discount: float) -> Tensor:
    """[N] y[t] = values[t] + discount * y[t + 1] within each segment, in the dtype of `wide`.

    By doubling: after k rounds y[t] holds the discounted sum of the 2**k elements from t on, so
    ceil(log2(longest segment)) passes over N elements do, and nothing is ever divided by a power of
    the discount. `discount` lies in 0..1.
    """
    scanned = wide(values).clone()
    if scanned.numel() == 0:
        return scanned
    longest = int(torch.bincount(segments).max())
    factor, shift = discount, 1
    while shift < longest and factor != 0.0:
        same = segments[shift:] == segments[:-shift]
        scanned[:-shift] += factor * masked(scanned[shift:], same)
        factor, shift = factor * factor, 2 * shift
    return scanned


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """[] mean of the values [N] under the mask; 0 where the mask is empty."""
    return wide(masked(values, mask)).sum() / mask.sum().clamp(min=1)


def whiten(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """[N] (x - mean) / sqrt(var + epsilon) over the elements under the mask, 0 elsewhere.

    The variance has n - 1 in its denominator. Values that are all equal, or a single one, become 0.
    """
    kept = wide(values)
    centred = masked(kept - masked_mean(kept, mask), mask)
    variance = centred.square().sum() / (mask.sum() - 1).clamp(min=1)
    return centred * torch.rsqrt(variance + epsilon)
