"""The notebook from a table to a figure, with folders with the names of servelab's own packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.helpers import warm

MOST_LINES = 25


def cells() -> list[str]:
    notebook = json.loads((ROOT / "examples" / "frame_to_figure.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def has_a_figure(python: str, folder: Path, path: str | None) -> bool:
    """Whether the cells, one after another, leave a picture in which two curves are drawn."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"MPLBACKEND": "agg"} | ({} if path is None else {"PYTHONPATH": path})
    (folder / "cells.py").write_text("\n".join(cells()))
    words = [python, "cells.py"]
    finished = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr
    picture = matplotlib.image.imread(folder / "tpot.png")[:, :, :3]
    colours = ((0.122, 0.467, 0.706), (1.0, 0.498, 0.055))
    return all(np.count_nonzero(np.abs(picture - colour).max(axis=2) < 0.02) > 500 for colour in colours)


def test_it_is_short() -> None:
    assert sum(bool(line.strip()) for cell in cells() for line in cell.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("is_warm", warm.STARTS)
def test_it_leads_to_a_figure(folder: Path, is_warm: bool) -> None:
    assert has_a_figure(str(warm.path() / "python") if is_warm else sys.executable, folder, str(ROOT))


@pytest.mark.slow
def test_it_leads_to_a_figure_from_a_wheel(folder: Path, installed: Path) -> None:
    assert has_a_figure(str(installed), folder, None)
