"""How wide results are printed."""

from __future__ import annotations

import pytest

from framework.cli.terminal import results_console


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_results_in_a_file_are_wide_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert results_console().width == 160
    monkeypatch.setenv("COLUMNS", "90")
    assert results_console().width == 90
