"""The exceptions RLedger raises on purpose. Each message names the culprit and the fix.

`UserError` and what derives from it end a command with exit status 2 and the message alone; anything
else is a defect of ours and ends with a traceback.
"""

from __future__ import annotations

__all__ = [
    "BooksError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ModelError",
    "NonFiniteError",
    "RLedgerError",
    "RunFolderError",
    "StageTimeoutError",
    "StaleDataError",
    "UserError",
]


class RLedgerError(Exception):
    """Base of all exceptions raised on purpose."""


class UserError(RLedgerError):
    """Something outside the program must change; the message says what and how."""


class ConfigError(UserError):
    """A recipe or an override is wrong: unknown key, bad value, or keys that contradict each other."""


class ModelError(UserError):
    """A model folder is missing, foreign or holds a tensor of the wrong shape."""


class DataError(UserError):
    """A data set, a row of it, an environment or a reward function is unusable."""


class CheckpointError(UserError):
    """A checkpoint cannot be written or read; the one before it is untouched."""


class RunFolderError(UserError):
    """A run folder exists, belongs to another configuration, or cannot be written."""


class NonFiniteError(UserError):
    """A loss or a gradient is not finite; raised before the update, so the weights are still good."""


class StageTimeoutError(UserError):
    """A stage made no end within its deadline; the message names it and whom it waited for."""


class StaleDataError(RLedgerError):
    """A token older than `max_policy_age` reached a take: a defect, never a warning."""


class BooksError(RLedgerError):
    """The books do not balance, or something undeclared was booked."""
