"""RLedger trains language models with reinforcement learning and keeps the books of it."""

__version__ = "0.1.0"
