"""Servelab as a wheel installs it, and a user's folder whose packages have the names of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from servelab.rooms import ROOMS
from tests.conftest import ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder that has a package of each such name."""
    for name in (*ROOMS, "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    return tmp_path


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment into which the wheel was installed, with what it needs."""
    place = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", str(ROOT), "--no-deps", "--quiet", "-w", str(place)]
    built = subprocess.run(build, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"a wheel cannot be built here: {built.stderr.splitlines()[-1:]}")
    (wheel,) = place.glob("*.whl")
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--quiet", str(wheel)], check=True)
    (site,) = (place / "venv").glob("lib/python*/site-packages")
    (site / "needed.pth").write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    return python
