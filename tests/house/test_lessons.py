"""The quickstart and the tutorials are true: who follows them in an empty folder sees what they show."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.helpers import lessons, warm
from tests.helpers.readme import environment

QUICK = ("quickstart", "policy")  # the others take longer
_GOODPUT = re.compile(r"^\S.*?goodput +([\d.]+) req/s", re.MULTILINE)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in lessons.names()]
)
def test_a_lesson_shows_what_its_commands_print(name: str, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "lesson"
    home.mkdir()
    folder.mkdir()
    variables = environment(home)
    variables["PATH"] = f"{warm.path()}{os.pathsep}{variables['PATH']}"
    page = lessons.names()[name].read_text()
    found = list(lessons.run(page, folder, variables))
    assert found
    for step, printed in found:
        assert lessons.like(step.shown or "", printed), (
            f"run python -m tests.helpers.readme {name}\n$ {step.text}{printed}"
        )


def test_each_step_of_the_policy_improves_its_goodput() -> None:
    page = lessons.names()["policy"].read_text()
    shown = [float(found) for step in lessons.steps(page) for found in _GOODPUT.findall(step.shown or "")]
    assert len(shown) >= 4
    assert shown[:4] == sorted(set(shown[:4]))


@pytest.mark.parametrize("page", lessons.PAGES, ids=lambda page: page.stem)
def test_a_lesson_is_short_and_narrow(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert not [line for line in lines if len(line) > 120 and not line.startswith("|")]


def test_what_a_page_says_is_read() -> None:
    page = "Write `a.py`:\n\n```python\nx = 1\n```\n\n```text\n$ echo 100 \\\n  ms\n100 ms\n```\n\n```console\n$ no\n```\n"
    first, second = lessons.steps(page)
    assert (first.file, first.text) == ("a.py", "x = 1\n")
    assert (second.text, second.shown) == ("echo 100 \\\n  ms\n", "100 ms\n")
    assert lessons.renewed(page, dict(os.environ)) == page
    assert "101 ms" in lessons.renewed(page.replace("echo 100", "echo 101"), dict(os.environ))
    assert lessons.like("P99 1,000 ms", "P99 1,050 ms")
    assert not lessons.like("P99 1,000 ms", "P99 1,200 ms")
    assert not lessons.like("P99 1,000 ms", "P50 1,000 ms")
