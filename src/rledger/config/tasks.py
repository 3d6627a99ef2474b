"""The table `[tasks]`: data sets, prompts, rewards and the processes that compute them."""

from __future__ import annotations

import re
import string
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue, model_validator

from rledger.config.base import Section

__all__ = [
    "ArithmeticSumsData",
    "DataConfig",
    "ExactReward",
    "FunctionReward",
    "JsonlData",
    "LastIntegerReward",
    "MathVerifyReward",
    "MixtureData",
    "ReasoningGymData",
    "ReasoningGymReward",
    "RewardConfig",
    "RewardSection",
    "SingleData",
    "SingleDataSection",
    "TasksConfig",
    "template_fields",
]


def template_fields(template: str) -> tuple[str, ...]:
    """Names in braces of a prompt template. Raises ValueError for anything but plain names."""
    fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    for name in fields:
        if not name.isidentifier():
            raise ValueError(f"{{{name}}} is no plain name; write literal braces as {{{{ and }}}}")
    return tuple(dict.fromkeys(fields))


def _check_template(template: str) -> str:
    if not template_fields(template):
        raise ValueError('the template shows nothing of the row; name a field, as in "{question}"')
    return template


def _check_pattern(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if groups > 1:
        raise ValueError("more than one group; make all but the answer's non-capturing: (?:...)")
    return pattern


def _check_import_path(path: str) -> str:
    module, separator, function = path.partition(":")
    parts = module.split(".")
    if not separator or not function.isidentifier() or not all(p.isidentifier() for p in parts):
        raise ValueError('write it as "package.module:function"')
    return path


Template = Annotated[str, AfterValidator(_check_template)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
ImportPath = Annotated[str, AfterValidator(_check_import_path)]


class RewardSection(Section):
    """What every reward has."""

    answer_pattern: Pattern | None = None
    """Regular expression; the last match's group (or whole match) is scored, no match scores 0."""


class ReasoningGymReward(RewardSection):
    """The data set's own `score_answer`."""

    type: Literal["reasoning_gym"] = "reasoning_gym"
    threshold: float = Field(default=1.0, gt=0, le=1)
    """Score from which an answer counts as right."""
    partial_credit: bool = False
    """Reward with the score itself instead of 1 or 0; accuracy keeps to the threshold."""


class MathVerifyReward(RewardSection):
    """1 if math-verify finds the completion's answer equal to the row's, else 0."""

    type: Literal["math_verify"] = "math_verify"


class ExactReward(RewardSection):
    """1 if the completion is the row's answer, white space around both ignored, else 0."""

    type: Literal["exact"] = "exact"


class LastIntegerReward(RewardSection):
    """1 if the last integer of the completion is the row's answer, else 0."""

    type: Literal["last_integer"] = "last_integer"


class FunctionReward(RewardSection):
    """A Python function of yours.

    (prompt: str, completion: str, payload: Mapping[str, object]) -> float | Mapping[str, float]

    `prompt` is the question, `payload` holds `question`, `answer` and, for JSONL, the whole `row`.
    A mapping must have `score`; its other numbers are the components, `acc` is the accuracy.
    """

    type: Literal["function"] = "function"
    path: ImportPath
    """Where the function is: "package.module:function"."""


AnyRowReward = Annotated[
    MathVerifyReward | ExactReward | LastIntegerReward | FunctionReward, Field(discriminator="type")
]
RewardConfig = Annotated[
    ReasoningGymReward | MathVerifyReward | ExactReward | LastIntegerReward | FunctionReward,
    Field(discriminator="type"),
]


class SingleDataSection(Section):
    """What every data set has."""

    task_name: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")
    """Name in metrics and ids; empty takes the data set's own name."""
    weight: float = Field(default=1.0, gt=0)
    """Share of prompts in a mixture, relative to the other parts."""

    @property
    def task(self) -> str:
        """The task's name, as it stands in metrics."""
        raise NotImplementedError


class ReasoningGymData(SingleDataSection):
    """A procedurally generated data set of reasoning-gym."""

    type: Literal["reasoning_gym"] = "reasoning_gym"
    name: str
    """Name of the data set in reasoning-gym, such as "spell_backward"."""
    params: dict[str, JsonValue] = Field(default={})
    """The data set's own parameters; its `seed` and `size` are set by the two keys below."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the rows. The run's seed orders them; both splits stay the same across runs."""
    num_train_prompts: int = Field(default=10_000, ge=1)
    """Rows of an epoch."""
    num_eval_prompts: int = Field(default=256, ge=0)
    """Held-out rows, distinct in text; a training row with the text of one is passed over."""
    template: Template = "{question}"
    """What the model is asked: `{question}` or names out of the row's metadata."""
    reward: RewardConfig = ReasoningGymReward()
    """How a completion is scored."""

    @property
    def task(self) -> str:
        return self.task_name or self.name

    @model_validator(mode="after")
    def _check_params(self) -> ReasoningGymData:
        for key, instead in (("seed", "seed"), ("size", "num_train_prompts")):
            if key in self.params:
                raise ValueError(f"params.{key} is set by the data set's own key {instead}")
        return self


class JsonlData(SingleDataSection):
    """A file with one JSON object a line; a GSM8K-format file works as it is."""

    type: Literal["jsonl"] = "jsonl"
    path: str
    """The training rows; without `eval_path` the held-out rows too."""
    eval_path: str | None = None
    """A file of held-out rows; training rows with the text of one are passed over."""
    eval_frac: float = Field(default=0.05, ge=0, lt=1)
    """Fraction of `path` held out, chosen by a hash of the text; not used with `eval_path`."""
    prompt_key: str = "question"
    """Key of the question."""
    answer_key: str = "answer"
    """Key of the answer; of a text with "####" the part after the last one counts."""
    template: Template = "{question}"
    """What the model is asked: `{question}` or other keys of the row."""
    reward: AnyRowReward = MathVerifyReward()
    """How a completion is scored."""

    @property
    def task(self) -> str:
        return self.task_name or re.sub(r"[^A-Za-z0-9_.-]", "_", PurePath(self.path).stem)


class ArithmeticSumsData(SingleDataSection):
    """Sums of two numbers."""

    type: Literal["arithmetic_sums"] = "arithmetic_sums"
    max_operand: int = Field(default=50, ge=1, le=10_000)
    """Both numbers lie between 0 and this."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the split; a pair is held out in both orders."""
    num_eval_prompts: int = Field(default=256, ge=0)
    """Held-out sums."""
    template: Template = "What is {a} + {b}? Answer with just the number."
    """What the model is asked; `{a}` and `{b}` are the numbers."""
    reward: AnyRowReward = LastIntegerReward()
    """How a completion is scored."""

    @property
    def task(self) -> str:
        return self.task_name or "arithmetic_sums"

    @model_validator(mode="after")
    def _check_sums(self) -> ArithmeticSumsData:
        if set(template_fields(self.template)) != {"a", "b"}:
            raise ValueError("template must show both {a} and {b}, and nothing else in braces")
        num_sums = (self.max_operand + 1) ** 2
        if self.num_eval_prompts >= num_sums // 2:
            raise ValueError(
                f"num_eval_prompts = {self.num_eval_prompts} leaves less than half of the "
                f"{num_sums} sums for training; raise max_operand or lower num_eval_prompts"
            )
        return self


SingleData = Annotated[
    ReasoningGymData | JsonlData | ArithmeticSumsData, Field(discriminator="type")
]


class MixtureData(Section):
    """Several data sets, drawn from in proportion to their weights."""

    type: Literal["mixture"] = "mixture"
    parts: tuple[SingleData, ...] = Field(min_length=1)
    """The data sets."""

    @model_validator(mode="after")
    def _check_names(self) -> MixtureData:
        names = [part.task for part in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two parts are called {name!r}; give one of them a task_name")
        return self


DataConfig = Annotated[
    ReasoningGymData | JsonlData | ArithmeticSumsData | MixtureData, Field(discriminator="type")
]


class TasksConfig(Section):
    """Prompts and rewards."""

    data: DataConfig
    """Where prompts come from and how completions are scored."""
    system_prompt: str | None = None
    """A system message before each prompt; needs a chat template."""
    chat_template: bool = True
    """Render prompts with the model folder's chat template where it has one; else plain text."""
    chat_template_args: dict[str, JsonValue] = Field(default={})
    """Further variables of the chat template, such as enable_thinking = false."""
    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longest prompt, chat template included."""
    overlong_prompts: Literal["refuse", "skip"] = "refuse"
    """What a longer one does: stop the run, or be passed over and counted."""
    num_workers: int = Field(default=2, ge=1, le=1024)
    """Processes that compute rewards."""
    deadline_s: float = Field(default=10.0, gt=0, le=3600)
    """Time for one reward; then its process is killed, and the trajectory fails: it is never 0."""
    max_worker_bytes: int = Field(default=4 * 2**30, ge=256 * 2**20)
    """Memory one reward process may allocate; beyond it allocations fail inside the reward."""

    @property
    def datasets(self) -> tuple[ReasoningGymData | JsonlData | ArithmeticSumsData, ...]:
        """The data sets, one or several."""
        return self.data.parts if isinstance(self.data, MixtureData) else (self.data,)

    @model_validator(mode="after")
    def _check_system_prompt(self) -> TasksConfig:
        if self.system_prompt is not None and not self.chat_template:
            raise ValueError("system_prompt needs chat_template = true; drop one of the two")
        return self
