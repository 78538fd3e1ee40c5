"""What all tests share: recorded traces where they are at hand, and no download ever."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

import framework.cli.conf  # noqa: F401  Hydra looks for launchers once, wherever this says
from framework.cli.composition import composing_once

ROOT = Path(__file__).resolve().parent.parent

os.environ["TRACES_OFFLINE"] = "1"
# A test with a cache of its own (XDG_CACHE_HOME) would compile the engine anew.
os.environ.setdefault("NUMBA_CACHE_DIR", os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"))
# Workers are as many as there are cores: threads of linear algebra that wait for each other would take their time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# An example takes as long as the others on its core let it.
settings.register_profile("shared", max_examples=40, deadline=None)
settings.load_profile("shared")

# To draw constants of the modules that are imported, Hypothesis would parse them all, in seconds; and what a test draws
# would change with any of them.
with suppress(ImportError, AttributeError):
    known = providers._local_constants
    providers._get_local_constants = lambda: known

# A job in the background ignores interrupts, and so would all that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_WITHOUT_ENGINE = tuple(ROOT / "tests" / room for room in ("system", "timing", "traces", "report"))
_WITH_ENGINE = (
    "test_measured.py",
    "test_published_steps.py",
    "test_overheads.py",
    "test_synthetic.py",
    "test_hour_of_crashes.py",
    "test_counted.py",
    "test_perfetto.py",
    "test_timeline.py",
)  # of these rooms
_COUNTED = "test_reach.py"


def pytest_configure(config: pytest.Config) -> None:
    """Compile both entries of the engine with the workers, once: those that need one meanwhile wait for it."""
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        for entry in ("run_plain", "run"):
            words = (
                "from framework.engine.loop import {0}; from framework.compiler.decorators import prepare; prepare({0})"
            )
            process = subprocess.Popen([sys.executable, "-c", words.format(entry)], cwd=ROOT)
            config.add_cleanup(partial(_end, process))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.wait()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of all tests, let a second worker import the modules from the last one on.

    What pytest rewrites of a module takes longer than the import: of two workers one does it, the other reads it.
    """
    whole = session.config.args == session.config.getini("testpaths")
    if os.environ.get("PYTEST_XDIST_WORKER") != "gw1" or not whole:
        return
    for path in sorted((ROOT / "tests").rglob("test_*.py"), reverse=True):
        folder = path.parent
        while (folder / "__init__.py").exists():
            folder = folder.parent
        sys.path.insert(0, str(folder))  # as pytest does, which will tell of what cannot be imported
        with suppress(Exception, pytest.skip.Exception):
            import_module(".".join(path.relative_to(folder).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Let collections of garbage pass over all that was imported and collected: that is a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@cache
def _needs_no_engine(file: Path) -> bool:
    return file.name not in _WITH_ENGINE and any(file.is_relative_to(room) for room in _WITHOUT_ENGINE)


@pytest.hookimpl(trylast=True)  # when those that are not asked for are gone: halves of what is left are meant
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each of two workers, which begin with one half each, begin with tests that need no engine.

    What reads what other tests have counted comes last, when no worker has those before it.
    """
    late = [item for item in items if item.path.name == _COUNTED]
    light = [item for item in items if _needs_no_engine(item.path)]
    other = [item for item in items if item.path.name != _COUNTED and not _needs_no_engine(item.path)]
    half = len(light) // 2
    cut = len(items) // 2 - half
    items[:] = [*light[:half], *other[:cut], *light[half:], *other[cut:], *late]


@pytest.fixture(autouse=True, scope="session")
def compositions() -> Iterator[None]:
    """Configurations of all tests of a process: what they share is composed once."""
    with composing_once():
        yield


def _real_trace(name: str) -> Path:
    directory = os.environ.get("TRACES_DIR")
    if not directory:
        pytest.skip(f"TRACES_DIR is not set: no recorded {name}")
    path = Path(directory).expanduser() / name
    if not path.exists():
        pytest.skip(f"no {name} in TRACES_DIR")
    return path


@pytest.fixture(scope="session")
def real_trace() -> Callable[[str], Path]:
    """`real_trace("conversation_trace.jsonl")`: that file or folder in TRACES_DIR; the test is skipped without it."""
    return _real_trace
