"""What the pages say can be checked against the code and the files, and is."""

from __future__ import annotations

import json
import re
import sys
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest
from doc_pages import (
    FRONT,
    FRONT_ZH,
    PACKAGE,
    PAGES,
    ROOT,
    anchor,
    blocks,
    headings,
    inline_code,
    links,
    parts,
    prose,
    text_of,
    top_level,
    tree_entries,
)

from rledger.books import METRICS, STAGES, DropReason
from rledger.cli import _VERBS
from rledger.config.advantage import Advantage
from rledger.config.policy_loss import Aggregation, PolicyLoss
from rledger.config.recipe import Recipe
from rledger.config.resolve import check_recipe
from rledger.errors import BooksError

NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
ALGORITHMS, READING = ROOT / "docs" / "algorithms.md", ROOT / "docs" / "reading-a-step.md"
LANGUAGES = {"", "bash", "toml", "python"}


def _types(union: Any) -> dict[str, Any]:
    return {c.model_fields["type"].default: c for c in typing.get_args(typing.get_args(union)[0])}


def test_line_1_says_that_it_trains() -> None:
    first = text_of(FRONT).splitlines()[0]
    assert first.startswith("# RLedger trains language models with reinforcement learning")
    assert "训练" in text_of(FRONT_ZH).splitlines()[0]


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_resolve(name: str) -> None:
    page = ROOT / name
    for target in links(page):
        if target.startswith(("http://", "https://")):
            continue
        path, _, fragment = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), f"{name} links to {target}"
        assert goal == ROOT or ROOT in goal.parents, f"{name} links out of the repository: {target}"
        if fragment:
            assert fragment in {anchor(text) for _, text in headings(goal)}, f"{name}: {target}"


@pytest.mark.parametrize("name", NAMES)
def test_paths_in_the_text_exist(name: str) -> None:
    roots = ("src/", "tests/", "docs/", "nightly/", "benchmarks/", "recipes/", ".ci/")
    for code in inline_code(ROOT / name):
        if " " in code or "<" in code or "*" in code:
            continue
        if code.startswith(roots):
            assert (ROOT / code).exists(), f"{name} names {code}"
        elif re.fullmatch(r"[a-z_]+/[a-z_/]+(\.py)?", code) and code.split("/")[0] + "/" in parts():
            assert (PACKAGE / code).exists() or (ROOT / code).exists(), f"{name} names {code}"


def test_every_page_of_docs_is_in_its_index() -> None:
    index = ROOT / "docs" / "README.md"
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= {target.partition("#")[0] for target in links(index)}


def test_the_mission_names_evidence_in_every_row() -> None:
    rows = [line for line in text_of(ROOT / "docs" / "mission.md").splitlines() if line[:2] == "| "]
    claims = [row for row in rows if not row.startswith(("| the text", "| asked"))]
    assert len(claims) > 20
    for row in claims:
        cited = re.findall(r"`((?:src|tests|nightly|benchmarks|recipes)/[^`]+)`", row)
        assert cited, row


@pytest.mark.parametrize("page", [FRONT, FRONT_ZH], ids=["en", "zh"])
def test_the_tree_is_the_repository(page: Path) -> None:
    entries = tree_entries(page)
    inside = {name.removeprefix("src/rledger/") for name in entries if name != "src/rledger/"} - {
        name for name in entries if not name.startswith("src/rledger/")
    }
    outside = {name for name in entries if not name.startswith("src/")} | {"src/"}
    assert outside == top_level()
    assert inside == parts()
    assert [name for name, note in entries.items() if not note] == [".gitignore", "src/rledger/"]


def test_the_chinese_page_keeps_step() -> None:
    assert [level for level, _ in headings(FRONT)] == [level for level, _ in headings(FRONT_ZH)]
    assert [b for b in blocks(FRONT) if b.language] == [b for b in blocks(FRONT_ZH) if b.language]
    assert list(tree_entries(FRONT)) == list(tree_entries(FRONT_ZH))
    rows = [
        [
            line.split("|")[1].strip()
            for line in text_of(page).splitlines()
            if line.startswith("| `")
        ]
        for page in (FRONT, FRONT_ZH)
    ]
    assert rows[0] == rows[1]
    others = {"README.md", "README.zh.md"}
    assert set(links(FRONT)) - others == set(links(FRONT_ZH)) - others
    assert len(re.findall(r"[一-鿿]", prose(FRONT_ZH))) > 1000


def test_blocks_say_what_they_are() -> None:
    for page in PAGES:
        assert {block.language for block in blocks(page)} <= LANGUAGES, page.name


def test_every_verb_is_documented() -> None:
    for page in (FRONT, FRONT_ZH):
        listed = re.findall(r"^\| `rledger (\w+)` \|", text_of(page), re.MULTILINE)
        assert sorted(listed) == sorted(_VERBS)


def test_the_list_of_keys_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate

    page = text_of(ROOT / "docs" / "configuration.md")
    assert generate.configuration_page(page) == page, "run python docs/generate.py"
    for name in Recipe.model_fields:
        assert f"| `[{name}]` |" in page


