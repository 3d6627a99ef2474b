"""Text to tokens and back with the tokenizer of a model folder.

Reads `tokenizer.json` with the `tokenizers` library and renders chat templates with jinja2, as
transformers does (the tests compare the two), without the seconds that its import takes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
from tokenizers import Tokenizer

from rledger.errors import ConfigError, ModelError

__all__ = ["PromptTokenizer"]


class PromptTokenizer:
    """One model folder's tokenizer, and how prompts are shown to that model."""

    def __init__(
        self,
        folder: Path | str,
        *,
        chat_template: bool = True,
        chat_template_args: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
    ) -> None:
        """Raises ModelError where the folder has no usable tokenizer, ConfigError where a system
        prompt is given and there is no chat template to put it in.
        """
        folder = Path(folder)
        self._tokenizer = _load_tokenizer(folder)
        settings = _read_json(folder / "tokenizer_config.json")
        self._special = _special_tokens(settings)
        self._template = _compile_template(folder, settings) if chat_template else None
        self._template_args = dict(chat_template_args or {})
        self._system_prompt = system_prompt
        if system_prompt is not None and self._template is None:
            raise ConfigError(
                f"model folder {folder} has no chat template, so it has no place for "
                "tasks.system_prompt; drop it, or write it into tasks.data.template"
            )
        self._stop_token_ids = self._find_stop_tokens(folder)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion: those of the model's settings, and the tokenizer's own."""
        return self._stop_token_ids

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def vocab_size(self) -> int:
        """Tokens of the tokenizer, added ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def render(self, question: str) -> str:
        """The question in its chat template, or as it is. Raises ModelError."""
        if self._template is None:
            return question
        messages = [{"role": "user", "content": question}]
        if self._system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self._system_prompt})
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **(self._special | self._template_args),
            )
        except jinja2.TemplateError as error:
            raise ModelError(
                f"the model folder's chat template fails: {error}; correct the template or set "
                "tasks.chat_template = false"
            ) from None

    def encode_prompt(self, text: str) -> tuple[int, ...]:
        """Tokens of a rendered prompt. A chat template has written its special tokens already."""
        encoding = self._tokenizer.encode(text, add_special_tokens=self._template is None)
        return tuple(encoding.ids)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each rendered prompt; faster than encoding them one by one."""
        encodings = self._tokenizer.encode_batch_fast(
            list(texts), add_special_tokens=self._template is None
        )
        return [len(encoding.ids) for encoding in encodings]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Tokens as text, special tokens left out."""
        return str(self._tokenizer.decode(list(map(int, token_ids)), skip_special_tokens=True))

    def _find_stop_tokens(self, folder: Path) -> tuple[int, ...]:
        ids: list[int] = []
        for name in ("generation_config.json", "config.json"):
            value = _read_json(folder / name).get("eos_token_id")
            if value is not None:
                ids.extend(value if isinstance(value, list) else [value])
                break
        own = self._special.get("eos_token")
        own_id = None if own is None else self._tokenizer.token_to_id(own)
        if own_id is not None:
            ids.append(own_id)
        if not ids:
            raise ModelError(
                f"model folder {folder} names no end token, so completions would never stop; set "
                "eos_token_id in its generation_config.json or eos_token in tokenizer_config.json"
            )
        return tuple(dict.fromkeys(ids))


def _load_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"model folder {folder} has no tokenizer.json; write one with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special than this
        raise ModelError(f"{path} is not a tokenizer: {error}; copy it anew") from None
    # Files may carry the padding and truncation of whoever saved them.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}; copy it anew") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object; copy it anew")
    return value


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name, as chat templates know them ("bos_token", ...)."""
    tokens = {}
    for name, value in settings.items():
        if not name.endswith("_token") or name.startswith("add_"):
            continue
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _compile_template(folder: Path, settings: Mapping[str, Any]) -> jinja2.Template | None:
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if source is None:
        return None
    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise ModelError(
            f"the chat template of model folder {folder} is broken: {error}; correct it or set "
            "tasks.chat_template = false"
        ) from None


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks what assistants wrote; here only the text inside matters."""

    tags = {"generation"}  # noqa: RUF012 (the library declares it so)

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """The environment that templates on the Hugging Face hub are written for."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
