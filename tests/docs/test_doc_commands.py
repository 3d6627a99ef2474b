"""Every command of the documentation works, or is run by somebody named."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doc_commands import ELSEWHERE, RUN
from doc_pages import PAGES, ROOT, commands, inline_code

from rledger.cli import _VERBS, main

TARGETS = set(
    re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)
NEEDS_A_RUN = {command for command in RUN if "demo" in command.split() or "runs/demo" in command}
CHEAP = [
    command for command in RUN if command.startswith("rledger ") and command not in NEEDS_A_RUN
]


def _all_commands() -> set[str]:
    return {command for page in PAGES for command in commands(page)}


def test_each_command_is_run_here_or_by_somebody_named() -> None:
    assert _all_commands() - RUN.keys() - ELSEWHERE.keys() == set()
    assert RUN.keys() - _all_commands() == set(), "a command that no page shows any more"
    assert ELSEWHERE.keys() - _all_commands() == set(), "a command that no page shows any more"
    assert not RUN.keys() & ELSEWHERE.keys()


@pytest.mark.parametrize("command", ELSEWHERE)
def test_whoever_runs_a_command_elsewhere_exists(command: str) -> None:
    where = ELSEWHERE[command]
    if where.startswith("make "):
        assert where.removeprefix("make ") in TARGETS
    else:
        assert (ROOT / where).exists()


def test_commands_within_sentences_name_verbs_and_targets_that_exist() -> None:
    found = 0
    for page in PAGES:
        for code in inline_code(page):
            words = code.split()
            if words[0] == "make" and len(words) > 1:
                assert words[1] in TARGETS, f"{page.name}: {code}"
                found += 1
            if words[0] == "rledger" and len(words) > 1:
                assert words[1] in _VERBS, f"{page.name}: {code}"
                found += 1
    assert found > 10


def _workplace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(folder)


def _run(command: str) -> int:
    return main(shlex.split(f"{command} {RUN[command]}")[1:])


@pytest.mark.parametrize("command", CHEAP)
def test_a_command_without_a_run_works(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _workplace(tmp_path, monkeypatch)
    if "--help" in command:
        with pytest.raises(SystemExit) as done:
            _run(command)
        assert done.value.code == 0
    else:
        assert _run(command) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3 or "warmup" in command


def test_commands_on_a_run_work(
    make_recipe: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rledger.launch.inline import train

    assert train(make_recipe("run.name=demo")).finished
    _workplace(tmp_path, monkeypatch)
    assert len(NEEDS_A_RUN) == 3
    for command in sorted(NEEDS_A_RUN):
        capsys.readouterr()
        assert _run(command) == 0, command
        assert capsys.readouterr().out.strip(), command
    assert (tmp_path / "exported-policy" / "model.safetensors").is_file()


def test_make_help_lists_the_targets() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    listed = {line.split("\t")[0].strip() for line in done.stdout.splitlines()}
    assert {"demo", "test", "nightly", "lint"} <= listed <= TARGETS


def test_the_picture_of_the_report_can_be_drawn_again(
    make_recipe: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rledger.launch.inline import train

    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate

    assert train(make_recipe("run.name=demo", "run.num_steps=1")).finished
    picture = generate.report_picture(tmp_path / "runs" / "demo")
    assert "unaccounted" in picture
    assert "Throughput" not in picture
    assert picture.startswith("<svg")
