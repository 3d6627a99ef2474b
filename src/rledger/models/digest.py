"""A digest of weights that trainer and generator compute alike, on any device, in one pass of sums."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["weights_digest"]

COLUMNS = 1024  # words of 8 bytes in a row of the sums
_WORD_BYTES = 8


def weights_digest(state: Mapping[str, Tensor]) -> str:
    """Hexadecimal digest of names, dtypes, shapes and bits; the order of `state` plays no part.

    Each tensor's bits are summed as 64-bit words along rows and columns (exactly, modulo 2^64, hence
    in any order and on any device); the sums are hashed. Any single changed value changes a row sum;
    it detects accidents, not forgeries.
    """
    digest = hashlib.sha256()
    with torch.no_grad():
        for name in sorted(state):
            tensor = state[name].detach()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            for sums in _sums(tensor):
                digest.update(sums.cpu().numpy().tobytes())
    return digest.hexdigest()


def _sums(tensor: Tensor) -> list[Tensor]:
    """Row sums and column sums of the tensor's words, and the words that fill no row, int64."""
    octets = tensor.contiguous().view(-1).view(torch.uint8)
    rest_bytes = octets.numel() % (COLUMNS * _WORD_BYTES)
    if octets.storage_offset() % _WORD_BYTES != 0:
        octets = octets.clone()  # a view of 8-byte words must begin on one
    whole, rest = octets[: octets.numel() - rest_bytes], octets[octets.numel() - rest_bytes :]
    sums = [rest]
    if len(whole):
        words = whole.view(torch.int64).view(-1, COLUMNS)
        sums += [words.sum(0), words.sum(1)]
    return sums
