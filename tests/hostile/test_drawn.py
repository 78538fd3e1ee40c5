"""Drawn commands that nobody should give: they run, or are refused in one line, whatever was given."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.conftest import ROOT
from tests.hostile.drawn import commands
from tests.hostile.played import LOADED


@pytest.mark.slow
def test_the_same_seed_draws_the_same_commands() -> None:
    drawn = commands(400, 1)
    assert drawn == commands(400, 1)
    assert len({command.kind for command in drawn}) == 8


def test_what_copies_of_a_process_have_loaded_is_there() -> None:
    assert [name for name in LOADED if find_spec(name) is None] == []


@pytest.mark.slow
def test_drawn_commands_run_or_are_refused() -> None:
    """In a Python of its own, for each is played in a copy of it."""
    words = [sys.executable, "-m", "tests.hostile", "--cases", "4000"]
    finished = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout + finished.stderr[-2000:]
