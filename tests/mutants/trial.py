"""The quick tests of a room, collected once, that then judge one bug after the other, each in a fork.

First a fork runs all tests with functions that tell which of their statements they come to. A bug is tried by the tests
that come to its statement in this process, or to its module where it is outside of functions, the fastest first.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from framework.compiler.decorators import prepare
from tests.conftest import ROOT
from tests.mutants.operators import module_name
from tests.mutants.rooms import Bug, Room
from tests.mutants.seeding import OutsideFunctions, has_compiled, is_outside_functions, seed, watch

LIVES = "lives"
_OVERLAY = Path(__file__).with_name("overlay")
_QUIET = ("-o", "addopts=--strict-markers", "-m", "not slow", "-p", "no:terminal", "-p", "no:xdist")
_OPTIONS = (*_QUIET, "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestConfigWarning")
_MORE_S, _TIMES = 3.0, 8.0  # of processor time that a test may take: so many times what it took before, and this
_LONGEST_S = 600.0  # that all tests may take for one bug
_MEMORY = 6 << 30


@dataclass
class Reach:
    """What the quick tests of a room come to: by test its seconds of processor time, by file and line the tests."""

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def of(self, bug: Bug) -> list[str]:
        """The tests that come to a bug, or to its module where no statement of a function is at fault."""
        lines = self.tests.get(str(bug.file), {})
        found = lines.get(str(bug.line)) or [test for tests in lines.values() for test in tests]
        return sorted(set(found), key=lambda test: self.seconds[test])


class Trials:
    """A pytest plugin: in place of a run of the tests, `bugs` are tried, so many `jobs` at a time.

    `told` gets each bug with its fate: the test that failed, how the run broke, or LIVES. `first` is, by bug, the test
    to begin with.
    """

    def __init__(self, bugs: Sequence[Bug], first: dict[str, str], jobs: int, told: Callable[[Bug, str], None]) -> None:
        self.bugs, self.first, self.jobs, self.told = bugs, first, jobs, told
        self.folder = Path(tempfile.mkdtemp(prefix="mutants-"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let what hypothesis draws be the same for each bug, and leave nothing behind."""
        settings.register_profile("mutants", deadline=None, database=None, derandomize=True)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the bugs."""
        from framework.engine.loop import run

        prepare(run)
        for bug in self.bugs:
            import_module(module_name(bug.file))
        try:
            reach = self._reach(session)
            if reach.failed:
                raise pytest.UsageError("\n".join(["tests fail without any bug:", *reach.failed]))
            self._try_all(session, reach)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        return True

    def _reach(self, session: pytest.Session) -> Reach:
        file = self.folder / "reach"
        child = os.fork()
        if child == 0:
            _run_apart(lambda: _note_reach(session, sorted({bug.file for bug in self.bugs}), file, self.folder / "tmp"))
        os.waitpid(child, 0)
        return Reach(**json.loads(file.read_text()))

    def _try_all(self, session: pytest.Session, reach: Reach) -> None:
        running: dict[int, tuple[Bug, float]] = {}
        left = list(enumerate(self.bugs))
        while left or running:
            while left and len(running) < self.jobs:
                number, bug = left.pop(0)
                running[self._begin(session, reach, number, bug)] = (bug, time.monotonic() + _LONGEST_S)
            child, status = os.waitpid(-1, os.WNOHANG)
            if child in running:
                self.told(running.pop(child)[0], self._fate(child, status))
            else:
                self._end_late(running)
                time.sleep(0.01)

    def _end_late(self, running: dict[int, tuple[Bug, float]]) -> None:
        for child, (_, latest) in running.items():
            if time.monotonic() > latest:
                os.killpg(child, signal.SIGKILL)

    def _fate(self, child: int, status: int) -> str:
        file = self.folder / f"fate-{child}"
        shutil.rmtree(self.folder / str(child), ignore_errors=True)
        if file.exists():
            return file.read_text()
        return f"breaks: {signal.Signals(status & 127).name}" if status & 127 else f"breaks: exit code {status >> 8}"

    def _begin(self, session: pytest.Session, reach: Reach, number: int, bug: Bug) -> int:
        text = self.folder / f"{number}.py"
        text.write_text(bug.text)
        child = os.fork()
        if child:
            return child
        os.setpgid(0, 0)
        os.environ |= {"MUTANT_MODULE": module_name(bug.file), "MUTANT_TEXT": str(text)}
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_OVERLAY), os.environ.get("PYTHONPATH"))))
        _run_apart(lambda: self._judge(session, reach, bug))
        raise AssertionError("a fork ends by itself")

    def _judge(self, session: pytest.Session, reach: Reach, bug: Bug) -> None:
        fate = self.folder / f"fate-{os.getpid()}"
        order = _order(reach, bug, self.first.get(bug.key, ""))
        temporary = self.folder / str(os.getpid())
        try:
            if is_outside_functions((ROOT / bug.file).read_text(), bug.text):
                raise OutsideFunctions(bug.key)
            seed(bug.file, bug.text)
        except OutsideFunctions:
            fate.write_text(_judged_anew(session, bug, order))
            return
        items = {item.nodeid: item for item in session.items}
        fate.write_text(_first_failure(session, [items[test] for test in order], reach, temporary))


def rooms_trials(room: Room, plugin: Trials) -> int:
    """Try bugs of a room with its tests; the exit code of pytest."""
    return int(pytest.main([*_OPTIONS, *room.tests], plugins=[plugin]))


def _order(reach: Reach, bug: Bug, first: str) -> list[str]:
    """The tests that come to a bug, the one that saw it before first."""
    known = [first] if first in reach.seconds else []
    return list(dict.fromkeys([*known, *reach.of(bug)]))


def _run_apart(work: Callable[[], None]) -> None:
    """Do it as the last thing of this process."""
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        work()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        os._exit(code)


class _FirstFailure:
    """Notes it, and limits how long each test may take."""

    def __init__(self, reach: Reach) -> None:
        self.reach, self.test = reach, ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.signal(signal.SIGVTALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_VIRTUAL, _MORE_S + _TIMES * self.reach.seconds.get(nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.test:
            self.test = report.nodeid


def _first_failure(session: pytest.Session, items: list[pytest.Item], reach: Reach, temporary: Path) -> str:
    noted = _FirstFailure(reach)
    _loop(session, items, noted, temporary)
    return noted.test or LIVES


def _loop(session: pytest.Session, items: list[pytest.Item], plugin: object, temporary: Path, most: int = 1) -> None:
    from _pytest.main import pytest_runtestloop

    factory: Any = session.config._tmp_path_factory  # type: ignore[attr-defined]
    temporary.mkdir()
    factory._basetemp = temporary
    session.config.pluginmanager.register(plugin)
    session.config.option.maxfail = most
    session.items = items
    try:
        pytest_runtestloop(session)
    except session.Failed:
        pass


def _judged_anew(session: pytest.Session, bug: Bug, order: list[str]) -> str:
    """The same in a process of its own, which imports the module with the bug."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told")
        environment = os.environ | ({"NUMBA_DISABLE_JIT": "1"} if has_compiled(bug.file) else {})
        words = [sys.executable, "-m", "tests.mutants.alone", str(told), "--basetemp", f"{folder}/tmp", *_OPTIONS]
        ended = subprocess.run(
            [*words, "--maxfail", "1", *_by_file(order)], cwd=ROOT, env=environment, capture_output=True, check=False
        )
        if told.exists() and told.read_text():
            return told.read_text()
        if ended.returncode:
            return f"breaks: exit code {ended.returncode}"
    return LIVES


