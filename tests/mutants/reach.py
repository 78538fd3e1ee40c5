"""Which statements of a room's modules each of its quick tests comes to, and how long each test takes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.conftest import ROOT
from tests.mutants.rooms import Bug, Room
from tests.mutants.seeding import watch

_QUIET = ("-o", "addopts=--strict-markers", "-m", "not slow", "-p", "no:terminal", "-p", "no:xdist", "--assert=plain")
OPTIONS = (*_QUIET, "-p", "no:cacheprovider", "--rootdir", str(ROOT))


@dataclass
class Reach:
    """What the quick tests of a room come to: by test its seconds of processor time, by file and line the tests.

    `modules`: what they import.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)

    def of(self, bug: Bug) -> list[str]:
        """The tests that come to a bug, or to its module, or else all: no statement shows what a constant does."""
        lines = self.tests.get(str(bug.file), {})
        found = lines.get(str(bug.line)) or [test for tests in lines.values() for test in tests]
        return sorted(set(found or self.seconds), key=lambda test: self.seconds[test])


class Quick:
    """Settings of all runs here."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: Any) -> None:
        config.workerinput = {}  # tests/conftest.py need not compile the engine

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let what hypothesis draws be the same for each bug, and leave nothing behind."""
        settings.register_profile("mutants", deadline=None, database=None, derandomize=True)
        settings.load_profile("mutants")


class _Reaching(Quick):
    """Notes which statements each test comes to, itself or by its fixtures, and how long it takes."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.reach = Reach(tests={str(file): {} for file in files})
        self.seen: set[tuple[str, int]] = set()
        self.fixtures: dict[Any, set[tuple[str, int]]] = {}
        self.fixtures_s: dict[Any, float] = {}
        self.set_up_s = 0.0  # by fixtures within the test that runs

    def pytest_sessionfinish(self) -> None:
        self.reach.modules = list(sys.modules)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        """What a fixture comes to counts for each test that has it, and so does its time: any of them may be first."""
        before, begin_s = self.seen.copy(), time.process_time()
        self.seen.clear()
        try:
            return (yield)
        finally:
            self.fixtures[fixturedef] = self.seen.copy()
            self.fixtures_s[fixturedef] = time.process_time() - begin_s
            self.set_up_s += self.fixtures_s[fixturedef]
            self.seen |= before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
        """Note it for the test."""
        self.seen.clear()
        self.set_up_s, begin_s = 0.0, time.process_time()
        try:
            return (yield)
        finally:
            own = [one for each in item._fixtureinfo.name2fixturedefs.values() for one in each]
            alone_s = time.process_time() - begin_s - self.set_up_s
            self.reach.seconds[item.nodeid] = alone_s + sum(self.fixtures_s.get(one, 0.0) for one in own)
            for file, line in self.seen.union(*(self.fixtures.get(one, set()) for one in own)):
                self.reach.tests[file].setdefault(str(line), []).append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reach.failed.append(f"{report.nodeid}: {report.longreprtext}")


def note_reach(room: Room, files: Sequence[Path], target: Path, temporary: Path) -> None:
    """Run the tests of a room, and write its `Reach` of these files as JSON to `target`."""
    plugin = _Reaching(files)
    for file in files:
        watch(file, partial(_see, plugin.seen, str(file)))
    pytest.main([*OPTIONS, f"--basetemp={temporary}", *room.tests], plugins=[plugin])
    target.write_text(json.dumps(asdict(plugin.reach)))


def _see(seen: set[tuple[str, int]], file: str, line: int) -> None:
    seen.add((file, line))
