"""The public configuration: adding, renaming or removing a key is a decision that shows here.

After such a decision, edit public_keys.txt.
"""

from __future__ import annotations

from pathlib import Path

from rledger.config.explain import recipe_keys

FROZEN = Path(__file__).parent / "public_keys.txt"


def _leaves() -> list[str]:
    keys = recipe_keys()
    return [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]


def test_the_public_keys_are_those_of_the_frozen_list() -> None:
    frozen = FROZEN.read_text(encoding="utf-8").split()
    assert sorted(set(_leaves()) - set(frozen)) == []
    assert sorted(set(frozen) - set(_leaves())) == []
    assert frozen == _leaves()


def test_the_public_keys_are_few() -> None:
    assert len(_leaves()) < 150
