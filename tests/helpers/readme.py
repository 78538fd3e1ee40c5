"""The README as data: its example files, its commands, and the output that it shows.

`python -m tests.helpers.readme` puts what the commands of SHOWN print into the README, and a picture of the default run
into docs/; `python -m tests.helpers.readme show` that one alone. `python -m tests.helpers.readme claims DIR` puts in
the table that `experiments.claims` wrote to DIR, its remarks into docs/claims.md.
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

README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "run.svg"
CLAIMS = ROOT / "docs" / "claims.md"
SHOWN = {
    "run": "make run",
    "capacity": "python run.py policy=chunked objective=capacity | tail -17",
    "show": "python -m framework.report.show_step model=llama3_70b gpu=h100 tp=4 decode=64x4096",
}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WIDTH = 92
_FILE = re.compile(r"`([\w./]+\.(?:py|yaml))`")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return [text for kind, text in _FENCE.findall(README.read_text()) if kind == language]


def example_files() -> dict[str, str]:
    """The files that the README has its reader write, by path: each fence after a paragraph that names its file."""
    text = README.read_text()
    files = {}
    for fence in _FENCE.finditer(text):
        paragraph = text[: fence.start()].rstrip().rpartition("\n\n")[2]
        named = _FILE.search(paragraph)
        if fence[1] in ("python", "yaml") and named:
            files[named[1]] = fence[2]
    return files


def commands() -> list[str]:
    """Every line of the shell blocks."""
    return [line for block in blocks("sh") for line in block.splitlines() if line]


def shown_output(name: str = "run") -> str:
    """What the README says that a command of SHOWN prints."""
    first = f"$ {SHOWN[name]}\n"
    return next(block for block in blocks("text") if block.startswith(first)).partition("\n")[2].rstrip()


def environment(home: Path) -> dict[str, str]:
    """Of a user who has no recorded trace and no network, but the compiled engine of whoever runs the tests."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("TRACES_DIR", "COLUMNS")}
    compiled = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "NUMBA_CACHE_DIR": compiled, "PATH": path}
    return inherited | own | {"TRACES_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def printed(name: str = "run", **more: str) -> str:
    """What a command of SHOWN prints on stdout, `more` in its environment."""
    line = "python run.py" if name == "run" else SHOWN[name]
    line = line.replace(" run.py", f" {ROOT / 'run.py'}")
    with tempfile.TemporaryDirectory() as home:
        told = environment(Path(home)) | more
        finished = subprocess.run(line, shell=True, cwd=home, env=told, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in finished.stdout.splitlines())


def refresh(*names: str) -> None:
    """Put what these commands of SHOWN print into the README, and a picture of the default run into docs/."""
    text = README.read_text()
    for name in names:
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        text = f"{before}{begin}```text\n$ {SHOWN[name]}\n{printed(name)}\n```\n{end}{after}"
    _write(README, text)
    if "run" in names:
        _draw()


def put_claims(directory: Path) -> None:
    """Put the claims table into the README, and it with all that was chosen and found into docs/."""
    whole = (directory / "claims.md").read_text()
    table = "".join(line for line in whole.splitlines(keepends=True) if line.startswith("|"))
    before, begin, rest = README.read_text().partition("<!-- claims -->\n")
    _, end, after = rest.partition("<!-- /claims -->")
    _write(README, f"{before}{begin}{table}{end}{after}")
    _write(CLAIMS, whole)


def _draw() -> None:
    console = Console(record=True, width=_WIDTH, file=io.StringIO())
    console.print(Text.from_ansi("$ make run\n" + printed(FORCE_COLOR="1", COLUMNS=str(_WIDTH))))
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
        refresh(*(sys.argv[1:] or SHOWN))
