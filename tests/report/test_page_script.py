"""The script of a page: what it may run, the data it has, and what it does in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framework.report.page.carried import MOST, sample
from framework.report.page.run_page import run_page
from framework.report.page.script import MISSING
from framework.run.job import perform
from tests.helpers.browser import Tab, program, tab
from tests.helpers.composing import configured
from tests.report.test_run_page import Page, page_of


def blocks(content: str, kind: str) -> list[Any]:
    return [json.loads(found) for found in re.findall(rf'json" class="{kind}">(.*?)</script>', content)]


def test_a_page_runs_its_own_scripts_alone() -> None:
    content = page_of()
    scripts = re.findall(r"<script>(.*?)</script>", content, flags=re.DOTALL)
    assert len(scripts) == 2
    assert len(scripts[0].encode()) < 1.2e6
    assert "https:" not in scripts[1].replace("https://vega.github.io/schema/", "")
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    (policy,) = [one["content"] for one in Page(content).every("meta") if "http-equiv" in one]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"


def test_without_the_package_a_page_has_pictures_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with_script = Page(page_of())
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    content = page_of()
    page = Page(content)
    assert [one.get("id") for one in page.every("script")] == ["summary"]
    assert MISSING in page.text
    assert MISSING not in with_script.text
    assert page.every("svg") == with_script.every("svg")
    assert page.every("path") == with_script.every("path")


def test_a_page_carries_its_requests_and_the_points_of_its_pictures() -> None:
    content = page_of()
    (held,) = blocks(content, "requests")
    columns = {one["name"]: one["values"] for one in held["columns"]}
    charts = blocks(content, "chart")
    assert len(columns["request"]) == held["offered"] == 5
    (scatter,) = [one for one in charts if one["x"]["label"] == "prompt (tokens)"]
    seen = 0
    for one in scatter["series"]:
        for x, y, row in zip(one["x"], one["y"], one["behind"], strict=True):
            seen += 1
            assert (columns["prompt (tokens)"][row], columns["TTFT (s)"][row]) == (x, pytest.approx(y, rel=1e-4))
            assert (columns["lost to"][row] == "") == (one["kind"] == "kept")
    assert seen == 3
    over_time = [one for one in charts if one["link"] == "time"]
    assert len(over_time) >= 4
    assert all(len(own["x"]) == len(own["y"]) for one in charts for own in one["series"])


def test_a_sample_is_even_and_has_an_end() -> None:
    assert sample(7).tolist() == [*range(7)]
    chosen = sample(10 * MOST)
    assert (len(chosen), chosen[0], chosen[-1]) == (MOST, 0, 10 * MOST - 1)
    assert set((chosen[1:] - chosen[:-1]).tolist()) <= {10, 11}


# --- in a browser -----------------------------------------------------------------------------------------------------


@dataclass
class Shown:
    """The page of a run in a browser, and the table of its requests."""

    tab: Tab
    requests: pl.DataFrame

    def picture(self, title: str) -> tuple[float, float, float, float]:
        """Scroll to a picture that is drawn by the script; its plot: left, top, width, height."""
        named = f"one.querySelector('strong').textContent == '{title}'"
        find = f"[...document.querySelectorAll('figure')].find((one) => {named})"
        self.tab.ask(f"{find}.scrollIntoView({{block: 'center'}})")
        self.tab.wait_for(f"{find}.querySelector('.drawn svg .background')")
        self.tab.ask("new Promise((done) => setTimeout(done, 500))")
        box = f"{find}.querySelector('.drawn svg .background').getBoundingClientRect()"
        left, top, width, height = self.tab.ask(f"(({{x, y, width, height}}) => [x, y, width, height])({box})")
        return left, top, width, height

    def listed(self) -> int:
        """How many requests are selected."""
        self.tab.ask("new Promise((done) => setTimeout(done, 500))")
        said = self.tab.ask("document.querySelector('#behind .note').textContent")
        return int(said.split()[0].replace(",", ""))

    @property
    def tip(self) -> str:
        return str(
            self.tab.ask("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")
        )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pl.DataFrame]:
    home = tmp_path_factory.mktemp("run")
    measured = perform(configured("policy=chunked", "trace.limit=1500"), home)
    (home / "page.html").write_text(run_page(measured, {}, ""))
    return home / "page.html", measured.evaluation.requests


@pytest.fixture(params=[390, 1440])
def opened(request: pytest.FixtureRequest, page: tuple[Path, pl.DataFrame], tmp_path: Path) -> Iterator[Shown]:
    browser = program()
    if browser is None:
        pytest.skip("no Chromium")
    with tab(browser, tmp_path) as shown:
        shown.resize(request.param, 900)
        shown.open(page[0].as_uri())
        shown.wait_for("document.querySelector('#behind td')")
        yield Shown(shown, page[1])
        assert shown.ask("document.documentElement.scrollWidth") <= request.param
        assert shown.ask("performance.getEntriesByType('resource').length") == 0
        assert shown.troubles == []


@pytest.mark.slow
def test_a_pointer_shows_the_request_behind_a_point(opened: Shown) -> None:
    left, top, width, height = opened.picture("TTFT against prompt")
    opened.tab.move(left + 0.6 * width, top + 0.6 * height)
    opened.tab.wait_for("!document.getElementById('tip').hidden")
    told = dict(line.split("\t") for line in opened.tip.splitlines() if "\t" in line)
    (row,) = opened.requests.filter(pl.col("request_id").cast(pl.String) == told["request"]).iter_rows(named=True)
    assert float(told["prompt (tokens)"].replace(",", "")) == row["input_tokens"]
    assert float(told["TTFT (s)"]) == pytest.approx(row["ttft_s"], rel=1e-3)


@pytest.mark.slow
def test_a_selected_range_of_time_shows_its_requests(opened: Shown) -> None:
    assert opened.listed() == len(opened.requests)
    left, top, width, height = opened.picture("Load")
    opened.tab.drag((left + 0.25 * width, top + 0.5 * height), (left + 0.5 * width, top + 0.5 * height))
    few = opened.listed()
    assert 0.15 * len(opened.requests) < few < 0.35 * len(opened.requests)
    left, top, width, height = opened.picture("TTFT against prompt")
    opened.tab.drag((left + 0.5 * width, top + 0.02 * height), (left + 0.98 * width, top + 0.98 * height))
    assert 0 < opened.listed() < few
    opened.tab.ask("document.querySelectorAll('button.whole:not([hidden])').forEach((one) => one.click())")
    assert opened.listed() == len(opened.requests)


@pytest.mark.slow
def test_a_click_on_the_legend_hides_a_line(opened: Shown) -> None:
    opened.picture("Load")
    lines = "document.querySelectorAll('#time .mark-line path').length"
    before = opened.tab.ask(lines)
    opened.tab.ask("document.querySelector('#time .legend button').click()")
    opened.tab.wait_for(f"{lines} == {before} - 1")
    opened.tab.ask("document.querySelector('#time .legend button').click()")
    opened.tab.wait_for(f"{lines} == {before}")
