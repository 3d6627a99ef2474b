"""When a completion ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rledger.types import FinishReason, SamplingParams

__all__ = ["finish_reason"]

_SLACK_TOKENS = 8  # tokens without text (special ones) that may stand within a stop string


def finish_reason(
    params: SamplingParams,
    token_ids: Sequence[int],
    decode: Callable[[Sequence[int]], str] | None,
) -> FinishReason | None:
    """Why the completion ends with its newest token, or None.

    Before `min_new_tokens` nothing ends it; a stop token that is drawn there stays in it, so that the
    distribution sampled from is never altered. The text of a stop string stays in it too.
    """
    if len(token_ids) >= max(params.min_new_tokens, 1):
        if token_ids[-1] in params.stop_token_ids:
            return "stop"
        if params.stop_strings and decode is not None and _ends(params, token_ids, decode):
            return "stop"
    return "length" if len(token_ids) >= params.max_new_tokens else None


def _ends(
    params: SamplingParams, token_ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> bool:
    """Whether the text holds a stop string.

    Only a tail that surely covers a string just completed is decoded at each token; the whole text
    confirms, since a tail may begin within a character.
    """
    longest = max(len(string.encode()) for string in params.stop_strings)
    tail = decode(token_ids[-(longest + _SLACK_TOKENS) :])
    if not any(string in tail for string in params.stop_strings):
        return False
    text = decode(token_ids)
    return any(string in text for string in params.stop_strings)
