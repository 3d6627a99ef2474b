"""A tokenizer of single characters, for small policies made from nothing; an ordinary tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

__all__ = ["write_char_tokenizer"]

END_TOKEN = "<end>"
UNKNOWN_TOKEN = "<unknown>"


def write_char_tokenizer(folder: Path, texts: Iterable[str]) -> int:
    """Write `tokenizer.json` and `tokenizer_config.json` for the characters of `texts`.

    The end token has id 0, the unknown one id 1, characters follow in code-point order. Returns the
    size of the vocabulary.
    """
    characters = sorted(set().union(*(set(text) for text in texts)))
    vocabulary = {token: i for i, token in enumerate([END_TOKEN, UNKNOWN_TOKEN, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([END_TOKEN, UNKNOWN_TOKEN])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_TOKEN,
        "unk_token": UNKNOWN_TOKEN,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    return len(vocabulary)
