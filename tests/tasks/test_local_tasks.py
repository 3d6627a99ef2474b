"""The Tasks role: one contract for the real and the fake one, and what only the real one does."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rledger.books import Books
from rledger.config.tasks import TasksConfig
from rledger.errors import DataError
from rledger.interfaces import Tasks
from rledger.tasks.build import LocalTasks, build_tasks
from rledger.tasks.fake import FakeTasks
from rledger.types import Failure, Prompt, Score, Trajectory

SUMS = {"type": "arithmetic_sums", "max_operand": 20, "num_eval_prompts": 32}


class VirtualClock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        self.time_s += seconds


def attempt(text: str, number: int = 0) -> Trajectory:
    return Trajectory(id=f"g1/{number}", group_id="g1", completions=(), text=text)


@pytest.fixture
def build(chat_folder: Path) -> Iterator[Callable[..., LocalTasks]]:
    built: list[LocalTasks] = []

    def make(data: dict[str, Any], seed: int = 1, **settings: Any) -> LocalTasks:
        config = TasksConfig.model_validate({"data": data, "num_workers": 1} | settings)
        built.append(build_tasks(config, chat_folder, seed))
        return built[-1]

    yield make
    for tasks in built:
        asyncio.run(tasks.close())


@pytest.fixture(params=["real", "fake"])
def make_tasks(
    request: pytest.FixtureRequest, build: Callable[..., LocalTasks]
) -> Callable[[int], Tasks]:
    if request.param == "real":
        return lambda seed: build(SUMS, seed)
    return lambda seed: FakeTasks(VirtualClock(), seed=seed, num_train_prompts=50)


def test_both_are_tasks(make_tasks: Callable[[int], Tasks]) -> None:
    assert isinstance(make_tasks(1), Tasks)


def test_prompts_have_ids_tokens_and_a_task(make_tasks: Callable[[int], Tasks]) -> None:
    tasks = make_tasks(1)
    prompts = [*tasks.next_prompts(5), *tasks.eval_prompts()]
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        assert prompt.token_ids and prompt.task in prompt.id
        json.dumps(prompt.payload)
    assert tasks.eval_prompts() == tasks.eval_prompts()


def test_training_prompts_are_endless_and_never_held_out(
    make_tasks: Callable[[int], Tasks],
) -> None:
    tasks = make_tasks(1)
    drawn = [prompt for _ in range(40) for prompt in tasks.next_prompts(40)]
    assert len(drawn) == 1600 and len({prompt.id for prompt in drawn}) < 450
    assert not {p.text for p in drawn} & {p.text for p in tasks.eval_prompts()}


def test_the_seed_orders_prompts_and_a_state_restores_the_order(
    make_tasks: Callable[[int], Tasks],
) -> None:
    first, again, other = make_tasks(1), make_tasks(1), make_tasks(2)
    one = [first.next_prompts(7) for _ in range(10)]
    assert [again.next_prompts(7) for _ in range(4)] == one[:4]
    assert [other.next_prompts(7) for _ in range(4)] != one[:4]
    restored = make_tasks(1)
    restored.load_state_dict(json.loads(json.dumps(again.state_dict())))
    assert [restored.next_prompts(7) for _ in range(6)] == one[4:]
    with pytest.raises(DataError):
        other.load_state_dict(again.state_dict())


def test_scores_are_outcomes_that_repeat(make_tasks: Callable[[int], Tasks]) -> None:
    tasks = make_tasks(1)
    prompts = tasks.next_prompts(20)

    async def score_all() -> list[Score | Failure]:
        jobs: list[Awaitable[Score | Failure]] = [
            tasks.score(prompt, attempt("7", number)) for number, prompt in enumerate(prompts)
        ]
        return list(await asyncio.gather(*jobs))

    outcomes = asyncio.run(score_all())
    assert all(isinstance(o, Score) and o.value in (0.0, 1.0) for o in outcomes)
    assert asyncio.run(score_all()) == outcomes


def test_closing_twice_is_allowed(make_tasks: Callable[[int], Tasks]) -> None:
    tasks = make_tasks(1)
    asyncio.run(tasks.close())
    asyncio.run(tasks.close())


def test_fake_failures_follow_schedule_and_seed() -> None:
    clock = VirtualClock()
    tasks = FakeTasks(
        clock, seed=3, failure_frac=0.2, failures={"g1/0": "reward_timeout"}, deadline_s=30.0
    )
    (prompt,) = tasks.next_prompts(1)
    first = asyncio.run(tasks.score(prompt, attempt("", 0)))
    assert isinstance(first, Failure) and first.reason == "reward_timeout"
    assert clock.time_s == 30.0
    outcomes = [asyncio.run(tasks.score(prompt, attempt("", i))) for i in range(1, 1001)]
    failed = [o for o in outcomes if isinstance(o, Failure)]
    assert 150 < len(failed) < 250 and len({o.reason for o in failed}) == 5


def test_fake_rewards_may_be_scripted_and_take_their_latency() -> None:
    clock = VirtualClock()
    tasks = FakeTasks(clock, latency_s=(0.5, 0.5), reward=lambda p, t: float(len(t.text)))
    (prompt,) = tasks.next_prompts(1)
    assert asyncio.run(tasks.score(prompt, attempt("abc"))) == Score(value=3.0)
    assert clock.time_s == 0.5


def test_the_fake_needs_no_torch() -> None:
    program = "import sys, rledger.tasks.fake; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert out.stdout.strip() == b"False"


def score(tasks: LocalTasks, prompt: Prompt, *texts: str) -> list[float]:
    async def all_of() -> list[Score | Failure]:
        return list(await asyncio.gather(*(tasks.score(prompt, attempt(t)) for t in texts)))

    outcomes = asyncio.run(all_of())
    assert all(isinstance(outcome, Score) for outcome in outcomes), outcomes
    return [outcome.value for outcome in outcomes if isinstance(outcome, Score)]


def test_sums_are_scored_by_the_last_integer(build: Callable[..., LocalTasks]) -> None:
    tasks = build(SUMS)
    (prompt,) = tasks.next_prompts(1)
    right = str(prompt.payload["answer"])
    texts = [
        right,
        f"It is 1 + 2 = {right}.",
        f"0{right}",
        f"-{right}",
        f"{right} or 99",
        "",
        "one",
    ]
    expected = [1.0, 1.0, 1.0, float(right == "0"), 0.0, 0.0, 0.0]
    assert score(tasks, prompt, *texts, "9" * 6000) == [*expected, 0.0]


def test_the_prompt_is_shown_in_the_chat_template(build: Callable[..., LocalTasks]) -> None:
    tasks = build(SUMS, system_prompt="Be brief.")
    (prompt,) = tasks.next_prompts(1)
    question = prompt.payload["question"]
    assert prompt.text == (
        f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tasks.tokenizer.encode_prompt(prompt.text) == prompt.token_ids
    assert tasks.stop_token_ids == (0, 2)
    assert tasks.decode([*prompt.token_ids, 2]).endswith("assistant\n")


def test_reasoning_gym_is_scored_by_itself(build: Callable[..., LocalTasks]) -> None:
    data = {"type": "reasoning_gym", "name": "spell_backward", "num_train_prompts": 500}
    tasks = build(data | {"num_eval_prompts": 16})
    (prompt,) = tasks.next_prompts(1)
    right = str(prompt.payload["answer"])
    half = right[:-1] + "?"
    assert score(tasks, prompt, right, f" {right}\n", right.upper(), half, "") == [1, 1, 1, 0, 0]
    reward = {"type": "reasoning_gym", "partial_credit": True, "answer_pattern": "<a>(.*?)</a>"}
    tasks = build(data | {"num_eval_prompts": 16, "reward": reward})

    async def outcomes() -> list[Score | Failure]:
        texts = [f"first <a>x</a> then <a>{right}</a>", f"<a>{half}</a>", right]
        return [await tasks.score(prompt, attempt(text)) for text in texts]

    whole, part, none = asyncio.run(outcomes())
    assert whole == Score(value=1.0, components={"acc": 1.0})
    assert isinstance(part, Score) and part.components == {"acc": 0.0}
    assert part.value == pytest.approx((len(right) - 1) / len(right))
    assert none == Score(value=0.0, components={"acc": 0.0})


def test_math_verify_scores_a_gsm8k_file(build: Callable[..., LocalTasks], tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "How much?", "answer": "500+500\\n#### 1,000"}\n')
    tasks = build({"type": "jsonl", "path": str(path), "eval_frac": 0})
    assert tasks.eval_prompts() == ()
    (prompt,) = tasks.next_prompts(1)
    texts = ["1000", "It is $\\boxed{1,000}$.", "The answer is 2000/2", "999", "", "no idea"]
    assert score(tasks, prompt, *texts) == [1, 1, 1, 0, 0, 0]


def test_math_verify_knows_equal_expressions(
    build: Callable[..., LocalTasks], tmp_path: Path
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "Half?", "answer": "\\\\frac{1}{2}"}\n')
    tasks = build({"type": "jsonl", "path": str(path), "eval_frac": 0})
    (prompt,) = tasks.next_prompts(1)
    assert score(tasks, prompt, "0.5", "$\\frac{2}{4}$", "$\\frac{1}{3}$") == [1, 1, 0]


def test_an_unreadable_gold_answer_is_a_failure_and_never_a_zero(
    build: Callable[..., LocalTasks], tmp_path: Path
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "q", "answer": "..."}\n')
    tasks = build({"type": "jsonl", "path": str(path), "eval_frac": 0})
    (prompt,) = tasks.next_prompts(1)
    outcome = asyncio.run(tasks.score(prompt, attempt("1")))
    assert isinstance(outcome, Failure) and outcome.reason == "reward_raised"
    assert "'...'" in outcome.message and "g1/0" in outcome.message


def test_a_function_scores_rows_of_a_file(
    build: Callable[..., LocalTasks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_rewards.py").write_text(
        "def points(prompt, completion, payload):\n"
        "    assert prompt == payload['question'] == 'q?'\n"
        "    return {'score': payload['row']['points'], 'acc': completion == payload['answer']}\n"
    )
    Path("rows.jsonl").write_text('{"question": "q", "answer": 3, "points": 0.25}\n')
    reward = {"type": "function", "path": "my_rewards:points"}
    tasks = build(
        {"type": "jsonl", "path": "rows.jsonl", "eval_frac": 0, "reward": reward}
        | {"template": "{question}?"}
    )
    (prompt,) = tasks.next_prompts(1)
    outcome = asyncio.run(tasks.score(prompt, attempt("3")))
    assert outcome == Score(value=0.25, components={"acc": 1.0})
    with pytest.raises(DataError, match=r"'my_rewards:pints'.*no 'pints'.*points"):
        build(SUMS | {"reward": {"type": "function", "path": "my_rewards:pints"}})


def test_an_overlong_prompt_is_named_with_both_fixes(
    build: Callable[..., LocalTasks], tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"question": "word " * (200 if i == 37 else 2), "answer": "1"} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"type": "jsonl", "path": str(path), "eval_frac": 0, "template": "{question}{answer}"}
    with pytest.raises(
        DataError,
        match=r"rows\.jsonl:38: the prompt has \d+ tokens.*max_prompt_tokens = 100; raise it to at "
        r'least \d+, or set tasks\.overlong_prompts = "skip"',
    ):
        build(data, max_prompt_tokens=100)
    tasks = build(data, max_prompt_tokens=100, overlong_prompts="skip")
    prompts = tasks.next_prompts(80)
    assert tasks.num_overlong_prompts in (2, 3)
    assert {int(prompt.id[-6:]) for prompt in prompts} == set(range(1, 41)) - {38}
    assert tasks.state_dict()["num_overlong"] == tasks.num_overlong_prompts


def test_rows_that_are_all_unusable_end_the_draw(build: Callable[..., LocalTasks]) -> None:
    tasks = build(SUMS, max_prompt_tokens=3, overlong_prompts="skip")
    with pytest.raises(DataError, match="max_prompt_tokens = 3"):
        tasks.next_prompts(1)


def test_drawing_prompts_is_booked(chat_folder: Path) -> None:
    books = Books.in_memory()
    config = TasksConfig.model_validate({"data": SUMS, "num_workers": 1})
    lane = books.lane("main")
    tasks = build_tasks(config, chat_folder, 1, lane)
    with lane.step(1, policy_version=0):
        tasks.next_prompts(3)
    asyncio.run(tasks.close())
    names = [record.name for record in lane.last_step]
    assert names.count("draw_prompts") == 1


def test_a_mixture_draws_and_scores_both_tasks(build: Callable[..., LocalTasks]) -> None:
    part = SUMS | {"task_name": "exact_sums", "reward": {"type": "exact"}}
    tasks = build({"type": "mixture", "parts": [SUMS, part]})
    prompts = tasks.next_prompts(10)
    assert [p.task for p in prompts] == ["arithmetic_sums", "exact_sums"] * 5
    for prompt, expected in zip(prompts[:2], (1.0, 0.0), strict=True):
        assert score(tasks, prompt, f"It is {prompt.payload['answer']}") == [expected]
