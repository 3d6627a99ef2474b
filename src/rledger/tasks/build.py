"""The real tasks: data sets, a tokenizer and reward processes behind one role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from rledger.books import Lane
from rledger.config.tasks import ArithmeticSumsData, JsonlData, ReasoningGymData, TasksConfig
from rledger.errors import DataError
from rledger.tasks.datasets import ArithmeticSums, Dataset, Row, reward_settings
from rledger.tasks.order import TrainingOrder
from rledger.tasks.reward_pool import RewardPool, RewardStats
from rledger.tasks.tokenizer import PromptTokenizer
from rledger.types import Failure, Prompt, Score, Trajectory

__all__ = ["LocalTasks", "build_dataset", "build_tasks"]

_MAX_PASSED_OVER = 10_000  # rows in a row that may be passed over before the run stops


def build_tasks(
    config: TasksConfig, model_folder: Path | str, seed: int, lane: Lane | None = None
) -> LocalTasks:
    """Start the reward processes; check data, prompts and rewards. Raises UserError.

    `seed` orders the training rows; `lane` books the time of drawing them.
    """
    with ExitStack() as undo:
        # The processes import their libraries while data and prompts are prepared here.
        pool = RewardPool(
            {section.task: reward_settings(section) for section in config.datasets},
            num_workers=config.num_workers,
            deadline_s=config.deadline_s,
            max_worker_bytes=config.max_worker_bytes,
        )
        undo.callback(pool.close)
        tokenizer = PromptTokenizer(
            model_folder,
            chat_template=config.chat_template,
            chat_template_args=config.chat_template_args,
            system_prompt=config.system_prompt,
        )
        datasets = [build_dataset(section) for section in config.datasets]
        tasks = LocalTasks(config, datasets, tokenizer, pool, seed=seed, lane=lane)
        pool.wait_ready()
        undo.pop_all()
    return tasks


def build_dataset(config: ReasoningGymData | JsonlData | ArithmeticSumsData) -> Dataset:
    """The data set of a section. Raises DataError."""
    if isinstance(config, ArithmeticSumsData):
        return ArithmeticSums(config)
    if isinstance(config, JsonlData):
        from rledger.tasks.jsonl_data import JsonlRows

        return JsonlRows(config)
    # Importing reasoning-gym takes about a second.
    from rledger.tasks.reasoning_gym_data import ReasoningGymRows

    return ReasoningGymRows(config)


class LocalTasks:
    """Data sets, tokenizer and reward processes on this machine; made by `build_tasks`."""

    def __init__(
        self,
        config: TasksConfig,
        datasets: Sequence[Dataset],
        tokenizer: PromptTokenizer,
        pool: RewardPool,
        *,
        seed: int,
        lane: Lane | None = None,
    ) -> None:
        """Raises DataError for a prompt that is too long, among those worth checking first."""
        self._config = config
        self._datasets = tuple(datasets)
        self._pool = pool
        self._lane = lane
        self._order = TrainingOrder(datasets, seed)
        self._num_overlong = 0
        self._num_held_out = 0
        self.tokenizer = tokenizer
        if config.overlong_prompts == "refuse":
            for dataset in self._datasets:
                self._check_lengths(dataset)
        prompts = [self._prompt(d.task, row) for d in self._datasets for row in d.eval_rows()]
        self._eval_prompts = tuple(prompt for prompt in prompts if prompt is not None)
        self._num_eval_overlong = len(prompts) - len(self._eval_prompts)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        return self.tokenizer.stop_token_ids

    @property
    def num_overlong_prompts(self) -> int:
        """Prompts passed over for their length, held-out ones included."""
        return self._num_overlong + self._num_eval_overlong

    @property
    def num_held_out_passed_over(self) -> int:
        """Training rows passed over because a held-out row asks the same."""
        return self._num_held_out

    @property
    def reward_stats(self) -> RewardStats:
        return self._pool.stats

    def next_prompts(self, count: int) -> Sequence[Prompt]:
        """The next prompts of the training order. Raises DataError for an overlong one, unless
        the recipe says to pass it over.
        """
        span = nullcontext() if self._lane is None else self._lane.span("draw_prompts", rows=count)
        prompts: list[Prompt] = []
        num_passed_over = 0
        with span:
            while len(prompts) < count:
                dataset, index = self._order.next()
                row = dataset.train_row(index)
                prompt = None if row is None else self._prompt(dataset.task, row)
                if prompt is not None:
                    prompts.append(prompt)
                    num_passed_over = 0
                    continue
                if row is None:
                    self._num_held_out += 1
                else:
                    self._num_overlong += 1
                num_passed_over += 1
                if num_passed_over == _MAX_PASSED_OVER:
                    raise DataError(
                        f"{num_passed_over} training rows in a row are unusable: held out, or "
                        f"longer than tasks.max_prompt_tokens = {self._config.max_prompt_tokens}; "
                        "raise that limit, or widen the data set"
                    )
        return prompts

    def eval_prompts(self) -> Sequence[Prompt]:
        return self._eval_prompts

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids)

    async def score(self, prompt: Prompt, trajectory: Trajectory) -> Score | Failure:
        return await self._pool.score(
            prompt.task,
            str(prompt.payload["question"]),
            trajectory.text,
            prompt.payload,
            label=f"trajectory {trajectory.id}",
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "order": self._order.state_dict(),
            "num_overlong": self._num_overlong,
            "num_held_out": self._num_held_out,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._order.load_state_dict(state["order"])
        self._num_overlong = int(state["num_overlong"])
        self._num_held_out = int(state["num_held_out"])

    async def close(self) -> None:
        self._pool.close()

    def _prompt(self, task: str, row: Row) -> Prompt | None:
        """The row as a prompt; None where it is too long and the recipe says to pass it over."""
        text = self.tokenizer.render(row.question)
        token_ids = self.tokenizer.encode_prompt(text)
        if len(token_ids) > self._config.max_prompt_tokens:
            if self._config.overlong_prompts == "skip":
                return None
            raise self._overlong(row, len(token_ids))
        return Prompt(id=row.id, task=task, text=text, token_ids=token_ids, payload=row.payload)

    def _check_lengths(self, dataset: Dataset) -> None:
        rows = [dataset.train_row(index) for index in range(dataset.num_rows_to_check)]
        drawn = [row for row in rows if row is not None]
        texts = [self.tokenizer.render(row.question) for row in drawn]
        for row, num_tokens in zip(drawn, self.tokenizer.count_tokens(texts), strict=True):
            if num_tokens > self._config.max_prompt_tokens:
                raise self._overlong(row, num_tokens)

    def _overlong(self, row: Row, num_tokens: int) -> DataError:
        return DataError(
            f"{row.where}: the prompt has {num_tokens} tokens, more than tasks.max_prompt_tokens = "
            f"{self._config.max_prompt_tokens}; raise it to at least {num_tokens}, or set "
            'tasks.overlong_prompts = "skip" to pass over such rows'
        )
