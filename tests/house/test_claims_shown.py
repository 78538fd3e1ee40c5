"""docs/claims.md agrees with the rows that it shows and with its own counts; so do README and docs/experiments.md."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from experiments.claims.file import Claim, read_claims, read_common
from experiments.claims.rule import NO_SIGN, PASS, SIGN, former_verdict, has_sign, off_by, verdict
from tests.conftest import ROOT
from tests.helpers.readme import CLAIMS, README

PAGE = CLAIMS.read_text()
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
COMMON = read_common()
ROWS = {(row.system, row.text): row for row in read_claims()}


class Shown(NamedTuple):
    """One row of the tables of docs/claims.md."""

    row: Claim
    factor: float
    off_by: float
    verdict: str
    former: str


def plain(text: str) -> str:
    """Markdown without its escapes, on one line."""
    return " ".join(re.sub(r"\\(\W|_)", r"\1", text).replace("*", "").split())


def shown() -> list[Shown]:
    found = []
    for line in PAGE.splitlines():
        cells = [plain(cell) for cell in line.strip("| ").split(" | ")]
        row = ROWS.get((cells[0], cells[1])) if len(cells) >= 7 else None
        if row is not None:
            off = math.inf if cells[4] == "–" else float(cells[4])
            found.append(Shown(row, float(cells[3].split()[1]), off, cells[5], cells[6]))
    return found


TABLE = shown()
LINES = [plain(line) for line in PAGE.splitlines()]


def tally(lines: Sequence[Shown]) -> tuple[int, int, int, int]:
    """Rows, and of them those that pass, that have the sign without, and that have it not."""
    told = [line.verdict for line in lines]
    return len(told), told.count(PASS), told.count(SIGN), told.count(NO_SIGN)


def counted(number: int) -> str:
    """A number as in running text: in words up to twelve."""
    return WORDS[number] if number < len(WORDS) else str(number)


PUBLISHED = tally([line for line in TABLE if line.row.published])
OTHERS = tally([line for line in TABLE if not line.row.published])


def test_each_row_is_shown_once() -> None:
    assert sorted(line.row.name for line in TABLE) == sorted(row.name for row in ROWS.values())


@pytest.mark.parametrize("line", TABLE, ids=[line.row.name for line in TABLE])
def test_a_row_is_judged_by_the_rule(line: Shown) -> None:
    """Where the figure, which is rounded, leaves no doubt."""
    assert line.off_by == pytest.approx(off_by(line.row, line.factor), rel=max(0.06, 0.006 / line.factor))
    if abs(line.factor - 1) > 0.005:
        assert (line.verdict == NO_SIGN) == (not has_sign(line.row, line.factor))
    if abs(line.off_by - COMMON.passes_within) > 0.005 and line.verdict != NO_SIGN:
        by_off = PASS if line.row.published and line.off_by <= COMMON.passes_within else SIGN
        assert line.verdict == by_off
    ends = [line.factor * (1 - 0.01), line.factor * (1 + 0.01)]
    assert line.verdict in {verdict(line.row, end, COMMON.passes_within) for end in ends}
    assert line.former in {former_verdict(line.row, end, COMMON.former_tolerance) for end in ends}


@pytest.mark.parametrize("line", TABLE, ids=[line.row.name for line in TABLE])
def test_a_row_is_told_as_its_file_tells_it(line: Shown) -> None:
    row = line.row
    (told,) = (one for one in LINES if one.startswith(f"- {plain(row.system)}, {plain(row.text)} ("))
    for part in (row.class_reason, "; ".join(row.chosen), *row.found, *row.changed):
        assert plain(part) in told


def test_a_published_row_that_does_not_pass_says_what_was_found() -> None:
    missed = [line.row for line in TABLE if line.row.published and line.verdict != PASS]
    assert {row.name for row in missed if not row.found} == set()


def test_the_counts_are_those_of_the_tables() -> None:
    told = [[int(number) for number in re.findall(r"\d+", line)] for line in LINES if "By this rule" in line]
    sums = [sum(numbers) for numbers in zip(*told, strict=True)]
    rows, passing, signs, neither = PUBLISHED
    assert sums == [passing, rows, signs, neither, OTHERS[2], OTHERS[0]]


def test_the_readme_counts_alike() -> None:
    rows, passing, signs, _ = PUBLISHED
    text = plain(README.read_text())
    assert f"{passing} of {rows} published headlines" in text
    assert f"{counted(signs)} more have the sign, and so have {OTHERS[2]} of {OTHERS[0]} others" in text


def test_the_page_on_experiments_counts_alike() -> None:
    rows, passing, signs, neither = PUBLISHED
    text = plain((ROOT / "docs/experiments.md").read_text())
    assert (
        f"{passing} of the {rows} published rows pass over ten replicates, {counted(signs)} more have the sign" in text
    )
    assert f"{counted(neither)} {'has' if neither == 1 else 'have'} not; by the former rule" in text
    assert f"by the former rule {sum(line.former == PASS for line in TABLE)} of them pass" in text
    assert f"Of the {OTHERS[0]} other rows {OTHERS[2]} have the sign" in text
