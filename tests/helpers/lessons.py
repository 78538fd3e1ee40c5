"""The quickstart and the tutorials as data: the files that they have a reader write, the commands, what these print.

On such a page a fence of python, yaml or json is a file, which the paragraph above it names. A fence of text that
begins with `$ ` is a command and its output, a fence of sh commands whose output is not shown; `export` holds for all
later ones. What only the reader's own machine can run is in a fence of console. `run` follows a page in an empty
folder, and `renewed` has today's output in it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

PAGES = (ROOT / "docs" / "quickstart.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
WIDTH = 97
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./]+\.(?:py|yaml|json))`")
_COMMAND = re.compile(r"\A\$ ((?:.*\\\n)*.*\n)")


@dataclass(frozen=True)
class Step:
    """One fence: a file to write, or commands to run; `shown` is what the page says that they print, None: nothing."""

    begin: int
    end: int
    text: str
    file: str | None = None
    shown: str | None = None


def steps(page: str) -> Iterator[Step]:
    """The fences of a page that a reader follows, in order."""
    for fence in _FENCE.finditer(page):
        kind, text = fence[1], fence[2]
        place = fence.span(2)
        if kind in ("python", "yaml", "json"):
            named = _FILE.findall(page[: fence.start()].rstrip().rpartition("\n\n")[2])
            assert named, f"no file is named above {text[:60]!r}"
            yield Step(*place, text, file=named[-1])
        elif kind == "sh":
            yield Step(*place, text)
        elif kind == "text" and (command := _COMMAND.match(text)):
            yield Step(*place, command[1], shown=text[command.end() :])


def run(page: str, folder: Path, environment: dict[str, str]) -> Iterator[tuple[Step, str]]:
    """Follow a page in a folder: each step that shows output, and what it printed now."""
    shim = folder / ".bin" / "servelab"
    shim.parent.mkdir()
    shim.write_text('#!/bin/sh\nexec python -m servelab "$@"\n')
    shim.chmod(0o700)
    variables = environment | {"PATH": f"{shim.parent}:{environment['PATH']}", "COLUMNS": str(WIDTH)}
    exports = ""
    for step in steps(page):
        if step.file is not None:
            path = folder / step.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
            continue
        line = f"set -e\n{exports}{step.text}"
        finished = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=variables, capture_output=True, text=True, timeout=600
        )
        assert finished.returncode == 0, f"{step.text}\n{finished.stdout}\n{finished.stderr}"
        exports += "".join(f"{one}\n" for one in step.text.splitlines() if one.startswith("export "))
        if step.shown is not None:
            yield step, "".join(f"{one.rstrip()}\n" for one in finished.stdout.splitlines())


def renewed(page: str, environment: dict[str, str]) -> str:
    """The page with what its commands print today."""
    with tempfile.TemporaryDirectory() as folder:
        found = list(run(page, Path(folder), environment))
    for step, printed in reversed(found):
        page = f"{page[: step.begin]}$ {step.text}{printed}{page[step.end :]}"
    return page


def like(shown: str, printed: str) -> bool:
    """Whether two outputs have the same words, and numbers within 10 %: another machine may round another way."""
    ones, others = (re.findall(r"[\d.,]*\d|[^\d\s]+", text) for text in (shown, printed))
    if [re.sub(r"\d.*", "0", word) for word in ones] != [re.sub(r"\d.*", "0", word) for word in others]:
        return False
    return all(_near(one, other) for one, other in zip(ones, others, strict=True))


def _near(one: str, other: str) -> bool:
    if not one[-1].isdigit() or one.count(".") > 1:
        return True
    first, second = (float(text.replace(",", "")) for text in (one, other))
    return abs(first - second) <= max(0.1 * max(abs(first), abs(second)), 0.5)


def names() -> dict[str, Path]:
    """Of all lessons."""
    return {page.stem: page for page in PAGES}


def renew(name: str, environment: dict[str, str]) -> None:
    """Put today's output into a page."""
    page = names()[name]
    print(f"following docs/{page.name}", file=sys.stderr)
    page.write_text(renewed(page.read_text(), environment))
