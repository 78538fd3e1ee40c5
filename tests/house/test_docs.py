"""The pages for developers are true: the files and functions that they name exist, the rooms have their floors."""

from __future__ import annotations

import ast
import re
import runpy
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.helpers import first_page
from tests.house.test_floors import FLOORS

ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = (ARCHITECTURE, ROOT / "CONTRIBUTING.md", ROOT / "framework" / "engine" / "SEMANTICS.md")
FOLDERS = (ROOT, ROOT / "framework", ROOT / "framework" / "engine")
MADE = {"summary.json", "requests.parquet"}  # by a run
_NAMED = re.compile(r"`((?:[\w.]+/)+|(?:[\w.]+/)*[\w.]+\.(?:py|md|yaml|json|parquet))(?:: ?(\w+))?`(?:: `(\w+)`)?")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_named_exists(page: Path) -> None:
    named = [found for found in _NAMED.findall(page.read_text()) if found[0] not in MADE]
    assert len(named) > 8
    missing = [name for name, *_ in named if not any((folder / name).exists() for folder in FOLDERS)]
    assert not missing
    lacking = [f"{name}: {one}" for name, *ones in named for one in ones if one and one not in definitions(name)]
    assert not lacking


def definitions(name: str) -> set[str]:
    """The functions, classes and constants of a module that a page names."""
    path = next(folder / name for folder in FOLDERS if (folder / name).exists())
    body = ast.parse(path.read_text()).body
    named = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = (target for node in body if isinstance(node, ast.Assign) for target in node.targets)
    return named | {target.id for target in assigned if isinstance(target, ast.Name)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_are_of_readable_length(page: Path) -> None:
    assert not [line for line in page.read_text().splitlines() if len(line) > 120 and not line.startswith("|")]


def test_the_picture_of_the_rooms_has_their_floors() -> None:
    shown = re.search(r"<!-- floors.*?```text\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL)
    assert shown is not None
    rooms = [re.split(r" {2,}", line)[:-1] for line in reversed(shown[1].splitlines())]
    names = [
        [name if (ROOT / name.replace(".", "/")).is_dir() else f"framework.{name}" for name in line] for line in rooms
    ]
    assert {name for line in names for name in line} >= set(FLOORS)
    for lower, higher in pairwise(names):
        assert max(map(FLOORS.index, lower)) < min(map(FLOORS.index, higher)), (lower, higher)


# --- the site ---------------------------------------------------------------------------------------------------------

SITE = {path.relative_to(ROOT / "docs").as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([\w-]+))?\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def test_each_page_is_in_the_contents_of_the_site() -> None:
    entries = re.findall(r"^(?:\w+ <)?([\w/*]+)>?$", SITE["index.md"].read_text(), re.MULTILINE)
    contents = {path for entry in entries for path in (ROOT / "docs").glob(f"{entry}.md")}
    assert contents == {path for name, path in SITE.items() if name != "index.md"}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SITE.values()], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    text = _CODE.sub("", page.read_text())
    for place, heading in _LINK.findall(text):
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{page.name}: {place}"
        if heading:
            assert heading in anchors(target), f"{page.name}: {place}#{heading}"


def test_the_first_page_of_the_site_links_to_pages_of_the_site() -> None:
    places = runpy.run_path(str(ROOT / "docs" / "conf.py"))["_PLACES"]
    text = _CODE.sub("", (ROOT / "README.md").read_text())
    for link, place in places.items():
        text = text.replace(link, place)
    linked = {place for place, _ in _LINK.findall(text) if place}
    assert len(linked) > 20
    assert linked <= set(SITE)


def test_pages_of_the_site_link_to_pages_of_the_site() -> None:
    """`make docs` ends at a link to a page elsewhere in the repository, which GitHub would show."""
    for name, page in SITE.items():
        places = [place for place, _ in _LINK.findall(_CODE.sub("", page.read_text())) if place.endswith(".md")]
        assert {(page.parent / place).resolve() for place in places} <= set(SITE.values()), name


def test_the_site_loads_nothing_from_a_network() -> None:
    """`make docs` looks through its pages with this."""
    loaded = runpy.run_path(str(ROOT / "docs" / "conf.py"))["loaded"]
    page = '<a href="https://a.b/c">c</a><link rel="canonical" href="https://a.b/"><img src="_images/run.svg">'
    assert not loaded(page)
    assert loaded(f'{page}<script src="https://cdn.b/x.js"></script>') == ["https://cdn.b/x.js"]
    assert loaded("<style>@import url(//b.c/x.css);</style>") == ["//b.c/x.css"]
    assert loaded('<link rel="stylesheet" href="https://b.c/x.css">') == ["https://b.c/x.css"]


_MOST_WORDS = 2_500
_TABLES = ("columns", "fitted_traces", "claims", "guide", "league")  # tables, or written by a command


def test_pages_are_short_enough_to_read() -> None:
    """But for the law and the pages of tables."""
    words = {name: len(_CODE.sub("", path.read_text()).split()) for name, path in SITE.items()}
    long = {name: count for name, count in words.items() if count > _MOST_WORDS}
    assert {name.removesuffix(".md") for name in long} <= set(_TABLES), long


def test_pictures_of_the_first_page_are_small() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", SITE["index.md"].read_text())
    assert len(shown) == 4
    assert {Path(name).name for name in shown} == {path.name for path in first_page.PLACE.iterdir()}
    assert all((ROOT / "docs" / name).stat().st_size <= first_page.MOST_BYTES for name in shown)


def anchors(page: Path) -> set[str]:
    """The names by which the headings of a page are linked to."""
    titles = re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_versions_of_the_generator_are_pinned() -> None:
    lines = (ROOT / "requirements-docs.lock").read_text().splitlines()
    pinned = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in pinned)
    assert {"sphinx", "myst-parser", "furo"} <= {line.partition("==")[0].lower() for line in pinned}


def test_the_figures_of_trust_in_the_readme_are_those_of_their_page() -> None:
    readme, trust = (ROOT / "README.md").read_text(), (ROOT / "docs" / "silicon.md").read_text()
    ttft, tpot = re.search(r"cross-validated: TTFT off by ([\d.]+) %, TPOT by ([\d.]+) %", readme).groups()  # type: ignore[union-attr]
    assert re.search(rf"^\| dense, aggregated \| 970 \|[^|]*\| \*\*{ttft} / {tpot}\*\* \|", trust, re.MULTILINE)
    ttft, tpot = re.search(r"median TTFT off by ([\d.]+) %, mean TPOT by ([\d.]+) %", readme).groups()  # type: ignore[union-attr]
    row = rf"^\| fitted to closed loops alone \| \*\*{ttft}\*\* .*\*\*{tpot}\*\* "
    assert re.search(row, trust, re.MULTILINE)


def test_no_page_is_too_long_to_read() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        prose = [line for line in text.splitlines() if not line.startswith("|")]
        assert len(" ".join(prose).split()) <= 2_500, page.name
