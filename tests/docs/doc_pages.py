"""The pages of the documentation, taken apart."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "rledger"
FRONT, FRONT_ZH = ROOT / "README.md", ROOT / "README.zh.md"
PAGES = (
    FRONT,
    FRONT_ZH,
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    text: str


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    return [Block(language, body) for language, body in _FENCE.findall(text_of(page))]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", text_of(page))


def commands(page: Path) -> list[str]:
    """Lines of the page's bash blocks."""
    return [
        line.strip()
        for block in blocks(page)
        if block.language == "bash"
        for line in block.text.splitlines()
        if line.strip()
    ]


def headings(page: Path) -> list[tuple[int, str]]:
    """(level, text) of each heading."""
    return [(len(m), t) for m, t in re.findall(r"^(#+) (.*)$", prose(page), re.MULTILINE)]


def inline_code(page: Path) -> list[str]:
    """What stands between single backticks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def links(page: Path) -> list[str]:
    """Targets of links and images."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(page))


def anchor(heading: str) -> str:
    """The anchor that a heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def tree_entries(page: Path) -> dict[str, str]:
    """Path -> annotation of the block that shows the repository."""
    (tree,) = [block for block in blocks(page) if block.language == ""]
    entries: dict[str, str] = {}
    parent = ""
    for line in tree.text.splitlines():
        name, _, note = line.strip().partition(" ")
        nested = line.startswith("  ")
        entries[(parent if nested else "") + name] = note.strip()
        if not nested:
            parent = name
    return entries


def top_level() -> set[str]:
    """Entries of the repository's root, folders with a slash; tracked ones where there is a git."""
    done = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        names = {line.split("/")[0] for line in done.stdout.splitlines()}
    else:
        ignored = {line.strip("/\n") for line in (ROOT / ".gitignore").open(encoding="utf-8")}
        names = {p.name for p in ROOT.iterdir()} - ignored - {".git"}
    return {f"{name}/" if (ROOT / name).is_dir() else name for name in names}


def parts() -> set[str]:
    """Packages (with a slash) and modules of rledger."""
    packages = {f"{p.parent.name}/" for p in PACKAGE.glob("*/__init__.py")}
    return packages | {p.name for p in PACKAGE.glob("*.py") if p.name != "__init__.py"}
