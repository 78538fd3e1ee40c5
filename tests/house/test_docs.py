"""The pages for developers are true: the files and functions that they name exist, the rooms have their floors."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.house.test_floors import FLOORS

ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = (ARCHITECTURE, ROOT / "CONTRIBUTING.md", ROOT / "framework" / "engine" / "SEMANTICS.md")
FOLDERS = (ROOT, ROOT / "framework", ROOT / "framework" / "engine")
MADE = {"summary.json", "requests.parquet"}  # by a run
_NAMED = re.compile(r"`((?:[\w.]+/)+|(?:[\w.]+/)*[\w.]+\.(?:py|md|yaml|json|parquet))(?:: ?(\w+))?`(?:: `(\w+)`)?")


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


def test_the_picture_of_the_rooms_has_their_floors() -> None:
    shown = re.search(r"<!-- floors.*?```text\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL)
    assert shown is not None
    rooms = [re.split(r" {2,}", line)[:-1] for line in reversed(shown[1].splitlines())]
    names = [[name if (ROOT / name).is_dir() else f"framework.{name}" for name in line] for line in rooms]
    assert {name for line in names for name in line} >= set(FLOORS)
    for lower, higher in pairwise(names):
        assert max(map(FLOORS.index, lower)) < min(map(FLOORS.index, higher)), (lower, higher)