def _by_file(order: list[str]) -> Iterator[str]:
    """The files of tests, that of the first one first."""
    yield from dict.fromkeys(test.partition("::")[0] for test in order)


class _Reaching:
    """Notes which statements each test comes to, itself or by its fixtures, and how long it takes."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.reach = Reach(tests={str(file): {} for file in files})
        self.seen: set[tuple[str, int]] = set()
        self.fixtures: dict[Any, set[tuple[str, int]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        """What a fixture comes to counts for each test that has it."""
        before = self.seen.copy()
        self.seen.clear()
        try:
            return (yield)
        finally:
            self.fixtures[fixturedef] = self.seen.copy()
            self.seen |= before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[Any]:
        self.seen.clear()
        begin_s = time.process_time()
        try:
            return (yield)
        finally:
            self.reach.seconds[item.nodeid] = time.process_time() - begin_s
            own = (one for each in item._fixtureinfo.name2fixturedefs.values() for one in each)
            for file, line in self.seen.union(*(self.fixtures.get(one, set()) for one in own)):
                self.reach.tests[file].setdefault(str(line), []).append(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.reach.failed.append(f"{report.nodeid}: {report.longreprtext}")


def _note_reach(session: pytest.Session, files: Sequence[Path], target: Path, temporary: Path) -> None:
    plugin = _Reaching(files)
    for file in files:
        watch(file, partial(_see, plugin.seen, str(file)))
    _loop(session, list(session.items), plugin, temporary, most=0)
    target.write_text(json.dumps(asdict(plugin.reach)))


def _see(seen: set[tuple[str, int]], file: str, line: int) -> None:
    seen.add((file, line))
