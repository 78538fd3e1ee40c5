"""The page of a sweep has each run once, draws what was swept, and finds which runs none is cheaper and better than."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.metrics.statistics import estimate
from framework.metrics.summary import evaluate
from framework.report.page.sweep_curves import Point
from framework.report.page.sweep_page import frontier, sweep_page
from framework.run.finished import is_sweep, setup_of_sweep, sweep_points
from servelab.report_command import main
from tests.helpers.browser import program, tab
from tests.helpers.results import small_result
from tests.report.test_compare_page import shown_in_a_browser
from tests.report.test_page_script import blocks, require_calm
from tests.report.test_run_page import _HOSTILE, SLO, Page, without_scripts

SUMMARY = evaluate(small_result(), SLO).summary


def point(goodput: float, usd: float = 1.0, **settings: str) -> Point:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return Point(named, SUMMARY | {"goodput_rps": goodput, "usd_per_hour": usd})


POINTS = [
    point(rate * scale, usd, policy=policy, trace__rate=f"{rate}")
    for policy, scale, usd in (("one", 1.0, 4.0), ("two", 0.5, 2.0))
    for rate in (1, 2, 4)
]


def test_every_run_is_there_and_every_line() -> None:
    page = Page(sweep_page(POINTS, "Sweep", 2))
    assert [one["goodput"] for one in page.data] == [1.0, 2.0, 4.0, 0.5, 1.0, 2.0]
    assert "6 runs; swept: policy, trace.rate" in page.text
    assert "2 of its runs left no summary" in page.text
    lines = [one for one in page.every("path") if "line" in (one["class"] or "").split()]
    assert len(lines) == 4 * 2 + 1  # a line a policy in each of four curves, and the frontier
    assert {"Curves", "Maps of goodput", "Goodput against cost", "All runs"} <= {text for _, text in page.texts}


def test_runs_that_differ_in_their_seeds_count_as_one() -> None:
    seeds = []
    for rate in (1, 2, 3):
        seeds += [point(goodput, trace__rate=f"{rate}", seed=f"{goodput}") for goodput in (1.0, 3.0)]
    page = Page(sweep_page(seeds, "Sweep", 0))
    assert [one["goodput"] for one in page.data] == [2.0, 2.0, 2.0]
    assert "6 runs, 3 but for their seeds; swept: trace.rate" in page.text
    assert "Goodput against cost" not in page.text


def test_the_best_has_a_mark_and_seeds_an_interval() -> None:
    seeds = [
        point(scale * goodput, policy=policy, trace__rate=rate, seed=f"{goodput}")
        for policy, scale in (("one", 1.0), ("two", 2.0))
        for rate in ("1", "2")
        for goodput in (1.0, 2.0, 3.0)
    ]
    content = sweep_page(seeds, "Sweep", 0)
    width = estimate(np.array([2.0, 4.0, 6.0])).half_width
    assert f"▸ two rate=1: 4.00 requests/s (± {width:.2f}), " in Page(content).text
    assert re.findall(r"(▸ )?(one|two) rate=(\d): ", content) == [
        *(("▸ ", "two", "1"), ("", "one", "1"), ("▸ ", "two", "2"), ("", "one", "2"))
    ]
    assert content.count("<td>▸</td>") == 2
    assert [float(one["value"] or "nan") for one in Page(content).every("data")].count(width) == 2
    alone = sweep_page(POINTS, "Sweep", 0)
    assert "seed=0,1,2 adds one" in alone
    assert "± (95" not in alone


def test_runs_with_a_window_that_is_too_short_have_a_mark() -> None:
    short = [replace(one, summary={**one.summary, "window_is_short": k == 0}) for k, one in enumerate(POINTS)]
    content = sweep_page(short, "Sweep", 0)
    assert content.count("– §") == 1
    assert "§: window under 5 times what the SLO allows a request: starting empty flatters all figures." in content
    calm = [replace(one, summary={**one.summary, "window_is_short": False}) for one in POINTS]
    assert "§" not in sweep_page(calm, "Sweep", 0)


def test_points_say_their_runs_and_their_range() -> None:
    seeds = [
        replace(point(goodput, trace__rate=f"{rate}", seed=f"{goodput}"), place=f"a b/{rate}.html", name=f"{rate}")
        for rate in (1, 2, 3)
        for goodput in (1.0, 3.0)
    ]
    content = sweep_page(seeds, "Sweep", 0, "m on 8 g")
    chart = next(one for one in blocks(content, "chart") if one["y"]["label"] == "goodput (requests/s)")
    (line,) = chart["series"]
    assert (line["y"], line["low"], line["high"]) == ([2.0] * 3, [1.0] * 3, [3.0] * 3)
    assert line["behind"][0] == "runs 1, 1, 1.00 to 3.00"
    assert chart["x"]["label"] == "request rate (requests/s)"
    page = Page(content)
    assert [one["href"] for one in page.every("a")].count("a b/2.html") == 2
    assert "m on 8 g" in page.text


def test_a_map_has_the_best_goodput_of_each_pair() -> None:
    content = sweep_page([*POINTS, point(9.0, 4.0, policy="two", trace__rate="4", extra="1")], "Sweep", 0)
    table = re.findall(r'<table class="map">(.*?)</table>', content)[0]
    cells = [float(one["value"] or "nan") for one in Page(f"<table>{table}</table>").every("data")]
    assert cells == [1.0, 2.0, 4.0, 0.5, 1.0, 9.0]
    assert table.count("best") == 1


def test_lines_beyond_the_colours_are_left_out_with_a_word() -> None:
    many = [point(float(rate * n), name=f"p{n}", trace__rate=str(rate)) for n in range(1, 12) for rate in (1, 2, 3)]
    text = Page(sweep_page(many, "Sweep", 0)).text
    assert "3 more lines of lower goodput are left out" in text


def test_the_frontier_is_of_points_that_none_is_cheaper_and_better_than() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        costs, goodputs = draw.integers(1, 8, 20).astype(float), draw.integers(1, 8, 20).astype(float)
        chosen = frontier(costs, goodputs)
        points = list(zip(costs, goodputs, strict=True))
        for one in points:
            beaten = [other for other in points if other[0] <= one[0] and other[1] >= one[1] and other != one]
            assert ([points[i] for i in chosen].count(one) == 1) == (not beaten)
        assert np.all(np.diff(costs[chosen]) > 0)


def test_what_others_wrote_stays_text() -> None:
    settings = [{_HOSTILE: f"{_HOSTILE}{rate % 2}", "trace.rate": str(rate)} for rate in range(1, 5)]
    hostile = [Point(one, SUMMARY) for one in settings]
    content = without_scripts(sweep_page(hostile, _HOSTILE, 0))
    page = Page(content)
    assert {one["type"] for one in page.every("script")} == {"application/json"}
    assert "<img" not in content
    assert "\x1b" not in content
    assert not [one for tag, one in page.tags if any(name.startswith("on") for name in one)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_a_bar_to_scroll_aside(tmp_path: Path, width: int) -> None:
    wide, pictures = shown_in_a_browser(tmp_path, sweep_page(POINTS, "Sweep", 0), width)
    assert wide <= width
    assert pictures >= 5


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1440])
def test_a_click_on_the_legend_hides_a_policy_in_all_pictures(tmp_path: Path, width: int) -> None:
    browser = program()
    if browser is None:
        pytest.skip("no Chromium")
    (tmp_path / "page.html").write_text(sweep_page(POINTS, "Sweep", 0))
    with tab(browser, tmp_path) as shown:
        shown.resize(width, 900)
        shown.open((tmp_path / "page.html").as_uri())
        shown.wait_for("document.querySelector('#curves figure .drawn svg')")
        shown.resize(width, 4000)
        shown.wait_for("document.querySelectorAll('#curves .drawn svg').length == 4")
        lines = "document.querySelectorAll('#curves .mark-line path').length"
        shown.wait_for(f"{lines} == 8")
        shown.ask("document.querySelector('#curves .legend button').click()")
        shown.wait_for(f"{lines} == 4")
        assert shown.ask("document.querySelectorAll('#curves [aria-pressed=false]').length") == 4
        require_calm(shown, width)


# --- the command ------------------------------------------------------------------------------------------------------


def job(directory: Path, arguments: list[str], summary: dict[str, Any] | None) -> None:
    (directory / ".hydra").mkdir(parents=True)
    (directory / ".hydra" / "overrides.yaml").write_text("".join(f"- {word}\n" for word in arguments))
    if summary is not None:
        (directory / "summary.json").write_text(json.dumps(summary))


def test_the_command_shows_the_directory_of_a_sweep(tmp_path: Path) -> None:
    for number, rate in enumerate((1, 2, 4, 8)):
        made = SUMMARY | {"goodput_rps": float(rate)} if rate < 8 else None
        job(tmp_path / "sweep" / str(number), ["policy=one", f"trace.rate={rate}", "+extra=1"], made)
    out = tmp_path / "page.html"
    assert is_sweep(tmp_path / "sweep")
    assert main([str(tmp_path / "sweep"), f"out={out}"]) == 0
    text = Page(out.read_text()).text
    assert "Sweep of 4 runs" in text
    assert "3 runs; swept: trace.rate" in text
    assert "1 of its runs left no summary" in text


def test_the_headline_of_a_sweep_names_the_gpus_that_it_varies(tmp_path: Path) -> None:
    config = {"seed": 0, "trace": {}, "policy": {}, "model": {"name": "m"}, "gpu": {"name": "h100"}}
    for number, gpu in enumerate(("h100", "a100")):
        job(tmp_path / str(number), [f"gpu={gpu}"], SUMMARY | {"gpus": 2})
        (tmp_path / str(number) / ".hydra" / "config.yaml").write_text(json.dumps(config))
    assert setup_of_sweep(tmp_path, sweep_points(tmp_path)[0]) == "m on 2 h100 or a100"


def test_a_sweep_that_left_nothing_is_refused_in_a_line(tmp_path: Path) -> None:
    job(tmp_path / "0", ["a=1"], None)
    with pytest.raises(InputError, match="no run of this sweep has left a summary"):
        sweep_points(tmp_path)
    job(tmp_path / "1", ["a=1"], SUMMARY)
    (tmp_path / "1" / ".hydra" / "overrides.yaml").write_text("- [")
    with pytest.raises(InputError, match="cannot be read"):
        sweep_points(tmp_path)
