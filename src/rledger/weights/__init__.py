"""Moving a published version from the trainer to each generator; one file a transport."""

from __future__ import annotations

from rledger.weights.inprocess import InProcessTransport

__all__ = ["InProcessTransport"]
