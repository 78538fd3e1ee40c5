"""The site as a reader sees it: `make docs` builds it without a warning, and a browser shows every page whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.helpers.browser import program, tab

_GENERATOR = Path(sys.prefix) / "docs" / "bin" / "python"  # made by `make docs`
_WIDTHS = (390, 1440)  # a phone, a desktop
_SEVERAL_TITLES = ("semantics.html",)  # the law has three parts


@pytest.mark.slow
def test_pages_are_whole_in_a_browser(tmp_path: Path) -> None:
    browser = program()
    if browser is None or not _GENERATOR.exists():
        pytest.skip("there is no Chromium, or `make docs` was never run")
    site = tmp_path / "site"
    words = [str(_GENERATOR), "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(site)]
    finished = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert finished.returncode == 0, finished.stderr
    pages = [page for page in sorted(site.rglob("*.html")) if page.name not in ("genindex.html", "search.html")]
    assert len(pages) > 60
    with tab(browser, tmp_path) as shown:
        for page in pages:
            shown.open(page.as_uri())
            for width in _WIDTHS:
                shown.resize(width, 900)
                shown.wait_for("document.readyState == 'complete'")
                assert shown.ask("document.documentElement.scrollWidth - window.innerWidth") <= 0, (page.name, width)
            assert shown.ask("[...document.images].filter(one => one.complete && !one.naturalWidth).length") == 0
            titles = shown.ask("document.querySelectorAll('h1').length")
            assert titles == 1 or page.name in _SEVERAL_TITLES, page.name
        assert not shown.troubles
