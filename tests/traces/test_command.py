"""`python -m traces`: a word chooses the command, the others are its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.helpers.launcher import typed
from traces.__main__ import main

traces = typed("traces")


def test_each_command_is_one_of_the_modules_with_a_command_line() -> None:
    alone = {path.stem for path in (ROOT / "traces").glob("[!_]*.py") if "__main__" in path.read_text()}
    assert set(main.modules) == alone


def test_words_after_the_first_reach_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traces(["fetch"]) == 0
    assert "mooncake" in capsys.readouterr().out
    missing = str(tmp_path / "missing.jsonl")
    assert traces(["fit", missing]) == 2
    assert missing in capsys.readouterr().err


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert traces([]) == traces(["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"python -m traces {name} " in listed for name in main.modules)


def test_another_word_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert traces(["fetched"]) == 2
    assert "did you mean fetch? choose one of fetch, check, describe, fit" in capsys.readouterr().err
