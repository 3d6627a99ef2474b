"""The tokenizer of a model folder, against transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from rledger.errors import ConfigError, ModelError
from rledger.tasks.tokenizer import PromptTokenizer

QUESTIONS = [
    "What is 3 + 4? Answer with just the number.",
    "  spaces at both ends  ",
    "quotes \" ' and <html> & back\\slash\nand a new line",
    "Zahlen: äöü, 数字, 🙂",
    "<|im_end|> inside the question",
]


def oracle_ids(folder: Path, question: str, system: str | None, **extra: Any) -> tuple[int, ...]:
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tuple(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **extra
        )
    )


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("kind", ["chat_folder", "qwen_like_folder"])
def test_chat_prompts_equal_those_of_transformers(
    request: pytest.FixtureRequest, kind: str, question: str, system: str | None
) -> None:
    folder: Path = request.getfixturevalue(kind)
    tokenizer = PromptTokenizer(folder, system_prompt=system)
    ids = tokenizer.encode_prompt(tokenizer.render(question))
    assert ids == oracle_ids(folder, question, system)


def test_template_arguments_reach_the_template(qwen_like_folder: Path) -> None:
    tokenizer = PromptTokenizer(qwen_like_folder, chat_template_args={"enable_thinking": False})
    text = tokenizer.render("why?")
    assert text.endswith("<think>\n\n</think>\n\n")
    assert tokenizer.encode_prompt(text) == oracle_ids(
        qwen_like_folder, "why?", None, enable_thinking=False
    )


@pytest.mark.parametrize("question", QUESTIONS)
def test_plain_prompts_equal_those_of_transformers(plain_folder: Path, question: str) -> None:
    tokenizer = PromptTokenizer(plain_folder)
    assert tokenizer.render(question) == question
    expected = AutoTokenizer.from_pretrained(plain_folder)(question)["input_ids"]
    assert tokenizer.encode_prompt(question) == tuple(expected)
    assert tokenizer.count_tokens([question, "x"]) == [len(expected), 1]


def test_without_its_chat_template_a_folder_shows_plain_text(chat_folder: Path) -> None:
    assert PromptTokenizer(chat_folder).has_chat_template
    tokenizer = PromptTokenizer(chat_folder, chat_template=False)
    assert not tokenizer.has_chat_template and tokenizer.render("why?") == "why?"


def test_a_bos_token_of_the_tokenizer_is_kept_and_never_doubled_by_a_template(
    chat_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bos"
    shutil.copytree(chat_folder, folder)
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}
        },
    }
    file.write_text(json.dumps(data))
    plain = PromptTokenizer(folder, chat_template=False)
    assert plain.encode_prompt("why?")[0] == 0
    assert list(plain.encode_prompt("why?")) == AutoTokenizer.from_pretrained(folder).encode("why?")
    chat = PromptTokenizer(folder)
    ids = chat.encode_prompt(chat.render("why?"))
    assert ids[0] != 0 and ids == oracle_ids(folder, "why?", None)


@given(ids=st.lists(st.integers(0, 399), max_size=40))
@settings(max_examples=60)
def test_decoding_equals_transformers_and_skips_special_tokens(
    chat_folder: Path, ids: list[int]
) -> None:
    mine, oracle = _both(chat_folder)
    ids = [i for i in ids if i < mine.vocab_size]
    assert mine.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


_CACHE: dict[Path, tuple[PromptTokenizer, Any]] = {}


def _both(folder: Path) -> tuple[PromptTokenizer, Any]:
    if folder not in _CACHE:
        _CACHE[folder] = (PromptTokenizer(folder), AutoTokenizer.from_pretrained(folder))
    return _CACHE[folder]


@given(text=st.text(max_size=60))
@settings(max_examples=60)
def test_plain_text_survives_encoding_and_decoding(plain_folder: Path, text: str) -> None:
    mine, oracle = _both(plain_folder)
    assert list(mine.encode_prompt(text)) == oracle.encode(text)
    if not any(token in text for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")):
        assert mine.decode(mine.encode_prompt(text)) == text


def test_stop_tokens_come_from_the_models_settings_and_the_tokenizer(
    chat_folder: Path, tmp_path: Path
) -> None:
    assert PromptTokenizer(chat_folder).stop_token_ids == (0, 2)
    folder = tmp_path / "copy"
    shutil.copytree(chat_folder, folder)
    (folder / "generation_config.json").unlink()
    assert PromptTokenizer(folder).stop_token_ids == (2,)
    (folder / "config.json").write_text('{"eos_token_id": 5}')
    assert PromptTokenizer(folder).stop_token_ids == (5, 2)


def test_a_folder_without_an_end_token_is_refused(plain_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "endless"
    folder.mkdir()
    shutil.copy(plain_folder / "tokenizer.json", folder)
    with pytest.raises(ModelError, match="eos_token_id"):
        PromptTokenizer(folder)


def test_bad_folders_are_named_with_the_fix(chat_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json.*save_pretrained"):
        PromptTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        PromptTokenizer(tmp_path)
    folder = tmp_path / "broken"
    shutil.copytree(chat_folder, folder)
    (folder / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ModelError, match=r"chat template of model folder .* is broken"):
        PromptTokenizer(folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no user') }}")
    with pytest.raises(ModelError, match=r"no user.*tasks.chat_template = false"):
        PromptTokenizer(folder).render("why?")


def test_a_system_prompt_without_a_chat_template_is_refused(plain_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks\.system_prompt"):
        PromptTokenizer(plain_folder, system_prompt="Be brief.")


def test_a_template_cannot_reach_the_interpreter(chat_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    shutil.copytree(chat_folder, folder)
    (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(ModelError, match="unsafe"):
        PromptTokenizer(folder).render("why?")


def test_tasks_import_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, rledger.tasks.build, rledger.tasks.fake, rledger.tasks.evaluation;"
        "print(sorted({'torch', 'transformers', 'reasoning_gym'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert out.stdout.strip() == b"[]"
