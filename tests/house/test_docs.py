"""The pages for developers are true: files and functions that they name exist, and imports go down the floors shown."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = (ARCHITECTURE, ROOT / "CONTRIBUTING.md", ROOT / "framework" / "engine" / "SEMANTICS.md")
FOLDERS = (ROOT, ROOT / "framework", ROOT / "framework" / "engine")
MADE = {"summary.json", "requests.parquet"}  # by a run
TREES = ("framework", "policies", "predictors", "traces", "experiments")
_NAMED = re.compile(r"`((?:[\w.]+/)+|(?:[\w.]+/)*[\w.]+\.(?:py|md|yaml|json|parquet))(?:: ?(\w+))?`(?:: `(\w+)`)?")
_FLOORS = re.search(r"<!-- floors.*?```text\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_named_exists(page: Path) -> None:
    named = [found for found in _NAMED.findall(page.read_text()) if found[0] not in MADE]
    assert len(named) > 8
    missing = [name for name, *_ in named if not any((folder / name).exists() for folder in FOLDERS)]
    assert not missing
    lacking = [f"{name}: {one}" for name, *ones in named for one in ones if one and one not in definitions(name)]
    assert not lacking


def definitions(name: str) -> set[str]:
    """The functions, classes and constants of a module that a page names."""
    path = next(folder / name for folder in FOLDERS if (folder / name).exists())
    body = ast.parse(path.read_text()).body
    named = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = (target for node in body if isinstance(node, ast.Assign) for target in node.targets)
    return named | {target.id for target in assigned if isinstance(target, ast.Name)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_of_readable_length(page: Path) -> None:
    assert not [line for line in page.read_text().splitlines() if len(line) > 120 and not line.startswith("|")]


def floors() -> dict[str, int]:
    """The floor of each room, 0 the lowest; two blanks separate the rooms of a floor and what is said of them."""
    assert _FLOORS is not None
    lines = _FLOORS[1].splitlines()
    words = [re.split(r" {2,}", line)[:-1] for line in lines]
    return {room: len(lines) - 1 - number for number, rooms in enumerate(words) for room in rooms}


def room(module: str) -> str:
    """`timing.kernels` of framework.timing.kernels.table, `simulate` of framework.simulate, `traces` of traces.load."""
    parts = module.split(".")
    if parts[0] != "framework":
        return parts[0]
    inner = ".".join(parts[1:3])
    return inner if inner in floors() else ".".join(parts[1:2])


def imports() -> Iterator[tuple[str, str]]:
    """Each import of a module of the project by another: (importing, imported)."""
    paths = {name_of(path): path for tree in TREES for path in (ROOT / tree).rglob("*.py")}
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    imported = inner if inner in paths else node.module
                    if imported in paths:
                        yield name, imported


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_every_room_has_a_floor() -> None:
    packages = {path.parent.name for path in (ROOT / "framework").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "framework").glob("*.py")} - {"__init__"}
    assert (packages | modules) - floors().keys() <= {"moved", "version"}  # which import nothing


def test_imports_go_down() -> None:
    known, found = floors(), list(imports())
    assert len(found) > 500
    rooms = {(room(one), room(other)) for one, other in found}
    across = {(one, other) for one, other in rooms if one != other and one in known and other in known}
    assert ("simulate", "engine") in across
    assert not {(one, other) for one, other in across if known[one] <= known[other]}
