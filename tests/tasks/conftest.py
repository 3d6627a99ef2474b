"""Small tokenizer folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

# Of the shape of SmolLM2's: a default system message, one block per message.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Of the shape of Qwen's: indented blocks, tools, namespaces, a switch, JSON and the generation tag.
QWEN_LIKE_TEMPLATE = """{%- if tools %}
    {{- '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(count=0) %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{%- continue %}{%- endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- generation %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endgeneration %}
{%- endfor %}
{{- {"messages": ns.count, "eos": eos_token} | tojson }}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def write_tokenizer_folder(
    folder: Path, chat_template: str | None = None, template_in_file: bool = False
) -> Path:
    """A byte-level BPE tokenizer of 400 tokens with ChatML's special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "What is the sum? The user asks, the assistant answers: system, number, word. " * 3
    tokenizer.train_from_iterator([text], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    if chat_template is not None and template_in_file:
        (folder / "chat_template.jinja").write_text(chat_template)
    elif chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    return folder


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SmolLM2's kind of chat template."""
    return write_tokenizer_folder(tmp_path_factory.mktemp("models") / "chat", CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def qwen_like_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "qwen"
    return write_tokenizer_folder(folder, QWEN_LIKE_TEMPLATE, template_in_file=True)


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without a chat template."""
    return write_tokenizer_folder(tmp_path_factory.mktemp("models") / "plain")
