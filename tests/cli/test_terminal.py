"""Who sees a progress bar, and how wide results are printed."""

from __future__ import annotations

import pytest

from framework.cli.terminal import progress_bar, results_console


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_no_bar_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar("label") as report:
        assert report is None
    assert capfd.readouterr() == ("", "")


def test_a_bar_on_stderr_of_a_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("label") as report:
        assert report is not None
        report(25, 100)
    out, err = capfd.readouterr()
    assert out == ""
    assert "label" in err
    assert "25/100" in err


def test_results_in_a_file_are_wide_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert results_console().width == 160
    monkeypatch.setenv("COLUMNS", "90")
    assert results_console().width == 90
