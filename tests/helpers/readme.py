"""The README and the pages of docs/ for users as data: example files, commands, and the output that they show.

`python -m tests.helpers.readme` puts what the commands of SHOWN print into the pages that show it, a picture of the
default run into docs/, and today's output into the quickstart and the tutorials; `python -m tests.helpers.readme show`
that one alone. With `claims DIR` it puts the
table that `experiments.validation.claims` wrote to DIR into docs/claims.md, its pages into docs/claims, and ten rows
into the README.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.conftest import ROOT
from tests.helpers import lessons

README = ROOT / "README.md"
_NAMES = (
    "settings",
    "policies",
    "hooks",
    "decisions",
    "traces",
    "formats",
    "step_times",
    "timing",
    "textbook",
    "results",
    "columns",
    "clock",
    "experiments",
    "papers",
    "predictors",
    "defaults",
    "guide",
    "engine",
    "trust",
    "silicon",
    "given_rows",
    "speed",
)
PAGES = (README, *(ROOT / "docs" / f"{name}.md" for name in _NAMES))
PICTURE = ROOT / "docs" / "run.svg"
CLAIMS = ROOT / "docs" / "claims.md"
SYSTEMS = ROOT / "docs" / "claims"
SHOWN = {
    "run": "make run",
    "capacity": "python run.py policy=chunked objective=capacity | tail -17",
    "show": "python -m framework.report.show_step model=llama3_70b gpu=h100 tp=4 decode=64x4096",
    "textbook": "python -m servelab textbook",
    "guide": "python -m servelab guide preset=chat",
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WIDTH = 97
_FILE = re.compile(r"`([\w./]+\.(?:py|yaml))`")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return [text for page in PAGES for kind, text in _FENCE.findall(page.read_text()) if kind == language]


def example_files() -> dict[str, str]:
    """The files that a page has its reader write, by path: each fence after a paragraph that names its file."""
    text = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("hooks", "decisions"))
    files = {}
    for fence in _FENCE.finditer(text):
        paragraph = text[: fence.start()].rstrip().rpartition("\n\n")[2]
        named = _FILE.search(paragraph)
        if fence[1] in ("python", "yaml") and named:
            files[named[1]] = fence[2]
    return files


def commands() -> list[str]:
    """Every line of the shell blocks, once; one that ends in a backslash goes on in the next."""
    whole = [re.sub(r"\\\n *", "", block) for block in blocks("sh")]
    return list(dict.fromkeys(line for block in whole for line in block.splitlines() if line))


def shown_output(name: str = "run") -> str:
    """What a page says that a command of SHOWN prints."""
    first = f"$ {SHOWN[name]}\n"
    return next(block for block in blocks("text") if block.startswith(first)).partition("\n")[2].rstrip()


def default_run() -> str:
    """The command that `make run` stands for."""
    words = re.search(r"^SHOWN := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert words is not None
    return f"python run.py {words[1]}"


def environment(home: Path) -> dict[str, str]:
    """Of a user who has no recorded trace and no network, but the compiled engine of whoever runs the tests."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("TRACES_DIR", "COLUMNS")}
    compiled = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "NUMBA_CACHE_DIR": compiled, "PATH": path}
    return inherited | own | {"TRACES_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def printed(name: str = "run", **more: str) -> str:
    """What a command of SHOWN prints on stdout in the width of pages, `more` in its environment."""
    line = default_run() if name == "run" else SHOWN[name]
    line = line.replace(" run.py", f" {ROOT / 'run.py'}")
    with tempfile.TemporaryDirectory() as home:
        variables = environment(Path(home)) | {"COLUMNS": str(_WIDTH)} | more
        finished = subprocess.run(line, shell=True, cwd=home, env=variables, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in finished.stdout.splitlines())


def refresh(*names: str) -> None:
    """Put what these commands of SHOWN print where it is shown, and a picture of the default run into docs/."""
    pages = lessons.names()
    unknown = [name for name in names if name not in SHOWN and name not in pages]
    if unknown:
        sys.exit(f"error: nothing shown is called {unknown[0]}; there are {', '.join([*SHOWN, *pages])}, claims DIR")
    for name in names:
        if name in pages:
            with tempfile.TemporaryDirectory() as home:
                lessons.renew(name, environment(Path(home)))
            continue
        page = next(page for page in PAGES if f"<!-- {name} -->\n" in page.read_text())
        _put(page, name, f"```text\n$ {SHOWN[name]}\n{printed(name)}\n```\n")
    if "run" in names:
        _draw()


def put_claims(directory: Path) -> None:
    """Put the claims table and the page of each system into docs/, and ten rows into the README."""
    table = (directory / "claims.md").read_text()
    pages = {path.stem: path.read_text() for path in sorted((directory / "claims").glob("*.md"))}
    for name, page in pages.items():
        _write(SYSTEMS / f"{name}.md", page)
    links = [f"- [{page.splitlines()[0].removeprefix('# ')}](claims/{name}.md)\n" for name, page in pages.items()]
    _put(CLAIMS, "claims", table)
    _put(CLAIMS, "systems", "".join(links))
    _put(README, "claims", ten_claims(table))


def ten_claims(whole: str) -> str:
    """Ten rows of the claims table, of as many systems as there are, without what is compared elsewhere."""
    lines = [line for line in whole.splitlines() if line.startswith("|")]
    rows = [line for line in lines[2:] if not line.startswith("| *")]
    firsts = {row.split(" | ")[0]: row for row in reversed(rows)}.values()
    chosen = sorted(rows, key=lambda row: row not in firsts)[:10]  # a system's further rows after all first ones
    shown = [*lines[:2], *[row for row in rows if row in chosen]]
    return "".join(f"{'|'.join(line.split('|')[:7])}|\n" for line in shown)


def _put(page: Path, name: str, text: str) -> None:
    before, begin, rest = page.read_text().partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->")
    _write(page, f"{before}{begin}{text}{end}{after}")


def _draw() -> None:
    console = Console(record=True, width=_WIDTH, file=io.StringIO())
    console.print(Text.from_ansi("$ make run\n" + printed(FORCE_COLOR="1")))
    picture = console.export_svg(title="servelab", unique_id="run")
    _write(PICTURE, re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL))  # fonts are the reader's own


def _write(path: Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.tmp")
    unfinished.write_text(text)
    unfinished.replace(path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["claims"]:
        put_claims(Path(sys.argv[2]))
    else:
        refresh(*(sys.argv[1:] or (*SHOWN, *lessons.names())))
