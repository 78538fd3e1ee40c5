"""The disk cache of compiled code: an edit anywhere is seen, another copy of the project finds everything."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numba
import pytest

from framework.compiler.cache import prune
from tests.compiler.packages import INNER, REPORT, finish, report, start, write_project

OUTSIDE = """
from helper import FACTOR
from framework.add_one import add_one
from framework.compiler.decorators import compiled

@compiled
def outer(x):
    return FACTOR * add_one(x)
"""
numba_config: Any = numba.config
pytestmark = pytest.mark.skipif(bool(numba_config.DISABLE_JIT), reason="NUMBA_DISABLE_JIT is set")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder `framework` of a small project."""
    return write_project(tmp_path / "source")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small project, and with it the cache with its code."""
    folder = tmp_path_factory.mktemp("ready")
    first = report(write_project(folder / "source"))
    assert (first["result"], first["hits"], first["untouched"]) == (20, 0, True)
    assert Path(first["path"]).is_relative_to(folder / "cache")
    return folder


@pytest.fixture
def compiled(ready: Path, tmp_path: Path) -> Path:
    """The folder `framework` of a copy of that project, with a copy of its cache."""
    shutil.copytree(ready, tmp_path, dirs_exist_ok=True)
    return tmp_path / "source" / "framework"


def code_of(package: Path) -> list[Path]:
    """What the cache with the project keeps of its compiled code."""
    return [file for file in (package.parent.parent / "cache").rglob("*.*") if file.is_file()]


def test_edit_in_a_callee_of_another_module_is_seen(compiled: Path) -> None:
    (compiled / "add_one.py").write_text(INNER.replace("x + 1", "x + 2"))
    edited = report(compiled)
    assert (edited["result"], edited["hits"]) == (30, 0)
    (compiled / "add_one.py").write_text(INNER)
    again = report(compiled)  # the old code is still there, and is right again
    assert (again["result"], again["hits"], again["untouched"]) == (20, 1, True)


@pytest.mark.slow
def test_damaged_cache_is_compiled_again(compiled: Path) -> None:
    damaged = [file for file in code_of(compiled) if file.suffix in (".nbi", ".nbc")]
    assert damaged
    for file in damaged:
        file.write_bytes(b"\x80")
    again = report(compiled)
    assert (again["result"], again["hits"]) == (20, 0)


@pytest.mark.slow
@pytest.mark.parametrize("needs", [None, b'["there_is_no_such_symbol"]', pytest.param(b"", marks=pytest.mark.slow)])
def test_code_whose_needs_are_not_known_to_be_met_is_loaded_as_numba_does(compiled: Path, needs: bytes | None) -> None:
    (symbols,) = (file for file in code_of(compiled) if file.suffix == ".symbols")
    symbols.unlink() if needs is None else symbols.write_bytes(needs)
    again = report(compiled)
    assert (again["result"], again["hits"]) == (20, 1)


@pytest.mark.slow
def test_processes_share_a_cache(package: Path) -> None:
    reports = [finish(process) for process in [start(package, REPORT) for _ in range(2)]]
    assert [entry["result"] for entry in reports] == [20] * 2
    assert len({entry["path"] for entry in reports}) == 1
    assert sorted(entry["hits"] for entry in reports) == [0, 1], "one compiles, the other waits for it"


def test_cache_goes_where_the_environment_says(package: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    assert Path(report(package, NUMBA_CACHE_DIR=str(elsewhere))["path"]).is_relative_to(elsewhere)


@pytest.mark.slow
def test_unwritable_cache_falls_back_to_a_private_directory(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # no directory can be made below it
    (tmp_path / "tmp").mkdir()
    blocked = {"XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "tmp")}
    used = Path(report(package, **blocked)["path"])
    assert used.is_relative_to(tmp_path / "tmp")
    private = next((tmp_path / "tmp").iterdir())
    assert private.stat().st_mode & 0o777 == 0o700
    # one that others may write to is not trusted: compiled code is kept nowhere
    private.chmod(0o777)
    untrusted = report(package, **blocked)
    assert (untrusted["result"], untrusted["hits"], untrusted["path"]) == (20, 0, None)


def test_old_directories_are_pruned(tmp_path: Path) -> None:
    now = time.time()
    for age in range(40):
        directory = tmp_path / f"old{age:02}"
        directory.mkdir()
        (directory / "code").touch()
        os.utime(directory, (now - 7200 - age, now - 7200 - age))
    prune(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [f"old{age:02}" for age in range(32)]


def test_directories_in_use_are_not_pruned(tmp_path: Path) -> None:
    for index in range(40):
        (tmp_path / f"young{index}").mkdir()
    prune(tmp_path)
    assert len(list(tmp_path.iterdir())) == 40


def test_a_copy_of_the_project_compiles_nothing(ready: Path, tmp_path: Path) -> None:
    copy = tmp_path / "another" / "source"
    shutil.copytree(ready / "source", copy)
    for file in copy.rglob("*.py"):
        os.utime(file, (1e9, 1e9))  # as old as a checkout makes them
    again = report(copy / "framework", XDG_CACHE_HOME=str(ready / "cache"))
    assert (again["result"], again["hits"]) == (20, 1)


@pytest.mark.slow
def test_files_outside_the_project_are_cached_by_their_contents(package: Path, tmp_path: Path) -> None:
    (package / "part" / "outer.py").unlink()
    folders = [tmp_path / "mine", tmp_path / "yours"]
    for folder in folders:
        folder.mkdir()
        (folder / "outer.py").write_text(OUTSIDE)
        (folder / "helper.py").write_text("FACTOR = 7")
    code = REPORT.replace("framework.part.outer", "outer")

    def run(folder: Path) -> tuple[int, int]:
        path = f"{package.parent}{os.pathsep}{folder}"
        found = finish(start(package, code, PYTHONPATH=path))
        return found["result"], found["hits"]

    assert [run(folder) for folder in folders] == [(14, 0), (14, 1)]
    (folders[1] / "helper.py").write_text("FACTOR = 9")
    assert run(folders[1]) == (18, 0)


@pytest.mark.slow
def test_code_of_files_that_changed_after_their_import_is_not_kept(package: Path) -> None:
    edit = (
        f"from pathlib import Path\nPath('framework/add_one.py').write_text({INNER.replace('x + 1', 'x + 1 + 1')!r})\n"
    )
    imported, rest = REPORT.split("result =", 1)
    assert finish(start(package, f"{imported}{edit}result ={rest}"))["result"] == 20
    assert report(package)["result"] == 30
