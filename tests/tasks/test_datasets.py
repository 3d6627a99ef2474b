"""Rows by index, and two splits that share no question."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reasoning_gym
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rledger.config.tasks import ArithmeticSumsData, JsonlData, MixtureData, ReasoningGymData
from rledger.errors import DataError
from rledger.tasks.build import build_dataset
from rledger.tasks.datasets import Dataset, random_order
from rledger.tasks.order import TrainingOrder
from rledger.tasks.payload_codec import decode_value, encode_value


def spelling(**changes: Any) -> ReasoningGymData:
    options = {"name": "spell_backward", "num_train_prompts": 3000, "num_eval_prompts": 100}
    return ReasoningGymData.model_validate(options | changes)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def assert_splits_are_disjoint(dataset: Dataset) -> tuple[list[str], list[str]]:
    train = [dataset.train_row(i) for i in range(dataset.num_train_rows)]
    train_texts = [row.question for row in train if row is not None]
    eval_texts = [row.question for row in dataset.eval_rows()]
    assert not set(train_texts) & set(eval_texts)
    assert len(set(eval_texts)) == len(eval_texts)
    return train_texts, eval_texts


def test_reasoning_gym_splits_are_disjoint_though_rows_repeat() -> None:
    # 3-letter words: few enough that the same ones come up in both ranges of indices.
    dataset = build_dataset(spelling(params={"min_word_len": 3, "max_word_len": 3}))
    train, held_out = assert_splits_are_disjoint(dataset)
    assert len(held_out) == 100
    passed_over = dataset.num_train_rows - len(train)
    assert 100 < passed_over < 1500


def test_reasoning_gym_rows_are_those_of_the_library() -> None:
    dataset = build_dataset(spelling(seed=7))
    theirs = reasoning_gym.create_dataset("spell_backward", seed=7, size=4000)
    row = dataset.train_row(5)
    assert row is not None and row.id == "spell_backward/train/000005"
    entry = theirs[800 + 5]  # held-out rows have the first 8 * 100 indices
    assert (row.question, row.answer) == (entry["question"], entry["answer"])
    assert decode_value(json.loads(json.dumps(row.payload["entry"]))) == entry
    assert dataset.eval_rows()[0].question == theirs[0]["question"]


def test_held_out_rows_do_not_depend_on_the_number_of_training_rows() -> None:
    few, many = (build_dataset(spelling(num_train_prompts=n)) for n in (10, 100_000))
    assert few.eval_rows() == many.eval_rows()
    assert few.train_row(3) == many.train_row(3)


def test_a_template_may_show_the_metadata_of_a_row() -> None:
    row = build_dataset(spelling(template="{word}>")).train_row(0)
    assert row is not None and row.answer is not None
    assert row.question == row.answer[::-1] + ">"
    with pytest.raises(DataError, match=r"asks for 'wort'.*word_len"):
        build_dataset(spelling(template="{wort}"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "spell_backwards"}, "no data set 'spell_backwards'.*spell_backward"),
        ({"params": {"min_len": 3}}, "no parameter 'min_len'.*min_word_len"),
        ({"params": {"min_word_len": 9, "max_word_len": 3}}, "refuses its parameters.*max_word"),
        ({"name": "coin_flip", "params": {"min_trials": 3, "max_trials": 3}}, "only 8 different"),
        ({"name": "word_ladder"}, "PYTHONHASHSEED=0"),
        ({"name": "rush_hour", "reward": {"type": "exact"}}, "no reference answer"),
    ],
)
def test_unusable_reasoning_gym_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_dataset(spelling(**changes))


def test_reasoning_gym_rows_are_equal_in_another_interpreter() -> None:
    program = (
        "from rledger.config.tasks import ReasoningGymData as D;"
        "from rledger.tasks.build import build_dataset as b;"
        "print(b(D(name='spell_backward', num_train_prompts=3000, num_eval_prompts=100)).fingerprint)"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert out.stdout.decode().strip() == build_dataset(spelling()).fingerprint


@pytest.mark.parametrize("change", [{"seed": 1}, {"template": "{word}"}, {"num_eval_prompts": 99}])
def test_the_fingerprint_changes_with_the_rows(change: dict[str, Any]) -> None:
    assert build_dataset(spelling()).fingerprint != build_dataset(spelling(**change)).fingerprint


def test_sums_hold_out_pairs_in_both_orders() -> None:
    dataset = build_dataset(ArithmeticSumsData())
    train, held_out = assert_splits_are_disjoint(dataset)
    assert len(held_out) == 256
    assert 51 * 51 - 257 <= len(train) <= 51 * 51 - 256

    def pair(question: str) -> tuple[int, ...]:
        words = question.removesuffix("? Answer with just the number.").split()
        assert words[:2] == ["What", "is"] and words[3] == "+"
        return tuple(sorted((int(words[2]), int(words[4]))))

    assert not {pair(text) for text in train} & {pair(text) for text in held_out}
    row = dataset.train_row(0)
    assert row is not None and row.answer == str(sum(pair(row.question)))


@given(max_operand=st.integers(3, 30), num_eval=st.integers(0, 7), seed=st.integers(0, 2**31 - 1))
@settings(max_examples=30)
def test_sums_of_every_size_split_completely(max_operand: int, num_eval: int, seed: int) -> None:
    config = ArithmeticSumsData(max_operand=max_operand, num_eval_prompts=num_eval, seed=seed)
    train, held_out = assert_splits_are_disjoint(build_dataset(config))
    assert len(held_out) == num_eval
    assert (max_operand + 1) ** 2 - len(train) - num_eval in (0, 1)


def test_a_gsm8k_file_works_as_it_is(tmp_path: Path) -> None:
    rows = [
        {"question": f"How many are {i} and 1?", "answer": f"{i}+1\n#### {i + 1:,}"}
        for i in range(990, 1100)
    ]
    config = JsonlData(path=str(write_rows(tmp_path / "gsm8k.jsonl", rows)), eval_frac=0.2)
    dataset = build_dataset(config)
    train, held_out = assert_splits_are_disjoint(dataset)
    assert len(train) + len(held_out) == 110 and 8 <= len(held_out) <= 40
    drawn = [dataset.train_row(i) for i in range(dataset.num_train_rows)]
    by_question = {row["question"]: row for row in rows}
    for row in drawn:
        assert row is not None and row.answer is not None
        assert row.payload["row"] == by_question[row.question]
        assert by_question[row.question]["answer"].endswith(f"#### {row.answer}")
    last = drawn[-1]
    assert last is not None and dataset.task == "gsm8k"
    line = int(last.where.rpartition(":")[2])
    assert last.where == f"{tmp_path}/gsm8k.jsonl:{line}" and last.id == f"gsm8k/train/{line:06d}"
    assert rows[line - 1]["question"] == last.question


def test_equal_questions_of_a_file_share_a_split(tmp_path: Path) -> None:
    rows = [{"question": f"q{i % 40}", "answer": str(i)} for i in range(200)]
    path = write_rows(tmp_path / "twice.jsonl", rows)
    _, held_out = assert_splits_are_disjoint(
        build_dataset(JsonlData(path=str(path), eval_frac=0.3))
    )
    assert 2 <= len(held_out) <= 25


def test_training_rows_that_repeat_an_eval_file_are_passed_over(tmp_path: Path) -> None:
    train = [{"problem": f"p{i}", "solution": i, "hint": "h"} for i in range(20)]
    config = JsonlData(
        path=str(write_rows(tmp_path / "train.jsonl", train)),
        eval_path=str(write_rows(tmp_path / "test.jsonl", train[5:8])),
        prompt_key="problem",
        answer_key="solution",
        template="{hint}: {question}",
    )
    dataset = build_dataset(config)
    train_texts, held_out = assert_splits_are_disjoint(dataset)
    assert held_out == ["h: p5", "h: p6", "h: p7"] and len(train_texts) == 17
    assert dataset.num_train_rows == 20


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "q"}', r"rows\.jsonl:3: no answer: .*'answer'.*answer_key"),
        ('{"question": "q", "answer": ""}', r"rows\.jsonl:3: no answer: .*empty"),
        ('{"question": "q", "answer": null}', r"rows\.jsonl:3: no answer"),
        ('{"question": "q", "answer": "so ####  "}', r"rows\.jsonl:3: nothing after the last ####"),
        ('{"answer": "1"}', r"rows\.jsonl:3: no question: .*prompt_key"),
        ('{"question": "q", "answer"', r"rows\.jsonl:3: not JSON"),
        ('["q", "1"]', r"rows\.jsonl:3: a list"),
        ("\xff", r"rows\.jsonl:3: not JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    good = '{"question": "a", "answer": "1"}'
    path.write_bytes(f"{good}\n\n{line}\n{good}\n".encode("latin-1"))
    with pytest.raises(DataError, match=message):
        build_dataset(JsonlData(path=str(path)))


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl cannot be read.*tasks\.data\.path"):
        build_dataset(JsonlData(path=str(tmp_path / "nowhere.jsonl")))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="no training row"):
        build_dataset(JsonlData(path=str(tmp_path / "empty.jsonl")))


def test_the_fingerprint_of_a_file_changes_with_any_row(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": str(i)} for i in range(500)]
    before = build_dataset(JsonlData(path=str(write_rows(tmp_path / "a.jsonl", rows)))).fingerprint
    same = build_dataset(JsonlData(path=str(write_rows(tmp_path / "a.jsonl", rows)))).fingerprint
    rows[-1]["answer"] = "0"
    after = build_dataset(JsonlData(path=str(write_rows(tmp_path / "a.jsonl", rows)))).fingerprint
    assert before == same != after


@pytest.mark.parametrize(
    "bad",
    [
        {"template": "no field"},
        {"template": "{question.__class__}"},
        {"template": "{}"},
        {"reward": {"type": "function", "path": "module.function"}},
        {"reward": {"type": "exact", "answer_pattern": "("}},
        {"reward": {"type": "exact", "answer_pattern": "(a)(b)"}},
        {"params": {"seed": 3}},
    ],
)
def test_bad_settings_are_refused_by_the_schema(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spelling(**bad)


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.sampled_from(["$tuple", "$set"]), inner)
        | st.sets(st.integers() | st.text())
    ),
    max_leaves=20,
)


@given(value=JSON_LIKE)
def test_encoded_values_survive_json(value: Any) -> None:
    restored = decode_value(json.loads(json.dumps(encode_value(value))))
    assert restored == value and type(restored) is type(value)


def test_numbers_of_numpy_are_encoded_and_foreign_objects_refused() -> None:
    assert encode_value({"a": np.int64(3), "b": np.float32(0.5)}) == {"a": 3, "b": 0.5}
    with pytest.raises(TypeError, match="type object"):
        encode_value([object()])


def mixture() -> list[Dataset]:
    config = MixtureData.model_validate(
        {
            "parts": [
                {"type": "arithmetic_sums", "weight": 3, "max_operand": 3, "num_eval_prompts": 2},
                {"type": "arithmetic_sums", "task_name": "other", "max_operand": 30},
            ]
        }
    )
    return [build_dataset(part) for part in config.parts]


def test_each_epoch_is_a_new_permutation_of_all_rows() -> None:
    dataset = build_dataset(ArithmeticSumsData(max_operand=6, num_eval_prompts=6))
    order = TrainingOrder([dataset], seed=1)
    count = dataset.num_train_rows
    epochs = [[order.next()[1] for _ in range(count)] for _ in range(3)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    other = TrainingOrder([dataset], seed=2)
    assert [other.next()[1] for _ in range(count)] != epochs[0]


def test_a_mixture_keeps_to_its_weights_at_any_time() -> None:
    order = TrainingOrder(mixture(), seed=1)
    counts: Counter[str] = Counter()
    for drawn in range(1, 400):
        counts[order.next()[0].task] += 1
        assert abs(counts["other"] - drawn / 4) <= 1


@given(before=st.integers(0, 120), after=st.integers(1, 40))
@settings(max_examples=25, deadline=None)
def test_a_restored_order_goes_on_where_it_was(before: int, after: int) -> None:
    datasets = mixture()
    order = TrainingOrder(datasets, seed=5)
    for _ in range(before):
        order.next()
    state = json.loads(json.dumps(order.state_dict()))
    restored = TrainingOrder(datasets, seed=5)
    restored.load_state_dict(state)
    expected = [(d.task, i) for d, i in (order.next() for _ in range(after))]
    assert [(d.task, i) for d, i in (restored.next() for _ in range(after))] == expected


def test_an_order_refuses_a_state_of_other_rows_seeds_or_tasks() -> None:
    datasets = mixture()
    state = TrainingOrder(datasets, seed=5).state_dict()
    with pytest.raises(DataError, match=r"run\.seed = 5, now it is 6"):
        TrainingOrder(datasets, seed=6).load_state_dict(state)
    with pytest.raises(DataError, match="arithmetic_sums, other"):
        TrainingOrder(datasets[:1], seed=5).load_state_dict(state)
    changed = build_dataset(ArithmeticSumsData(task_name="other", max_operand=31))
    with pytest.raises(DataError, match="rows of task 'other' have changed"):
        TrainingOrder([datasets[0], changed], seed=5).load_state_dict(state)


def test_the_random_order_is_the_one_written_down() -> None:
    # Changing it changes every run and makes checkpoints of older versions resume in other rows.
    assert random_order((1, 2, 3), 8).tolist() == [1, 2, 4, 6, 5, 0, 7, 3]
