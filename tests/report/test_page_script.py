"""The script of a page: what it may run, the data it has, and what it does in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framework.metrics.summary import evaluate
from framework.objective.goodput import Measurement
from framework.objective.stability import MISSED, SUSTAINED
from framework.report.page.carried import MOST, sample
from framework.report.page.markup import Sheet
from framework.report.page.run_page import run_page
from framework.report.page.script import MISSING
from framework.report.page.words import axis_words, in_words, setup, sources
from framework.run.job import perform
from tests.helpers.browser import Tab, program, tab
from tests.helpers.composing import configured
from tests.helpers.results import small_result
from tests.report.test_run_page import SLO, Page, page_of


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


def test_columns_of_numbers_have_their_points_below_each_other() -> None:
    sheet = Sheet(["name", "value"], [["a", 4.1], ["b", 45.123], ["c", 0.6071], ["d", 12], ["e", None]])
    cells = re.findall(r'<td class="n"(?: data-pad="(.*?)")?>(?:<data value="[^"]*">)?([^<]*)<', sheet.html())
    assert cells == [("0", "4.10"), ("00", "45.1"), ("", "0.607"), (".000", "12"), ("", "–")]
    whole = Sheet(["value"], [[5.0], [1000.0]]).html()
    assert [">5<" in whole, ">1,000<" in whole, "data-pad" in whole] == [True, True, False]


def test_settings_are_in_words() -> None:
    assert axis_words("trace.rate") == "request rate (requests/s)"
    assert axis_words("policy.period_s") == "policy period (s)"
    assert axis_words("cluster.link_bandwidth_bytes_s") == "cluster link bandwidth (bytes/s)"
    assert axis_words("cluster.ep") == "cluster ep"
    settings = {"policy._target_": "policies.chunked.Chunked", "policy.order": "fcfs", "gpu._convert_": "all"}
    assert in_words(settings) == {"policy": "Chunked", "policy.order": "fcfs"}
    runs = [{"model.name": "m", "gpu.name": gpu, "server.name": "s"} for gpu in ("a", "b")]
    assert setup(runs, [4, 8]) == "m on 4 to 8 a or b, server s"
    assert setup(runs[:1], [4]) == "m on 4 a, server s"
    assert setup([{}], [4]) == ""
    told = {"trace_sha256": None, "versions": {"servelab": "0.2.0", "numba": "1.0"}, "seed": 3}
    rows = [["SHA-256 of the trace", "–"], ["versions", "servelab 0.2.0, numba 1.0"], ["seed", "3"]]
    assert sources([told], told) == rows


def test_the_page_of_a_capacity_begins_with_it_and_has_its_search() -> None:
    rates, shares = [1.0, 2.0, 3.0], [1.0, 0.925, 0.5]
    probes = pl.DataFrame(
        {"sample": [0, 0, 0], "rate_rps": rates, "attainment_first_half": [1.0] * 3, "attainment": shares}
        | {"growth": [0.0] * 3, "requests": [5] * 3, "simulated_s": [9.0] * 3}
        | {"verdict": [SUSTAINED, SUSTAINED, MISSED]}
    )
    result = small_result()
    evaluation = evaluate(result, SLO)
    found = {"capacity": 2.125, "capacity_attainment": 0.9, "capacity_share_of_bound": 0.25}
    evaluation = replace(evaluation, summary={**evaluation.summary, **found})
    settings = {"model.name": "m", "gpu.name": "g"}
    content = run_page(Measurement(2.125, result, evaluation, SLO, probes=probes), settings, "")
    page = Page(content)
    tile = content[content.index('class="tile"') :]
    assert '<data value="2.125">' in tile[: tile.index("</div>")]
    assert content.index('class="tile"') < content.index('id="search"') < content.index('id="why"')
    assert "m on 3 g" in page.text
    (chart,) = [one for one in blocks(content, "chart") if one["x"]["label"] == "request rate (requests/s)"]
    drawn = [pair for one in chart["series"] for pair in zip(one["x"], one["y"], strict=True)]
    assert drawn == [*zip(rates, [100 * share for share in shares], strict=True)]
    assert {2.125, 92.5} <= {float(one["value"] or "nan") for one in page.every("data")}


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


def require_calm(shown: Tab, width: int) -> None:
    """The page is no wider than its window, has loaded nothing, and has written nothing to the console."""
    assert shown.ask("document.documentElement.scrollWidth") <= width
    assert shown.ask("performance.getEntriesByType('resource').length") == 0
    assert shown.troubles == []


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
        require_calm(shown, request.param)


@pytest.mark.slow
@pytest.mark.parametrize("point", [Tab.move, Tab.tap])
def test_a_pointer_shows_the_request_behind_a_point(opened: Shown, point: Callable[[Tab, float, float], None]) -> None:
    left, top, width, height = opened.picture("TTFT against prompt")
    point(opened.tab, left + 0.6 * width, top + 0.6 * height)
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
