"""The quickstart and the tutorials are true: who follows them in an empty folder sees what they show."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helpers import lessons, warm
from tests.helpers.readme import environment

_GOODPUT = re.compile(r"goodput +([\d.]+) req/s")
_PAGE = "`a.py`:\n\n```python\nx = 1\n```\n\n```text\n$ echo 100 \\\n  ms\n100 ms\n```\n\n```console\n$ no\n```\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", lessons.names())
def test_a_lesson_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "lesson"
    home.mkdir()
    folder.mkdir()
    variables = environment(home)
    variables["PATH"] = f"{warm.path()}{os.pathsep}{variables['PATH']}"
    found = list(lessons.run(lessons.names()[name].read_text(), folder, variables))
    assert found
    for step, printed in found:
        assert lessons.like(step.shown or "", printed), (
            f"run python -m tests.helpers.readme {name}\n$ {step.text}{printed}"
        )


def test_each_step_of_the_policy_is_shown_to_be_better() -> None:
    page = lessons.names()["policy"].read_text()
    shown = [float(found) for step in lessons.steps(page) for found in _GOODPUT.findall(step.shown or "")]
    assert len(shown) == 4
    assert shown == sorted(set(shown))


@pytest.mark.parametrize("page", lessons.PAGES, ids=lambda page: page.stem)
def test_lines_are_of_readable_length(page: Path) -> None:
    written = re.sub(r"^```text\n.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not [line for line in written.splitlines() if len(line) > 120 and not line.startswith("|")]


def test_what_a_page_says_is_read() -> None:
    first, second = lessons.steps(_PAGE)
    assert (first.file, first.text) == ("a.py", "x = 1\n")
    assert (second.text, second.shown) == ("echo 100 \\\n  ms\n", "100 ms\n")
    assert lessons.renewed(_PAGE, dict(os.environ)) == _PAGE
    assert "101 ms" in lessons.renewed(_PAGE.replace("echo 100", "echo 101"), dict(os.environ))


def test_likeness_is_of_words_and_near_numbers() -> None:
    assert lessons.like("P99 1,000 ms", "P99 1,050 ms")
    assert not lessons.like("P99 1,000 ms", "P99 1,200 ms")
    assert not lessons.like("P99 1,000 ms", "P50 1,000 ms")
