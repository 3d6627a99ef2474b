"""The layers of the design, proved from the imports that the source really has."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "rledger"

# Each part's level; parts of one level that must not import each other share a sibling group.
LEVEL = {
    "types": 0, "interfaces": 0, "errors": 0, "modelspec": 0, "config": 0,
    "books": 1, "algo": 1, "schedule": 1, "cost": 1, "reshard": 1, "models": 1,
    "tasks": 2, "stream": 2, "generator": 2, "trainer": 2, "weights": 2,
    "loop": 3, "sim": 4,
    "analysis": 5, "planner": 5,
    "launch": 6, "report": 6, "dashboard": 6,
    "cli": 7,
}  # fmt: skip
SIBLINGS = (
    {"books", "algo", "schedule", "cost", "reshard", "models"},
    {"tasks", "stream", "generator", "trainer", "weights"},
)
LIGHT = (
    "types", "interfaces", "errors", "modelspec", "config", "books", "schedule", "cost", "loop",
    "sim", "analysis", "planner", "report", "dashboard",
)  # fmt: skip
HEAVY = {"torch", "ray", "vllm", "transformers"}


def _modules() -> dict[str, ast.Module]:
    return {
        str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }


def _imports(tree: ast.Module) -> list[tuple[str, bool]]:
    """(absolute module name, only for type checking) of every import, lazy ones included."""
    found: list[tuple[str, bool]] = []

    def walk(node: ast.AST, typing_only: bool) -> None:
        for child in ast.iter_child_nodes(node):
            only = typing_only or (
                isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            )
            if isinstance(child, ast.Import):
                found.extend((alias.name, only) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "relative imports hide the layer they reach into"
                found.append((child.module or "", only))
                if child.module == "rledger":
                    found.extend((f"rledger.{alias.name}", only) for alias in child.names)
            walk(child, only)

    walk(tree, False)
    return found


def _part(module: str) -> str | None:
    pieces = module.split(".")
    return pieces[1] if pieces[0] == "rledger" and len(pieces) > 1 else None


def test_every_part_of_the_source_has_a_layer() -> None:
    parts = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    parts -= {"__init__", "__pycache__", "__main__", "py"}
    assert parts <= set(LEVEL)


def test_imports_point_down_and_siblings_do_not_meet() -> None:
    wrong = []
    for name, tree in _modules().items():
        own = Path(name).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for module, _ in _imports(tree):
            other = _part(module)
            if other is None or other == own or other == "__version__":
                continue
            siblings = any(own in group and other in group for group in SIBLINGS)
            if LEVEL[other] > LEVEL[own] or siblings:
                wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_no_module_is_part_of_an_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    names = {}
    for name, tree in _modules().items():
        module = "rledger." + name.removesuffix(".py").replace("/", ".")
        module = module.removesuffix(".__init__")
        names[module] = {m for m, typing_only in _imports(tree) if not typing_only}
    for module, imported in names.items():
        graph[module] = {m for m in imported if m in names and m != module}
    state: dict[str, int] = {}

    def visit(module: str, path: tuple[str, ...]) -> None:
        state[module] = 1
        for following in graph[module]:
            assert state.get(following) != 1, " -> ".join((*path, module, following))
            if following not in state:
                visit(following, (*path, module))
        state[module] = 2

    for module in graph:
        if module not in state:
            visit(module, ())


@pytest.mark.parametrize(
    "part", [p for p in LIGHT if (SOURCE / p).exists() or (SOURCE / f"{p}.py").exists()]
)
def test_light_parts_import_nothing_heavy(part: str) -> None:
    modules = [
        "rledger."
        + str(path.relative_to(SOURCE))
        .removesuffix(".py")
        .replace("/", ".")
        .removesuffix(".__init__")
        for path in (
            [SOURCE / f"{part}.py"]
            if (SOURCE / f"{part}.py").exists()
            else (SOURCE / part).rglob("*.py")
        )
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {sorted(modules)!r}: importlib.import_module(name)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_root_of_the_cli_imports_neither_numpy_nor_rich() -> None:
    code = "import sys, rledger.cli; print(sorted({'numpy', 'rich', 'pydantic', 'torch'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_no_module_is_named_after_nothing() -> None:
    empty_names = {"utils", "util", "common", "helpers", "helper", "misc", "core"}
    assert [n for n in _modules() if empty_names & set(Path(n.removesuffix(".py")).parts)] == []
