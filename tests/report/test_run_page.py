"""The page of a run: it says what summary.json says, needs nothing else, and nothing that others wrote is markup."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.metrics.paper_scores import gaps_of
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.objective.goodput import Measurement
from framework.report.page.chart import HEIGHT, WIDTH, Chart
from framework.report.page.run_page import run_page
from framework.report.page.scale import Scale, fitting, from_zero, nice, tick_text
from framework.result import Result
from framework.run.job import perform
from tests.helpers.browser import program
from tests.helpers.composing import configured
from tests.helpers.results import FINISHED, reduced_result, small_result
from tests.house.test_floors import MODULES

SLO = Slo(ttft_s=0.75, tpot_s=0.3)
SETTINGS = {"slo.ttft_s": 0.75, "slo.tpot_s": 0.3, "cluster.prefill": 1, "trace.path": None}
COMMAND = "python run.py policy=distserve 'trace.path=a b'"
_VOID = {"meta", "br", "path"}
_HOSTILE = "<img src=x onerror=alert(1)>\"'&</script>\x1b[31m\u202e"


class Page(HTMLParser):
    """What a browser would find: tags that are closed in order, attributes, and the text of each place."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(content)
        self.close()
        assert self.open == []
        held = re.findall(r'<script type="application/json" id="\w+">(.*?)</script>', content)
        self.data: Any = json.loads(held[0]) if held else None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def every(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(data for tag, data in self.texts if tag not in ("style", "script")).replace("\u00a0", " ")


def page_of(result: Result | None = None, slo: Slo = SLO, settings: dict[str, Any] | None = None) -> str:
    result = result or small_result()
    measurement = Measurement(0.0, result, evaluate(result, slo), slo)
    return run_page(measurement, settings or SETTINGS, COMMAND)


def without_scripts(content: str) -> str:
    """The page but for the scripts that a browser runs."""
    return re.sub(r"<script>.*?</script>", "", content, flags=re.DOTALL)


def test_the_page_says_what_summary_json_says() -> None:
    content = page_of()
    page, summary = Page(content), evaluate(small_result(), SLO).summary
    assert page.data == json.loads(json.dumps(summary))
    values = {float(one["value"] or "nan") for one in page.every("data")}
    for key in ("goodput_rps", "slo_attainment", "p99_ttft_ms", "p99_tpot_ms", "output_throughput", "mfu"):
        assert summary[key] in values, key
    for part in ("distserve on mooncake", "fitted trace, not a recording", "5 requests in 2.50 s on 3 GPUs", COMMAND):
        assert part in page.text, part
    assert "limit 750 ms" in page.text or "limit 0.75 s" in page.text


def test_the_page_needs_nothing_else_and_links_to_itself() -> None:
    content = without_scripts(page_of())
    page = Page(content)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|<img|<iframe", content)
    assert {one["type"] for one in page.every("script")} == {"application/json"}
    anchors = {one["id"] for one in page.every("section")}
    assert {(one["href"] or "").removeprefix("#") for one in page.every("a")} == anchors
    assert "prefers-color-scheme:dark" in content
    assert "@media print" in content


def test_each_figure_has_a_table_and_a_name() -> None:
    page = Page(page_of())
    figures, details = len(page.every("figure")), page.every("details")
    assert figures >= 10
    assert len(details) >= figures
    assert len([one for one in page.every("svg") if one["aria-label"]]) == len(page.every("svg"))
    assert "TTFT" in page.text


def test_every_number_drawn_lies_within_its_picture() -> None:
    for path in Page(page_of()).every("path"):
        places = [float(number) for number in re.findall(r"-?[\d.]+", (path["d"] or "").replace("h0", ""))]
        assert places
        assert all(0 <= place <= max(WIDTH, HEIGHT) for place in places)


@pytest.mark.parametrize("slo", [Slo(None, None), Slo(ttft_s=100.0, tpot_s=100.0)])
def test_runs_that_lost_little_say_so(slo: Slo) -> None:
    assert "3 of 5 requests kept the SLO. No cause cost enough" in Page(page_of(slo=slo)).text


def test_a_run_that_lost_nothing_says_so() -> None:
    result = small_result()
    result.requests["state"] = FINISHED
    result.requests["first_token_s"] = result.requests["arrival_s"] + 0.5
    result.requests["end_s"] = result.requests["arrival_s"] + 1.0
    text = Page(page_of(result, Slo(None, None))).text
    assert "Nothing was lost: all 5 requests kept the SLO." in text
    assert "No cause" not in text


def test_classes_of_requests_have_rows_of_their_own() -> None:
    result = small_result()
    workload = replace(result.workload, slo_class=("chat", "batch", "chat", "batch", "chat"))
    text = " ".join(Page(page_of(replace(result, workload=workload))).text.split())
    assert "Classes of requests" in text
    assert "Classes of requests" not in Page(page_of()).text


def test_what_others_wrote_stays_text() -> None:
    result = small_result(policy=_HOSTILE, reasons=("", "context", _HOSTILE))
    workload = replace(result.workload, name=_HOSTILE, slo_class=(_HOSTILE, "a", "a", "a", _HOSTILE))
    pools = tuple(replace(pool, name=_HOSTILE + pool.name) for pool in result.cluster.pools)
    result = replace(result, workload=workload, cluster=replace(result.cluster, pools=pools))
    settings = SETTINGS | {_HOSTILE: _HOSTILE, "store": "postgresql://me:secret@host/db"}
    content = without_scripts(page_of(result, Slo(0.75, 0.3, classes={_HOSTILE: {"ttft_s": 0.1}}), settings))
    page = Page(content)
    assert not page.every("img")
    assert {one["type"] for one in page.every("script")} == {"application/json"}
    assert not [one for tag, one in page.tags if any(name.startswith("on") for name in one)]
    assert "<img" not in content
    assert "\x1b" not in content
    assert "\u202e" not in content
    assert "secret" not in content
    assert "<img src=x" in page.text


def test_a_run_with_its_log_reduced_has_what_is_known() -> None:
    page = Page(page_of(reduced_result(gaps_of(small_result()))))
    assert "Utilisation" not in page.text
    assert "Attainment" in page.text
    assert "P99 of the gaps of each request" in page.text


def test_the_same_run_gives_the_same_page() -> None:
    assert page_of() == page_of()


def test_the_size_does_not_grow_with_the_run() -> None:
    small = small_result()
    times = 4000
    parts = {"requests": np.tile(small.requests, times)}
    names = ("arrival_s", "input_tokens", "output_tokens")
    columns: dict[str, Any] = {name: np.tile(getattr(small.workload, name), times) for name in names}
    shift_s = np.repeat(np.arange(times) * 3.0, len(small.requests))
    for name in ("arrival_s", "start_s", "prefill_end_s", "first_token_s", "transfer_end_s", "end_s"):
        parts["requests"][name] += shift_s
    order = np.argsort(columns["arrival_s"] + shift_s, kind="stable")
    columns["arrival_s"] = columns["arrival_s"] + shift_s
    sorted_columns: dict[str, Any] = {name: values[order] for name, values in columns.items()}
    workload = replace(small.workload, **sorted_columns)
    reduced = reduced_result(gaps_of(small))
    nan = np.full(len(order), np.nan)
    gaps = replace(gaps_of(small), request_p99_s=nan + 0.1, request_max_s=nan + 0.1)
    many = replace(reduced, workload=workload, requests=parts["requests"][order], gaps=gaps)
    content = page_of(many)
    assert len(content.encode()) < 3e6
    assert len(without_scripts(content).encode()) < 750_000


def loaded(module: str, known: set[str]) -> set[str]:
    """The project's modules that importing one of them imports, but for what functions import later."""
    if module in MODULES and module not in known:
        known.add(module)
        for node in ast.parse(MODULES[module].read_bytes()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    loaded(f"{node.module}.{alias.name}", known)
                loaded(node.module, known)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    loaded(alias.name, known)
    return known


def test_a_run_without_a_report_loads_none_of_it() -> None:
    every = loaded("framework.run.command", set())
    assert "framework.report.run_table" in every
    assert not [name for name in every if name.startswith(("framework.report.page", "framework.diagnosis"))]
    assert "framework.diagnosis.losses" in loaded("framework.report.page.run_page", set())


# --- axes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e-6, 0.013, 0.2, 1.0, 7.3, 49.0, 1e7])
def test_a_nice_number_is_the_next_of_one_two_five(value: float) -> None:
    found = nice(value)
    assert value * (1 - 1e-9) <= found < 2.51 * value
    assert found / 10.0 ** np.floor(np.log10(found) + 1e-9) in (pytest.approx(1), pytest.approx(2), pytest.approx(5))


@pytest.mark.parametrize(("low", "high"), [(0.02, 9.0), (1.0, 130_000.0), (0.0, 7.0), (0.0, 0.3), (5.0, 12.0)])
def test_scales_have_some_ticks_within_their_ends(low: float, high: float) -> None:
    for scale in (Scale(low, high), Scale(max(low, 1e-3), high, log=True)):
        assert 2 <= len(scale.ticks) <= 11
        assert all(scale.low * (1 - 1e-6) <= tick <= scale.high * (1 + 1e-6) for tick in scale.ticks)
        places = scale(scale.ticks)
        assert np.all(np.diff(places) > 0)
        assert scale([scale.low, scale.high]) == pytest.approx([0.0, 1.0])


def test_only_values_that_range_far_are_logarithmic() -> None:
    assert fitting(np.array([1.0, 100.0])).log
    assert not fitting(np.array([1.0, 10.0])).log
    assert fitting(np.array([np.nan])) == from_zero(np.zeros(0)) == Scale(0.0, 1.0)


@pytest.mark.parametrize(
    ("value", "ticks", "shown"),
    [(0.05, (), "0.05"), (2000.0, (), "2k"), (2.5e6, (), "2.5M"), (0.0, (0.0, 2000.0), "0"), (400.0, (), "400")],
)
def test_ticks_are_short(value: float, ticks: tuple[float, ...], shown: str) -> None:
    assert tick_text(value, ticks) == shown


def test_lines_break_where_nothing_is_known() -> None:
    chart = Chart("t", Scale(0, 4), Scale(0, 4), "x", "y")
    chart.line(np.arange(4.0), np.array([1.0, np.nan, 2.0, 3.0]), "s0")
    (drawn,) = re.findall(r'class="line s0" d="([^"]*)"', chart.svg())
    assert drawn.count("M") == 2
    assert drawn.count("L") == 1


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, False)])
def test_a_browser_shows_it_without_a_bar_to_scroll_aside(tmp_path: Path, width: int, dark: bool) -> None:
    browser = program()
    if browser is None:
        pytest.skip("no Chromium")
    (tmp_path / "page.html").write_text(page_of())
    probe = (
        f'<iframe id="f" src="page.html" style="width:{width}px;height:900px;border:0"></iframe><pre id="o"></pre>'
        "<script>onload=()=>{const d=document.getElementById('f').contentDocument.documentElement;"
        "document.getElementById('o').textContent=d.scrollWidth+' '+d.querySelectorAll('svg').length}</script>"
    )
    (tmp_path / "frame.html").write_text(probe)
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    options += ["--force-dark-mode"] if dark else []
    words = [browser, *options, f"--user-data-dir={tmp_path / 'profile'}", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    (found,) = re.findall(r'<pre id="o">(\d+) (\d+)</pre>', done.stdout)
    assert int(found[0]) <= width
    assert int(found[1]) >= 10


@pytest.mark.slow
def test_a_million_requests_make_a_page_in_seconds(tmp_path: Path) -> None:
    """At most 10 s with the run on a machine of its own; twice that where others compute too."""
    many = ("trace.requests=1000000", "trace.limit=1000000", "trace.arrivals.rate=110", "cluster.instances=16")
    measured = perform(
        configured("policy=chunked", "trace=synthetic", *many, "slo.ttft_s=0.1", "slo.tpot_s=0.02"), tmp_path
    )
    assert 1 - measured.evaluation.summary["slo_attainment"] > 0.01
    begin_s = time.process_time()
    page = run_page(measured, {}, "")
    assert time.process_time() - begin_s < 20
    assert len(page.encode()) < 3e6
