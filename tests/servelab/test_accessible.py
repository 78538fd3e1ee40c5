"""What axe-core finds on the pages, drawn in Chromium: nothing.

The script of axe-core is that of `axe-playwright-python`, or a file that AXE_CORE names.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from experiments.tune.page.study_page import study_page
from framework.report.page.compare_page import compare_page
from framework.report.page.sweep_page import sweep_page
from tests.experiments.test_study_page import STUDY
from tests.helpers.browser import Tab, program, tab
from tests.report.test_compare_page import RUNS
from tests.report.test_run_page import page_of
from tests.report.test_sweep_page import POINTS
from tests.servelab.test_ui import fill, showing

WIDTHS = (1280, 390)
_SAID = "(one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 150)).slice(0, 3).join(' | ')}`"


def axe() -> Path | None:
    """The script of axe-core, if this machine has it."""
    package = importlib.util.find_spec("axe_playwright_python")
    folders = package.submodule_search_locations if package is not None else None
    named = os.environ.get("AXE_CORE") or (f"{folders[0]}/axe.min.js" if folders else "")
    return Path(named) if named and Path(named).is_file() else None


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Tab]:
    browser = program()
    if browser is None or axe() is None:
        pytest.skip("needs Chromium and axe-core")
    with tab(browser, tmp_path) as found:
        yield found


def require_accessible(page: Tab, address: str, ready: str) -> None:
    """No violation on any part of the page, light and dark, wide and narrow."""
    script = axe()
    assert script is not None
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            page.prefer(scheme)
            page.resize(width, 1000)
            page.open(address)
            page.wait_for(ready)
            page.ask(f"{script.read_text()}; 0")
            found = page.ask("axe.run().then((all) => [all.passes.length, all.violations.map(" + _SAID + ")])")
            assert found[0] > 10, "axe-core has hardly looked at the page"
            assert found[1] == [], (scheme, width)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "comparison", "sweep", "study"])
def test_axe_finds_nothing_on_a_written_page(tmp_path: Path, page: Tab, kind: str) -> None:
    made: dict[str, Callable[[], str]] = {
        "run": page_of,
        "comparison": lambda: compare_page(RUNS),
        "sweep": lambda: sweep_page(POINTS, "Sweep", 2),
        "study": lambda: study_page(STUDY, ["python run.py +tuned=own"]),
    }
    (tmp_path / "page.html").write_text(made[kind]())
    require_accessible(page, f"file://{tmp_path}/page.html", "document.readyState === 'complete'")


@pytest.mark.slow
@pytest.mark.parametrize("view", ["table", "pivot", "pareto"])
def test_axe_finds_nothing_on_the_page_over_a_store(tmp_path: Path, page: Tab, view: str) -> None:
    fill(tmp_path / "results")
    with showing(tmp_path / "results") as port:
        address = f"http://127.0.0.1:{port}/#{quote(json.dumps({'tab': view}))}"
        ready = f"document.querySelector('#tab-{view}[aria-selected=true]') && document.querySelector('#shown *')"
        require_accessible(page, address, ready)
