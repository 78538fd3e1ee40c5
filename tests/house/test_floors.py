"""Imports between rooms go down only: a room may import those that stand before it here, and none twice around."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import pytest

from tests.conftest import ROOT

# From low to high. A room is a folder of framework/, a flat module of it, or a top-level folder.
FLOORS = (
    "framework.version",
    "framework.errors",
    "framework.compiler",
    "framework.checks",
    "framework.cli",
    "framework.system",
    "framework.codes",
    "framework.workload",
    "framework.load",
    "framework.timing",
    "framework.timing.kernels",
    "framework.timing.microbench",
    "framework.policy",
    "framework.engine",
    "framework.engine.memory",
    "framework.engine.parallel",
    "framework.engine.kv",
    "framework.engine.durations",
    "framework.engine.events",
    "framework.engine.setup",
    "framework.engine.copies",
    "framework.engine.requests",
    "framework.engine.roles",
    "framework.engine.steps",
    "framework.engine.loop",
    "framework.reference",
    "framework.result",
    "framework.metrics",
    "framework.bound",
    "framework.replay",
    "framework.sizing",
    "framework.simulate",
    "framework.calibration",
    "framework.objective",
    "framework.diagnosis",
    "framework.report",
    "framework.run",
    "framework.plugins",
    "policies",
    "predictors",
    "traces",
    "experiments",
    "experiments.validation",
)
TOPS = ("framework", "policies", "predictors", "traces", "experiments")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for top in TOPS
    for path in sorted((ROOT / top).rglob("*.py"))
}
MOST_FLAT, MOST_IN_A_FOLDER = 9, 20
ENGINE = "framework.engine"


def room_of(module: str) -> str:
    """The longest floor that holds the module."""
    fitting = [floor for floor in FLOORS if module == floor or module.startswith(f"{floor}.")]
    return max(fitting, key=len) if fitting else module


def imported(module: str) -> Iterator[str]:
    """The project's own modules that a module imports, wherever the import stands."""
    for node in statements(ast.parse(MODULES[module].read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements; expressions, which most nodes are in, import nothing."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, block, ()):
            yield node
            yield from statements(node)


@cache
def graph() -> Mapping[str, set[str]]:
    return {module: {other for other in imported(module) if other in MODULES} - {module} for module in MODULES}


def test_every_module_has_a_floor() -> None:
    assert not {room_of(module) for module in MODULES} - set(FLOORS) - {"framework"}


@pytest.mark.parametrize("room", FLOORS)
def test_no_import_goes_up(room: str) -> None:
    height = {floor: number for number, floor in enumerate((*FLOORS, "framework"))}
    up = [
        f"{module} imports {other}"
        for module, others in graph().items()
        if room_of(module) == room
        for other in sorted(others)
        if other != "framework" and height[room_of(other)] > height[room]
    ]
    assert not up


def test_rooms_and_arrows_are_few() -> None:
    """The whole with the engine as one room, and the engine by its own."""
    assert len({_outside(floor) for floor in FLOORS}) <= 36
    assert len(_arrows(_outside)) <= 210
    inner = {one for arrow in _arrows(room_of) if all(room.startswith(f"{ENGINE}.") for room in arrow) for one in arrow}
    assert len(inner) <= 12
    assert sum(all(room.startswith(ENGINE) for room in arrow) for arrow in _arrows(room_of)) <= 50


def _outside(module: str) -> str:
    room = room_of(module)
    return ENGINE if room.startswith(ENGINE) else room


def _arrows(room: Callable[[str], str]) -> set[tuple[str, str]]:
    """From each room to those that it imports."""
    found = {(room(module), room(other)) for module, others in graph().items() for other in others}
    return {(one, other) for one, other in found if one != other and "framework" not in (one, other)}


def test_no_module_imports_itself_through_others() -> None:
    """Within a room too, wherever the import stands; a package's own face may be imported by what it is made of."""
    done: set[str] = set()
    for start in sorted(graph()):
        assert not (circle := _circle(start, [], done)), " -> ".join(circle)


def _circle(module: str, path: list[str], done: set[str]) -> list[str]:
    if module in path:
        return [*path[path.index(module) :], module]
    if module in done:
        return []
    for other in sorted(graph()[module]):
        if MODULES[other].name == "__init__.py":
            continue
        if circle := _circle(other, [*path, module], done):
            return circle
    done.add(module)
    return []


def test_no_import_is_for_type_checkers_alone_between_rooms() -> None:
    """Modules that name the flag are few: only they are parsed."""
    naming = {module: text for module, path in MODULES.items() if "TYPE_CHECKING" in (text := path.read_text())}
    for module, text in naming.items():
        between = {name for name in _for_checkers_alone(text) if room_of(name) != room_of(module)}
        assert not between, f"{module} imports {', '.join(sorted(between))}"


def _for_checkers_alone(text: str) -> Iterator[str]:
    """The project's own modules that are imported under `if TYPE_CHECKING`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            names = {inner.module for inner in ast.walk(node) if isinstance(inner, ast.ImportFrom) and inner.module}
            yield from (name for name in names if name.split(".")[0] in TOPS)


def test_an_import_for_type_checkers_is_found() -> None:
    text = "if TYPE_CHECKING:\n    from framework.engine.loop import run\n    from typing import Any\n"
    assert set(_for_checkers_alone(text)) == {"framework.engine.loop"}


def test_framework_has_few_flat_modules_and_no_crowded_folder() -> None:
    flat = [path.name for path in (ROOT / "framework").glob("*.py")]
    assert len(flat) <= MOST_FLAT, flat
    for folder in {path.parent for module, path in MODULES.items() if not module.startswith("policies")}:
        assert len(list(folder.glob("*.py"))) <= MOST_IN_A_FOLDER, folder
