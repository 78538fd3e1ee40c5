"""docs/claims.md and docs/claims/ agree with the rows and with their own counts; so do README and papers.md."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from experiments.validation.claims.file import Claim, read_claims, read_trial
from experiments.validation.claims.rule import NO_SIGN, PASS, SIGN, can_pass, has_sign, off_by, verdict
from tests.conftest import ROOT
from tests.helpers.readme import CLAIMS, README, SYSTEMS

PAGE = CLAIMS.read_text()
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
TRIAL = read_trial()
ROWS = {(row.system, row.text): row for row in read_claims()}


class Shown(NamedTuple):
    """One row of the table of docs/claims.md."""

    row: Claim
    factor: float
    off_by: float
    verdict: str


def plain(text: str) -> str:
    """Markdown without its escapes, on one line."""
    return " ".join(re.sub(r"\\(\W|_)", r"\1", text).replace("*", "").split())


def shown() -> list[Shown]:
    found = []
    for line in PAGE.splitlines():
        cells = [plain(cell) for cell in line.strip("| ").split(" | ")]
        row = ROWS.get((cells[0], cells[1])) if len(cells) >= 6 else None
        if row is not None:
            off = math.inf if cells[4] == "–" else float(cells[4])
            found.append(Shown(row, float(cells[3].split()[1]), off, cells[5]))
    return found


TABLE = shown()
LINES = [plain(line) for line in PAGE.splitlines()]


def tally(lines: Sequence[Shown]) -> tuple[int, int, int, int]:
    """Rows, and of them those that pass, that have the sign without, and that have it not."""
    counts = [line.verdict for line in lines]
    return len(counts), counts.count(PASS), counts.count(SIGN), counts.count(NO_SIGN)


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
    ends = [line.factor * (1 - 0.01), line.factor * (1 + 0.01)]
    assert line.verdict in {verdict(line.row, end, TRIAL.passes_within) for end in ends}


@pytest.mark.parametrize("line", TABLE, ids=[line.row.name for line in TABLE])
def test_the_page_of_a_system_has_what_its_rows_say(line: Shown) -> None:
    row = line.row
    folder = row.name.partition("/")[0]
    names = [one.name for one in ROWS.values() if one.name.startswith(f"{folder}/")]
    items = [plain(item) for item in re.split(r"^\d+\. ", (SYSTEMS / f"{folder}.md").read_text(), flags=re.MULTILINE)]
    number = str(names.index(row.name) + 1)
    own = [item for item in items if is_of(item, number, len(names))]
    for part in (row.class_reason, *row.chosen, *row.found):
        assert any(plain(part) in item for item in own), part


def is_of(item: str, number: str, count: int) -> bool:
    """Whether an item of a system's page is of a row."""
    rows = item.partition(": ")[0]
    return count == 1 or rows == "All rows" or (rows.startswith("Row") and number in re.findall(r"\d+", rows))


def test_each_system_has_a_page() -> None:
    folders = {row.name.partition("/")[0] for row in ROWS.values()}
    assert {path.stem for path in SYSTEMS.iterdir()} == folders
    assert set(re.findall(r"\]\(claims/(\w+)\.md\)", PAGE)) == folders


def test_a_row_that_could_pass_and_does_not_says_what_was_found() -> None:
    missed = [line.row for line in TABLE if line.verdict != PASS and can_pass(line.row, TRIAL.passes_within)]
    assert {row.name for row in missed if not row.found} == set()


def test_the_counts_are_those_of_the_tables() -> None:
    counts = [[int(number) for number in re.findall(r"\d+", line)] for line in LINES if "By this rule" in line]
    sums = [sum(numbers) for numbers in zip(*counts, strict=True)]
    rows, passing, signs, neither = PUBLISHED
    assert sums == [passing, rows, signs, neither, OTHERS[2], OTHERS[0]]


def test_the_readme_counts_alike() -> None:
    rows, passing, signs, _ = PUBLISHED
    text = plain(README.read_text())
    assert f"{passing} of {rows} published headlines" in text
    assert f"{counted(signs)} more have the right sign, and so have {OTHERS[2]} of {OTHERS[0]} others" in text


def test_the_page_on_papers_counts_alike() -> None:
    rows, passing, signs, neither = PUBLISHED
    text = plain((ROOT / "docs/papers.md").read_text())
    assert f"{passing} of the {rows} published rows pass over ten replicates." in text
    assert f"{counted(signs)} more have the right sign" in text
    assert f"{counted(neither)} {'has' if neither == 1 else 'have'} the wrong sign" in text
    assert f"Of the {OTHERS[0]} other rows {OTHERS[2]} have the right sign" in text