def _merged(base: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Tables of `part` over those of `base`; one with a type replaces its counterpart."""
    result = dict(base)
    for key, value in part.items():
        old = result.get(key)
        replaces = not isinstance(value, dict) or not isinstance(old, dict) or "type" in value
        result[key] = value if replaces else _merged(old, value)
    return result


def test_every_toml_block_is_a_part_of_a_recipe() -> None:
    base = tomllib.loads((ROOT / "recipes" / "demo.toml").read_text(encoding="utf-8"))
    fragments = [(p.name, b.text) for p in PAGES for b in blocks(p) if b.language == "toml"]
    assert len(fragments) > 6
    for name, text in fragments:
        recipe = Recipe.model_validate(_merged(base, tomllib.loads(text)))
        assert check_recipe(recipe) == [], f"{name}: {text}"


def test_the_reward_function_of_the_front_page_works() -> None:
    (block,) = [b for b in blocks(FRONT) if b.language == "python"]
    names: dict[str, Any] = {}
    exec(compile(block.text, "my_rewards.py", "exec"), names)
    assert names["score"]("2+2", "It is 4", {"answer": "4"})["score"] == 1.0
    assert names["score"]("2+2", "It is 5", {"answer": "4"})["score"] == 0.0


def _first_cells(page: Path, heading: str) -> list[str]:
    """The code in the first cell of each row of a section's tables."""
    section = text_of(page).partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


def test_the_catalogue_lists_every_algorithm() -> None:
    assert sorted(_first_cells(ALGORITHMS, "Advantages")) == sorted(_types(Advantage))
    assert sorted(_first_cells(ALGORITHMS, "Policy losses")) == sorted(_types(PolicyLoss))
    assert _first_cells(ALGORITHMS, "Aggregation") == list(typing.get_args(Aggregation))
    for page in (FRONT, FRONT_ZH):
        for name in (*_types(Advantage), *_types(PolicyLoss), *typing.get_args(Aggregation)):
            assert f"`{name}`" in text_of(page), f"{page.name} lacks {name}"


def test_the_catalogue_tells_aggregations_and_needs_as_the_schemas_do() -> None:
    text = text_of(ALGORITHMS)
    for name, schema in _types(PolicyLoss).items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
        assert f"| `{schema.default_aggregation}` |" in row
    for name, schema in _types(Advantage).items():
        (row,) = re.findall(rf"^\| `{name}` \|.*$", text, re.MULTILINE)
        needs = row.rsplit("|", 2)[1]
        assert ("group" in needs) == schema.group_relative, name
        assert ("critic" in needs) == schema.needs_critic, name
        assert ("greedy" in needs) == schema.needs_greedy_baseline, name


def test_stages_and_drop_reasons_are_those_of_the_books() -> None:
    assert _first_cells(READING, "The stages") == list(STAGES)
    account = text_of(READING).partition("## The data account")[2].partition("\n## ")[0]
    for reason in DropReason:
        assert f"`{reason}`" in account
    for page in (FRONT, FRONT_ZH):
        for stage in STAGES:
            assert f"`{stage}`" in text_of(page)


def test_metrics_named_in_the_pages_are_declared() -> None:
    groups = {metric.name.split("/")[0] for metric in METRICS.metrics}
    checked = 0
    for page in PAGES:
        for code in inline_code(page):
            if code.split("/")[0] not in groups or "/" not in code or code.endswith(("/", ".py")):
                continue
            name = re.sub(r"<[^>]*>", "x", code).replace("_*", "_mean").replace("/*", "/mean")
            if "..." in name or (PACKAGE / code).exists():
                continue
            try:
                METRICS.find(name)
            except BooksError:
                pytest.fail(f"{page.name} names the metric {code}, which is not declared")
            checked += 1
    assert checked > 20


def test_pages_speak_of_the_product_alone() -> None:
    foreign = re.compile(
        r"\b(claude|anthropic|chatgpt|openai codex|copilot|gemini|cursor|assistants?|sessions?)\b",
        re.IGNORECASE,
    )
    for page in PAGES:
        assert not foreign.search(text_of(page)), page.name


def test_pictures_are_svg_without_scripts_and_have_a_title() -> None:
    for path in (ROOT / "docs").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "<svg" in text[:400]
        assert "<script" not in text
    assert "<title" in (ROOT / "docs" / "picture.svg").read_text(encoding="utf-8")


def test_the_demo_policy_is_what_the_page_says() -> None:
    folder = ROOT / "recipes" / "demo-policy"
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["num_hidden_layers"]) == ("llama", 4)
    assert (folder / "model.safetensors").stat().st_size / 4 < 1_000_000
    warmup = tomllib.loads((ROOT / "recipes" / "demo-warmup.toml").read_text(encoding="utf-8"))
    assert warmup["warmup"]["copy_frac"] == 0.5
    assert warmup["warmup"]["stop_between"] == [0.30, 0.40]
    demo = tomllib.loads((ROOT / "recipes" / "demo.toml").read_text(encoding="utf-8"))
    for key in ("name", "params", "template", "num_train_prompts"):
        assert warmup["tasks"]["data"][key] == demo["tasks"]["data"][key]
    assert sys.version_info >= (3, 11)
