"""A project of two modules, one calling the other, and processes that run it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

INNER = """
from framework.compiler.decorators import inner

@inner
def add_one(x: int) -> int:
    return x + 1
"""
OUTER = """
from framework.add_one import add_one
from framework.compiler.decorators import compiled

@compiled
def outer(x):
    return 10 * add_one(x)
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


def write_project(root: Path) -> Path:
    """Lay the project out at `root`, with a copy of the decorators; its folder `framework`."""
    folder = root / "framework"
    (folder / "part").mkdir(parents=True)
    for file in (folder / "__init__.py", folder / "part" / "__init__.py"):
        file.touch()
    shutil.copytree(ROOT / "framework" / "compiler", folder / "compiler", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "add_one.py").write_text(INNER)
    (folder / "part" / "outer.py").write_text(OUTER)
    return folder


def start(package: Path, code: str, **environment: str) -> subprocess.Popen[str]:
    """A process in the project that runs some code; its cache is with the project."""
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


def finish(process: subprocess.Popen[str]) -> Any:
    """What the process printed, as JSON."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(output)


def report(package: Path, **environment: str) -> dict[str, Any]:
    """What a call of `outer` gave, and what the cache had to do with it."""
    found: dict[str, Any] = finish(start(package, REPORT, **environment))
    return found
