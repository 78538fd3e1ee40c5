"""How wide results are printed."""

from __future__ import annotations

import io

import pytest

from framework.cli.console import SafeConsole
from framework.cli.terminal import results_console
from framework.report.table_words import open_table


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_results_in_a_file_are_wide_unless_columns_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert results_console().width == 160
    monkeypatch.setenv("COLUMNS", "90")
    assert results_console().width == 90


@pytest.mark.parametrize("width", range(24, 56))
def test_no_number_of_a_table_is_cut_at_any_width(width: int) -> None:
    table = open_table()
    for place, heading in enumerate(("policy", "tuned to", "rate", "±", "below", "runs")):
        table.add_column(heading, justify="left" if place < 2 else "right", no_wrap=True)
    cells = ("disaggregated", "8 × TP 1", "32.1", "1.57", "11.8", "12")
    table.add_row(*cells)
    written = io.StringIO()
    SafeConsole(file=written, width=width).print(table)
    shown = written.getvalue()
    assert "…" not in shown
    kept = [cell for cell in cells[2:] if cell in shown]
    assert kept == list(cells[2 : 2 + len(kept)])
    assert ("not shown" in " ".join(shown.split())) == (len(kept) < 4)
