"""Compilation and its disk cache: an edit anywhere is seen, and nothing else is disturbed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from framework.compiler import decorators as jit
from framework.compiler.decorators import compiled
from framework.compiler.sources import source_hash
from tests.conftest import ROOT

INNER = """
from framework.compiler.decorators import compiled

@compiled
def inner(x):
    return x + 1
"""
OUTER = """
from framework.inner import inner
from framework.compiler.decorators import compiled

@compiled
def outer(x):
    return 10 * inner(x)
"""
REPORT = """
import json, numba
before = numba.config.CACHE_DIR
from framework.part.outer import outer
result = outer(1)
print(json.dumps({
    "result": result,
    "hits": sum(outer.stats.cache_hits.values()),
    "path": outer.stats.cache_path,
    "untouched": numba.config.CACHE_DIR == before,
}))
"""
numba_config: Any = numba.config
with_jit = pytest.mark.skipif(bool(numba_config.DISABLE_JIT), reason="NUMBA_DISABLE_JIT is set")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package of two modules, one calling the other, beside a copy of the decorator."""
    folder = tmp_path / "source" / "framework"
    (folder / "part").mkdir(parents=True)
    for file in (folder / "__init__.py", folder / "part" / "__init__.py"):
        file.touch()
    for name in ("jit.py", "sources.py"):
        shutil.copy(ROOT / "framework" / name, folder / name)
    (folder / "inner.py").write_text(INNER)
    (folder / "part" / "outer.py").write_text(OUTER)
    return folder


def start(package: Path, code: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    inherited.update({"XDG_CACHE_HOME": str(package.parent.parent / "cache"), "PYTHONDONTWRITEBYTECODE": "1"})
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=package.parent,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    report: dict[str, Any] = json.loads(output)
    return report


def report(package: Path, **environment: str) -> dict[str, Any]:
    return finish(start(package, REPORT, **environment))


def test_edit_in_a_callee_of_another_module_is_seen(package: Path) -> None:
    first, again = report(package), report(package)
    assert (first["result"], first["hits"]) == (20, 0)
    assert (again["result"], again["hits"]) == (20, 1)
    assert first["untouched"]
    assert again["untouched"]
    (package / "inner.py").write_text(INNER.replace("x + 1", "x + 2"))
    edited = report(package)
    assert (edited["result"], edited["hits"]) == (30, 0)
    (package / "inner.py").write_text(INNER)
    assert report(package)["hits"] == 1  # the old code is still there, and is right again


def test_damaged_cache_is_compiled_again(package: Path) -> None:
    path = Path(report(package)["path"])
    damaged = [file for file in path.iterdir() if file.suffix in (".nbi", ".nbc")]
    assert damaged
    for file in damaged:
        file.write_bytes(b"\x80")
    assert report(package)["result"] == 20


def test_processes_share_a_cache(package: Path) -> None:
    reports = [finish(process) for process in [start(package, REPORT) for _ in range(3)]]
    assert [entry["result"] for entry in reports] == [20] * 3
    assert len({entry["path"] for entry in reports}) == 1
    assert report(package)["hits"] == 1


def test_cache_goes_where_the_environment_says(package: Path, tmp_path: Path) -> None:
    assert Path(report(package)["path"]).is_relative_to(tmp_path / "cache")
    elsewhere = tmp_path / "elsewhere"
    assert Path(report(package, NUMBA_CACHE_DIR=str(elsewhere))["path"]).is_relative_to(elsewhere)


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


def test_disabled_compilation_leaves_functions_alone(package: Path) -> None:
    code = "import json, types\nfrom framework.part.outer import outer\n"
    code += "print(json.dumps([isinstance(outer, types.FunctionType), outer(1)]))"
    process = start(package, code, NUMBA_DISABLE_JIT="1")
    output, errors = process.communicate(timeout=120)
    assert json.loads(output) == [True, 20], errors


def test_old_directories_are_pruned(tmp_path: Path) -> None:
    now = time.time()
    for age in range(40):
        directory = tmp_path / f"old{age:02}"
        directory.mkdir()
        (directory / "code").touch()
        os.utime(directory, (now - 7200 - age, now - 7200 - age))
    jit.prune(tmp_path)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [f"old{age:02}" for age in range(32)]


def test_directories_in_use_are_not_pruned(tmp_path: Path) -> None:
    for index in range(40):
        (tmp_path / f"young{index}").mkdir()
    jit.prune(tmp_path)
    assert len(list(tmp_path.iterdir())) == 40


def test_hash_sees_names_and_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("a")
    two.write_text("b")
    before = source_hash([one, two])
    assert source_hash([two, one]) == before
    one.write_text("b")
    two.write_text("a")
    assert source_hash([one, two]) != before


@with_jit
def test_signature_compiles_at_once_and_for_itself_alone() -> None:
    @compiled("float64(int64)")
    def half(x: int) -> float:
        return x / 2

    dispatcher: Any = half
    assert [str(signature) for signature in dispatcher.signatures] == ["(int64,)"]
    assert half(3) == 1.5
    with pytest.raises(TypeError):
        dispatcher(np.zeros(2))


@with_jit
def test_several_signatures() -> None:
    @compiled(["int64(int64)", "float64(float64)"])
    def double(x: float) -> float:
        return 2 * x

    dispatcher: Any = double
    assert len(dispatcher.signatures) == 2


def test_neither_function_nor_signature_is_refused() -> None:
    with pytest.raises(TypeError, match="neither a function nor a signature"):
        compiled(3)  # type: ignore[call-overload]


@with_jit
def test_arithmetic_is_that_of_the_written_expression() -> None:
    @compiled
    def cancelled(small: float, large: float) -> float:
        return (small + large) - large

    @compiled
    def quotient(x: float, y: float) -> float:
        return x / y

    assert cancelled(1.0, 2.0**60) == 0.0  # reassociation would return 1
    assert quotient(1.0, 0.0) == np.inf
    assert np.isnan(quotient(0.0, 0.0))


def test_threads_compile_side_by_side() -> None:
    def build(number: int) -> Any:
        @compiled
        def add(x: int) -> int:
            return x + number

        return add(1)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(4))) == [1, 2, 3, 4]
