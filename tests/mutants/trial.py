"""The quick tests of a room judge one bug after the other, each in a fork of a process that has imported everything.

First a fork runs all tests with functions that tell which of their statements they come to. A bug is tried by the tests
that come to its statement in this process, the fastest first, or by all where it is outside of functions.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from framework.compiler.decorators import prepare
from framework.engine.loop import run, run_plain
from tests.conftest import ROOT
from tests.mutants.operators import module_name
from tests.mutants.reach import OPTIONS, Quick, Reach, note_reach
from tests.mutants.rooms import Bug, Room
from tests.mutants.seeding import OutsideFunctionsError, functions, is_outside_functions, runs_on_import, seed

LIVES = "lives"
OVERLAY = Path(__file__).with_name("overlay")
_MORE_S, _TIMES = 3.0, 8.0  # of processor time that a test may take: so many times what it took before, and this
_UNKNOWN_S = 8.0
_FEW = 5  # tests that are collected before all others are
_LONGEST_S = 600.0  # that all tests may take for one bug
_MEMORY = 6 << 30  # bytes


class Trials:
    """Tries bugs of a room, so many `jobs` at a time.

    `report` gets each with its fate: the test that failed, how the run broke, or LIVES. `first` is, by bug, the test to
    begin with.
    """

    def __init__(self, room: Room, first: dict[str, str], jobs: int, report: Callable[[Bug, str], None]) -> None:
        self.room, self.first, self.jobs, self.report = room, first, jobs, report
        self.folder = Path(tempfile.mkdtemp(prefix="mutants-"))

    def of(self, bugs: Sequence[Bug]) -> None:
        """Try these. Raises RuntimeError where tests fail without any bug."""
        prepare(run_plain)
        prepare(run)
        files = sorted({bug.file for bug in bugs})
        for file in files:
            import_module(module_name(file))
        try:
            reach = self._reach(files)
            if reach.failed:
                raise RuntimeError("\n".join(["tests fail without any bug:", *reach.failed]))
            _import_what_tests_do(reach)
            _prepare_forks()
            self._try_all(bugs, reach)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _reach(self, files: Sequence[Path]) -> Reach:
        target = self.folder / "reach"
        child = os.fork()
        if child == 0:
            _run_apart(partial(note_reach, self.room, files, target, self.folder / "tmp"))
        os.waitpid(child, 0)
        return Reach(**json.loads(target.read_text()))

    def _try_all(self, bugs: Sequence[Bug], reach: Reach) -> None:
        running: dict[int, tuple[Bug, float]] = {}
        left = list(bugs)
        while left or running:
            while left and len(running) < self.jobs:
                bug = left.pop(0)
                running[self._begin(reach, bug)] = (bug, time.monotonic() + _LONGEST_S)
            child, status = os.waitpid(-1, os.WNOHANG)
            if child in running:
                self.report(running.pop(child)[0], self._fate(child, status))
                continue
            for late in [child for child, (_, latest) in running.items() if time.monotonic() > latest]:
                with suppress(ProcessLookupError):
                    os.killpg(late, signal.SIGKILL)
            time.sleep(0.02)

    def _fate(self, child: int, status: int) -> str:
        file = self.folder / f"fate-{child}"
        shutil.rmtree(self.folder / str(child), ignore_errors=True)
        if file.exists():
            return file.read_text()
        return f"breaks: {signal.Signals(status & 127).name}" if status & 127 else f"breaks: exit code {status >> 8}"

    def _begin(self, reach: Reach, bug: Bug) -> int:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            _run_apart(partial(self._judge, reach, bug))
        return child

    def _judge(self, reach: Reach, bug: Bug) -> None:
        own = self.folder / str(os.getpid())
        own.mkdir()
        text = own / "module.py"
        text.write_text(bug.text)
        os.environ |= {"MUTANT_MODULE": module_name(bug.file), "MUTANT_TEXT": str(text)}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(OVERLAY), os.environ.get("PYTHONPATH"))))
        fate = self.folder / f"fate-{os.getpid()}"
        tests = _order(reach, bug, self.first.get(bug.key, ""))
        try:
            if is_outside_functions((ROOT / bug.file).read_text(), bug.text) or runs_on_import(bug.file, bug.text):
                raise OutsideFunctionsError(bug.key)
            seed(bug.file, bug.text)
        except OutsideFunctionsError:  # who reads a constant comes to no statement of its module
            others = sorted(reach.seconds, key=lambda test: reach.seconds[test])
            fate.write_text(_judged_anew(bug, list(dict.fromkeys([*tests, *others])), own))
            return
        fate.write_text(first_failure(tests, own / "tmp", reach.seconds))


def first_failure(tests: Sequence[str], temporary: Path, seconds: Mapping[str, float]) -> str:
    """Run tests in this order until one fails, and say which, or LIVES.

    `seconds` are those of processor time that each took before.
    """
    for some in filter(None, (tests[:_FEW], tests[_FEW:])):  # most bugs need no more files than those of a few tests
        noted = _FirstFailure(some, seconds)
        files = dict.fromkeys(test.partition("::")[0] for test in some)
        code = pytest.main([*OPTIONS, "--maxfail=1", f"--basetemp={temporary}", *files], plugins=[noted])
        if noted.test or code != pytest.ExitCode.OK:
            return noted.test or f"breaks: exit code {int(code)}"
    return LIVES


def _order(reach: Reach, bug: Bug, first: str) -> list[str]:
    """The tests that come to a bug, the one that saw it before first."""
    known = [first] if first in reach.seconds else []
    return list(dict.fromkeys([*known, *reach.of(bug)]))


def _run_apart(work: Callable[[], None]) -> None:
    """Do it as the last thing of this process, and say nothing."""
    code, null = 1, os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 1)
        os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        work()
        code = 0
    finally:
        os._exit(code)


def _prepare_forks() -> None:
    """Look functions and modules up once, and let no fork look for garbage in what it shares with the others."""
    functions.cache_clear()
    functions()
    inspect.getmodule(sys._getframe())  # it keeps the real path of every module
    gc.collect()
    gc.freeze()


def _import_what_tests_do(reach: Reach) -> None:
    """All but the tests and their helpers, which may work something out as they are imported: with the bug, if so."""
    for name in reach.modules:
        if name.partition(".")[0] not in ("tests", "conftest") and not name.startswith("test_"):
            with suppress(ImportError):
                import_module(name)


class _FirstFailure(Quick):
    """Chooses the tests, limits how long each may take, and notes the first that fails."""

    def __init__(self, tests: Sequence[str], seconds: Mapping[str, float]) -> None:
        self.places, self.seconds, self.test = {test: place for place, test in enumerate(tests)}, seconds, ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        asked = (item for item in items if item.nodeid in self.places)
        items[:] = sorted(asked, key=lambda item: self.places[item.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_VIRTUAL, _MORE_S + _TIMES * self.seconds.get(nodeid, _UNKNOWN_S))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.test:
            self.test = f"{report.nodeid}:: cannot be collected"


def _judged_anew(bug: Bug, tests: list[str], own: Path) -> str:
    """The same in a process of its own, which imports the module with the bug."""
    asked, report = own / "asked", own / "told"
    asked.write_text(json.dumps([str(bug.file), tests]))
    words = [sys.executable, "-m", "tests.mutants.alone", str(asked), str(report), str(own / "tmp")]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
    return report.read_text() if report.exists() else f"breaks: exit code {ended.returncode}"
