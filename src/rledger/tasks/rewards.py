"""From a reward's settings to the function that computes it. Runs inside reward processes.

Imports of libraries stand inside the makers: a reward process loads only what its rewards need.
"""

from __future__ import annotations

import importlib
import logging
import re
import traceback
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from rledger.tasks.payload_codec import decode_value

__all__ = [
    "RewardFunction",
    "RewardUnusableError",
    "describe_error",
    "last_integer",
    "make_reward",
]

RewardFunction = Callable[[str, str, Mapping[str, Any]], Any]
"""(question, completion, payload) -> a number, or a mapping with `score` and components."""


class RewardUnusableError(Exception):
    """A reward cannot be set up; the message is the cause."""


def make_reward(settings: Mapping[str, Any]) -> RewardFunction:
    """The function for the JSON form of a reward section. Raises RewardUnusableError."""
    maker = _MAKERS[settings["type"]]
    reward = maker(settings)
    if settings["answer_pattern"] is None:
        return reward
    pattern = re.compile(settings["answer_pattern"], re.DOTALL)

    def reward_of_match(question: str, completion: str, payload: Mapping[str, Any]) -> Any:
        answer = None
        for match in pattern.finditer(completion):
            answer = match[match.re.groups]
        # The empty text is right nowhere, and its score has the components of all others.
        return reward(question, "" if answer is None else answer, payload)

    return reward_of_match


def _reasoning_gym(settings: Mapping[str, Any]) -> RewardFunction:
    import reasoning_gym

    threshold, partial_credit = settings["threshold"], settings["partial_credit"]
    dataset = reasoning_gym.create_dataset(settings["name"], **settings["params"], seed=0, size=1)

    def reward(question: str, completion: str, payload: Mapping[str, Any]) -> Any:
        score = float(dataset.score_answer(completion.strip(), decode_value(payload["entry"])))
        # Sums of partial credits may end a rounding error above 1, for an answer with a tail of
        # text behind the right one; what the library calls right it scores with 1 exactly.
        right = float(threshold <= score <= 1.0)
        return {"score": score, "acc": right} if partial_credit else right

    return reward


def _math_verify(settings: Mapping[str, Any]) -> RewardFunction:
    from math_verify import parse, verify

    # The library warns that its alarm-based timeout is off; the pool's deadline stands in for it.
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    @lru_cache(maxsize=256)
    def parse_gold(answer: str) -> Any:
        for text in (f"${answer}$", answer):
            gold = parse(text, parsing_timeout=None, raise_on_error=True)
            if not all(isinstance(expression, str) for expression in gold):
                return gold
        raise ValueError(f"math-verify finds no expression in the row's answer {answer!r}")

    def reward(question: str, completion: str, payload: Mapping[str, Any]) -> float:
        gold = parse_gold(payload["answer"])
        given = parse(completion, parsing_timeout=None, raise_on_error=True)
        return float(verify(gold, given, timeout_seconds=None, raise_on_error=True))

    return reward


def _exact(settings: Mapping[str, Any]) -> RewardFunction:
    def reward(question: str, completion: str, payload: Mapping[str, Any]) -> float:
        return float(completion.strip() == payload["answer"].strip())

    return reward


def last_integer(text: str) -> str | None:
    """The last integer of a text without leading zeros; a text, for int() has a length limit."""
    digits = re.findall(r"(?<![0-9])-?[0-9]+", text)
    if not digits:
        return None
    sign = "-" if digits[-1].startswith("-") else ""
    number = digits[-1].lstrip("-").lstrip("0")
    return sign + number if number else "0"


def _last_integer(settings: Mapping[str, Any]) -> RewardFunction:
    def reward(question: str, completion: str, payload: Mapping[str, Any]) -> float:
        gold = last_integer(payload["answer"])
        if gold is None:
            raise ValueError(f"the row's answer {payload['answer']!r} holds no integer")
        return float(last_integer(completion) == gold)

    return reward


def _function(settings: Mapping[str, Any]) -> RewardFunction:
    module_name, _, function_name = settings["path"].partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise RewardUnusableError(f"no module named {error.name!r}") from error
    except (Exception, SystemExit) as error:  # whatever foreign code does while it is imported
        raise RewardUnusableError(
            f"importing {module_name} raised {describe_error(error)}"
        ) from error
    function = vars(module).get(function_name)
    if function is None:
        known = ", ".join(
            name for name, value in vars(module).items() if callable(value) and name[0] != "_"
        )
        raise RewardUnusableError(
            f"module {module_name} ({module.__file__}) has no {function_name!r}; "
            f"callables there: {known or 'none'}"
        )
    if not callable(function):
        raise RewardUnusableError(f"{function_name!r} in {module_name} is not callable")
    reward: RewardFunction = function
    return reward


def describe_error(error: BaseException) -> str:
    """Type, text and place of an exception in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}"[:1500] + place


_MAKERS: dict[str, Callable[[Mapping[str, Any]], RewardFunction]] = {
    "reasoning_gym": _reasoning_gym,
    "math_verify": _math_verify,
    "exact": _exact,
    "last_integer": _last_integer,
    "function": _function,
}
