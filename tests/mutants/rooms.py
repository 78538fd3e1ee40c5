"""The rooms whose numbers are judged by mutants, their quick tests, and a sample of bugs over their modules."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.conftest import ROOT
from tests.mutants.named import NAMED
from tests.mutants.operators import Site, has_sites, module_name, mutated, sites, statements

_LEAST = 2  # bugs of a module, if it has as many places for them


@dataclass(frozen=True)
class Room:
    """Code, as files and folders without those `apart`, and the tests that judge it."""

    name: str
    code: tuple[str, ...]
    tests: tuple[str, ...]
    apart: tuple[str, ...] = ()

    @property
    def modules(self) -> list[Path]:
        """Its files, relative to the root, those that have something to change."""
        found = (ROOT / one for one in self.code)
        files = (file for one in found for file in (sorted(one.rglob("*.py")) if one.is_dir() else [one]))
        return [file.relative_to(ROOT) for file in files if self._has(file)]

    def _has(self, file: Path) -> bool:
        is_apart = file.stem == "__main__" or any(file.is_relative_to(ROOT / one) for one in self.apart)
        return not is_apart and has_sites(file.read_text())


ROOMS = (
    Room("metrics", ("framework/metrics",), ("tests/metrics",)),
    Room("bound", ("framework/bound",), ("tests/bound",)),
    Room(
        "load",
        ("framework/load.py",),
        ("tests/engine/test_window.py", "tests/engine/test_load.py", "tests/metrics/test_clock.py"),
    ),
    Room("sizing", ("framework/sizing", "framework/system/split.py"), ("tests/sizing", "tests/system/test_cluster.py")),
    Room("objective", ("framework/objective",), ("tests/objective",)),
    Room("calibration", ("framework/calibration",), ("tests/calibration",)),
    Room("timing", ("framework/timing",), ("tests/timing",), apart=("framework/timing/microbench",)),  # needs a GPU
    Room(
        "transforms",
        ("traces/transforms.py",),
        ("tests/traces/test_transforms.py", "tests/traces/test_transform_parts.py", "tests/traces/test_traces.py"),
    ),
    Room(
        "workload",
        ("framework/workload/requests.py", "framework/workload/programs.py"),
        (
            *("tests/traces/test_workload.py", "tests/traces/test_workload_parts.py"),
            *("tests/engine/test_block_sharing.py", "tests/engine/test_programs.py"),
        ),
    ),
    Room(
        "store",
        ("framework/run/store.py", "framework/run/run_key.py"),
        ("tests/run/test_store.py", "tests/run/test_prune.py", "tests/run/test_identity.py"),
    ),
    Room(
        "tune",
        ("experiments/tune",),
        tuple(
            f"tests/experiments/test_{name}.py"
            for name in (
                "tune_kept",
                "tune_parts",
                "tune_search",
                "tune_storage",
                "tune_choice",
                "tune_words",
                "studies",
                "optimum",
                "placement",
            )
        ),
    ),
    Room(
        "table",
        ("experiments/table",),
        tuple(f"tests/experiments/test_{name}.py" for name in ("paper_table", "table_notes", "table_documents")),
    ),
)


@dataclass(frozen=True)
class Bug:
    """A bug in one file, relative to the root: `key` names it, `text` is the file with it, `line` where it is.

    `line` is 0 where no single statement is at fault, and `change` says what is different.
    """

    key: str
    file: Path
    text: str
    line: int
    change: str


def named_bugs(room: Room) -> list[Bug]:
    """Those that somebody thought of. Raises ValueError where one cannot be put into the code."""
    modules = set(room.modules)
    return [
        Bug(f"{one.module}: {one.name}", one.file, one.text(), one.line(), f"{one.before} -> {one.after}")
        for one in NAMED
        if one.file in modules
    ]


def drawn_sites(room: Room, most: int, seed: int) -> list[tuple[Path, Site]]:
    """So many places of a room where operators can act, over its modules in proportion to their statements.

    Each site has a rank of its own, drawn from the seed and its key, and the first ones of a module are taken: where
    code changes elsewhere, and where more are asked for, those that were drawn stay drawn.
    """
    texts = {file: (ROOT / file).read_text() for file in room.modules}
    sizes = {file: statements(text) for file, text in texts.items()}
    drawn: list[tuple[Path, Site]] = []
    for file, text in texts.items():
        share = max(_LEAST, round(most * sizes[file] / sum(sizes.values())))
        drawn += [(file, site) for site in sorted(sites(text), key=partial(_rank, seed, file))[:share]]
    return drawn


def drawn_bugs(room: Room, most: int, seed: int) -> list[Bug]:
    """The bugs that operators make there."""
    return [bug_at(file, site) for file, site in drawn_sites(room, most, seed)]


def drawn_keys(room: Room, most: int, seed: int) -> set[str]:
    """Their keys."""
    return {key_of(*one) for one in drawn_sites(room, most, seed)}


def quotas(rooms: Sequence[Room], most: int) -> dict[str, int]:
    """By room, how many of `most` bugs it gets: in proportion to its statements."""
    sizes = {room.name: sum(statements((ROOT / file).read_text()) for file in room.modules) for room in rooms}
    return {name: round(most * size / sum(sizes.values())) for name, size in sizes.items()}


def bug_at(file: Path, site: Site) -> Bug:
    """The bug that an operator makes there."""
    change = mutated((ROOT / file).read_text(), site)
    return Bug(key_of(file, site), file, change.text, site.line, f"{change.before} -> {change.after}")


def key_of(file: Path, site: Site) -> str:
    """By which lists name it: module, function, operator, number."""
    return f"{module_name(file)}.{site.name}" if site.function else f"{module_name(file)} {site.name}"


def _rank(seed: int, file: Path, site: Site) -> bytes:
    return hashlib.sha256(f"{seed} {key_of(file, site)}".encode()).digest()
