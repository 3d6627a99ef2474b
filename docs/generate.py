"""Writes what the documentation takes from the code: the keys of a recipe, a picture of the report.

    python docs/generate.py           docs/configuration.md, between its two markers
    python docs/generate.py RUN       docs/report.svg too, from a run folder

tests/docs checks that docs/configuration.md is what this file makes of today's schemas.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rledger.config.recipe import Recipe
from rledger.config.schema import field_kind, sections_in, variant_of
from rledger.config.toml_text import toml_value
from rledger.config.warmup import WarmupRecipe

__all__ = ["configuration_page", "key_tables", "report_picture"]

DOCS = Path(__file__).parent
BEGIN = "<!-- keys: written by docs/generate.py, do not edit by hand -->"
END = "<!-- end of keys -->"
_REPORT_WIDTH = 108
_REPORT_ENDS = "Throughput"  # the rest is left to the terminal


def configuration_page(page: str) -> str:
    """The page with what lies between the markers written anew."""
    head, found, rest = page.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"the page lacks the line {BEGIN} or {END}")
    return f"{head}{BEGIN}\n\n{key_tables()}\n{END}{tail}"


def key_tables() -> str:
    """A heading and a table for each section of a recipe, then those that only warm-up recipes have."""
    seen: dict[type[BaseModel], str] = {}
    lines: list[str] = []
    for name, field in Recipe.model_fields.items():
        lines += _field_sections(name, field, seen)
    lines += ["## Keys of warm-up recipes alone", ""]
    lines += ["A recipe of `rledger warmup` has `[tasks]` and `[trainer]` as above, and:", ""]
    for name, field in WarmupRecipe.model_fields.items():
        if name not in Recipe.model_fields:
            lines += _field_sections(name, field, seen)
    return "\n".join(lines)


def _field_sections(key: str, field: FieldInfo, seen: dict[type[BaseModel], str]) -> Iterator[str]:
    """The sections that a key can hold, each described where it first appears."""
    sections = sections_in(field.annotation)
    for section in sections:
        if section in seen:
            continue
        choice = variant_of(section) if len(sections) > 1 else None
        title = f"`[{key}]`" + (f' with `type = "{choice}"`' if choice else "")
        seen[section] = title
        yield from _section(key, title, section, seen, chosen=choice is not None)


def _section(
    key: str,
    title: str,
    section: type[BaseModel],
    seen: dict[type[BaseModel], str],
    *,
    chosen: bool,
) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    yield _one_line(section.__doc__)
    yield ""
    rows = [
        f"| `{name}` | {_cell(_kind(field))} | {_default(field)} | {_cell(_one_line(field.description))} |"
        for name, field in section.model_fields.items()
        if not (chosen and name == "type")
    ]
    if rows:
        yield "| key | takes | default | meaning |"
        yield "|---|---|---|---|"
        yield from rows
        yield ""
    for name, field in section.model_fields.items():
        yield from _field_sections(f"{key}.{name}", field, seen)


def _kind(field: FieldInfo) -> str:
    variants = [variant_of(section) for section in sections_in(field.annotation)]
    kind = field_kind(field)
    if len(variants) > 1 and not kind.startswith("a list"):
        return "a section; `type` is " + ", ".join(f"`{variant}`" for variant in variants)
    return kind


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, BaseModel):
        chosen = variant_of(type(default))
        return f'`type = "{chosen}"`' if chosen else "its own"
    return f"`{_cell(toml_value(default))}`"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def report_picture(run_folder: Path) -> str:
    """`rledger report` on a run as an SVG, down to where the run's time went."""
    from rich.console import Console
    from rich.segment import Segment, Segments

    from rledger.report.terminal import render_report

    console = Console(
        record=True,
        width=_REPORT_WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        highlight=False,
        color_system="truecolor",
    )
    for line in console.render_lines(render_report(run_folder), pad=False):
        if "".join(segment.text for segment in line).startswith(_REPORT_ENDS):
            break
        console.print(Segments([*line, Segment.line()]), end="")
    return console.export_svg(title=f"rledger report {run_folder.name}", unique_id="report")


def main(arguments: list[str]) -> None:
    page = DOCS / "configuration.md"
    page.write_text(configuration_page(page.read_text(encoding="utf-8")), encoding="utf-8")
    for run in arguments:
        (DOCS / "report.svg").write_text(report_picture(Path(run)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
