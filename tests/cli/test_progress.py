"""The line that says how far a command is: what stands in it, where it is shown, how often, and what it estimates."""

from __future__ import annotations

import time

import pytest

from framework.cli import terminal as module
from framework.cli.terminal import Progress, Standing, duration, fitted, progress_line, words

HALF = Standing(12, 40, 1, "goodput 4.50 req/s", gone_s=70.0, left_s=200.0)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def test_the_words_of_a_line() -> None:
    assert words("runs", HALF) == "12 of 40 runs, 1 failed, best so far goodput 4.50 req/s, 3 min left"
    assert words("runs", Standing(0, 40, gone_s=12.0)) == "0 of 40 runs, for 12 s"
    assert words("trials", Standing(7, left_s=0.0)) == "7 trials, 0 s left"
    assert [duration(seconds) for seconds in (0.4, 99.4, 100.0, 3599.0, 7500.0)] == [
        *("0 s", "99 s", "2 min", "1 h 0 min", "2 h 5 min"),
    ]


@pytest.mark.parametrize("columns", range(30, 120, 7))
def test_a_line_drops_whole_parts_until_it_fits_and_keeps_its_numbers(columns: int) -> None:
    line = fitted("distserve-mooncake-pd", "runs", HALF, columns)
    assert len(line) <= columns
    parts = ("12 of 40 runs", "1 failed", "3 min left")
    assert all(part in line for part in parts) or columns < len(", ".join(parts))
    assert ("4.50" in line) == ("best so far goodput 4.50 req/s" in line)
    assert columns < 102 or line.startswith("distserve-mooncake-pd ━━━━────────")


def test_a_terminal_shows_a_line_and_removes_it(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with progress_line("sweep", "runs") as report:
        report(12, 40, 1, "goodput 4.50 req/s")
        time.sleep(0.5)
    out, err = capfd.readouterr()
    assert out == ""
    assert "12 of 40 runs, 1 failed, best so far goodput 4.50 req/s" in err
    assert err.rstrip().endswith("\x1b[2K"), "the line is erased at the end"


def test_a_file_gets_few_lines(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_LINE_S", 10.0)
    with progress_line("sweep", "runs") as report:
        report(1, 40)
    assert capfd.readouterr() == ("", "")
    line = module._Seldom("sweep", "runs")
    for second in range(200):
        line(Standing(second, 200, gone_s=float(second)))
    assert [word.split()[1] for word in capfd.readouterr().err.splitlines()] == ["10", "30", "70", "150"]


def test_the_time_left_is_that_of_the_last_reports_not_of_runs_found_in_a_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Standing] = []
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    progress = Progress((heard.append,))
    progress(0, 1000)
    assert heard[-1].left_s == -1.0
    for done in range(100, 901, 100):  # from the store
        now_s += 0.6
        progress(done, 1000)
    for done in range(901, 941):
        now_s += 10.0
        progress(done, 1000)
    progress.end()
    assert heard[-1].left_s == pytest.approx(600.0)


def test_listeners_hear_every_second_also_without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_S", 0.01)
    heard: list[Standing] = []
    with progress_line("sweep", "runs", heard.append) as report:
        report(3, 12, 1, "goodput 4.50 req/s")
        until = time.monotonic() + 10.0
        while len(heard) < 4 and time.monotonic() < until:
            time.sleep(0.01)
    count = len(heard)
    assert count >= 4
    assert {(one.done, one.total, one.failed, one.best) for one in heard} == {(3, 12, 1, "goodput 4.50 req/s")}
    time.sleep(0.05)
    assert len(heard) == count, "nothing after the end"
