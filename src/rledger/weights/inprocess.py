"""Trainer and generators in one process: the generator reads the trainer's tensors and keeps its own."""

from __future__ import annotations

from collections.abc import Sequence

from rledger.errors import RLedgerError
from rledger.interfaces import Generator, Trainer

__all__ = ["InProcessTransport", "TornWeightsError"]


class TornWeightsError(RLedgerError):
    """A generator's weights differ from the trainer's after a publish."""


class InProcessTransport:
    """Hands views of the trainer's weights over; each generator copies them at a token boundary.

    Generators own their copy, so an update in place never changes a token in the making. With `verify`
    each generator's digest is compared with the trainer's after each publish.
    """

    def __init__(self, *, verify: bool = True) -> None:
        self._verify = verify

    async def publish(
        self, trainer: Trainer, generators: Sequence[Generator], policy_version: int
    ) -> int:
        """Bytes moved. Raises TornWeightsError when a digest differs."""
        weights = trainer.export_weights()
        moved = sum(int(tensor.nbytes) for tensor in weights.values()) * len(generators)
        for generator in generators:
            await generator.load_weights(weights, policy_version)
        if self._verify:
            expected = trainer.weights_digest()
            for index, generator in enumerate(generators):
                if generator.weights_digest() != expected:
                    raise TornWeightsError(
                        f"generator {index} serves other weights than the trainer's version"
                        f" {policy_version}; its digest differs after the publish"
                    )
        return moved
