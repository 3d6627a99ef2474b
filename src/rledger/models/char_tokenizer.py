"""A tokenizer of single characters, for small policies made from nothing; an ordinary tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["char_vocabulary", "write_char_tokenizer"]

END_TOKEN = "<end>"
UNKNOWN_TOKEN = "<unknown>"


def char_vocabulary(texts: Iterable[str]) -> list[str]:
    """The end token (id 0), the unknown one (id 1), then the characters of `texts` in code-point order."""
    return [END_TOKEN, UNKNOWN_TOKEN, *sorted(set().union(*(set(text) for text in texts)))]


def write_char_tokenizer(folder: Path, vocabulary: Sequence[str]) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` of a `char_vocabulary` into a model folder."""
    ids = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END_TOKEN, UNKNOWN_TOKEN])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_TOKEN,
        "unk_token": UNKNOWN_TOKEN,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
