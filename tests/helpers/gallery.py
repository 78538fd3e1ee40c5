"""The pictures of docs/gallery.md: each made by the command below it, with fewer colours.

`python -m tests.helpers.gallery` makes all of them, without recorded traces; with a word, those whose names begin so.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from tests.conftest import ROOT
from tests.helpers.readme import environment

PAGE = ROOT / "docs" / "gallery.md"
PLACE = ROOT / "docs" / "gallery"
MOST_BYTES = 60_000
_WIDTH = {True: 495, False: 910}  # pixels of a picture of one column, and of two
_COLOURS = 160
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[[^\]]*\]\((gallery/[\w.]+)\)")


def pictures() -> dict[str, str]:
    """The files that the page shows, by the command below them."""
    found = {}
    text = PAGE.read_text()
    for shell in _SHELL.finditer(text):
        above = text[: shell.start()].rstrip().rpartition("\n\n")[2]
        for picture in _PICTURE.findall(above):
            found[picture] = shell[1].strip()
    return found


def commands() -> list[str]:
    """Every command of the page, in order."""
    return [line for block in _SHELL.findall(PAGE.read_text()) for line in block.splitlines()]


def made_by(command: str, picture: str) -> str:
    """Where in its directory a command leaves a picture."""
    out = next(word.removeprefix("out=") for word in command.split() if word.startswith("out="))
    name = Path(picture).name
    return f"{out}.png" if "experiments.plot" in command else f"{out}/{name}"


def small(picture: Path) -> bytes:
    """The picture at the size of the page, with few colours, as a PNG."""
    with Image.open(picture) as whole:
        width = min(whole.width, _WIDTH[whole.width < 1500])
        size = (width, round(whole.height * width / whole.width))
        shown = whole.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    content = io.BytesIO()
    shown.quantize(_COLOURS, dither=Image.Dither.NONE).save(content, "PNG", optimize=True)
    return content.getvalue()


def draw(prefix: str = "") -> None:
    """Run every command in a directory of its own, and put the pictures beside the page."""
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        told = environment(Path(home))
        for command in commands():
            line = command.replace(" run.py", f" {ROOT / 'run.py'}")
            subprocess.run(line, shell=True, cwd=home, env=told, check=True, stdout=subprocess.DEVNULL)
        for picture, command in pictures().items():
            target = ROOT / "docs" / picture
            if target.stem.startswith(prefix):
                target.write_bytes(small(Path(home) / made_by(command, picture)))
                print(f"{picture}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    draw(*sys.argv[1:2])
