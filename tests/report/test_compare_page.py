"""The page that compares runs says what their files say, pairs like requests alone, and trusts no interval too far."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from omegaconf import OmegaConf

from framework.errors import InputError
from framework.metrics.paired import paired
from framework.metrics.statistics import estimate
from framework.metrics.summary import evaluate
from framework.report.page.compare_page import compare_page
from framework.report.page.compared import Run, are_alike, changed, differences, standing
from framework.run.finished import finished_runs
from framework.run.output import write
from servelab.report_command import main
from tests.helpers.browser import program
from tests.helpers.results import small_result
from tests.report.test_run_page import _HOSTILE, SLO, Page, without_scripts

SETTINGS: dict[str, Any] = {"slo.ttft_s": 0.75, "slo.tpot_s": 0.3, "engine.token_budget": 2048, "seed": 0}


def run(label: str, shift_s: float = 0.0, **settings: Any) -> Run:
    """The run of `small_result`, whose first tokens come so much later."""
    result = small_result()
    for name in ("prefill_end_s", "first_token_s", "end_s"):
        result.requests[name] += shift_s
    evaluation = evaluate(result, SLO)
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return Run(label, f"outputs/{label}", evaluation.summary, evaluation.requests, SETTINGS | named)


RUNS = [run("A chunked"), run("B chunked", 0.25, engine__token_budget=512), run("C other", 0.5, slo__ttft_s=1.5)]


def test_the_page_has_the_figures_of_the_summaries() -> None:
    page = Page(compare_page(RUNS))
    assert page.data == json.loads(json.dumps([dict(one.summary) for one in RUNS]))
    values = {float(one["value"] or "nan") for one in page.every("data")}
    for one in RUNS:
        for key, factor in (("goodput_rps", 1.0), ("slo_attainment", 100.0), ("p99_tpot_ms", 1.0)):
            assert one.summary[key] * factor in values, key
        assert one.label in page.text
    assert "the same 5 requests of mooncake (twin)" in page.text


def test_the_page_says_in_one_line_in_what_else_than_the_policy_runs_differ() -> None:
    line = "Besides the policy, runs differ in slo (C other), engine.token_budget (2048; 512: B chunked)."
    assert line in Page(compare_page(RUNS)).text
    assert "Besides the policy" not in Page(compare_page([RUNS[0], run("B other", 0.25)])).text


def test_what_changed_are_settings_that_differ() -> None:
    sheet = changed([run("A", a=None, b=1.0, c="x"), run("B", b=1.0, c="y", d=True)])
    assert sheet.rows == [["directory", "outputs/A", "outputs/B"], ["c", "x", "y"], ["d", "–", "true"]]


def test_limits_that_differ_are_told_apart() -> None:
    page = Page(compare_page(RUNS))
    assert "SLO A 0.75 s" in page.text
    assert "SLO C 1.5 s" in page.text
    assert "SLO 300 ms" in page.text


def test_requests_are_paired_one_by_one() -> None:
    ttft, tpot = [one for one in differences(RUNS[:2]) if one.quantity in ("TTFT", "TPOT")]
    assert ttft.paired.mean == ttft.paired.median == pytest.approx(0.25)
    assert (ttft.paired.above, ttft.paired.pairs) == (1.0, 3)
    assert tpot.paired.mean == pytest.approx(0.0)
    assert "fewer than 10 batches" in ttft.paired.caveat
    assert "no interval: 3 requests" in Page(compare_page(RUNS[:2])).text


def test_the_ranking_has_the_intervals_of_batches() -> None:
    good = np.random.default_rng(0).random((2, 600)) < [[0.5], [0.7]]
    rows = pl.DataFrame({"good": pl.Series(RUNS[0].requests["good"]).extend_constant(False, 595)})
    alike = rows.with_columns(input_tokens=pl.lit(7), output_tokens=pl.lit(7))
    runs = [
        replace(
            one,
            requests=alike.with_columns(good=pl.Series(kept)),
            summary={**one.summary, "slo_attainment": float(kept.mean()), "goodput_rps": 10.0 * float(kept.mean())},
        )
        for one, kept in zip(RUNS, good, strict=False)
    ]
    first, second = standing(runs)
    width = estimate(100 * good[1].reshape(30, 20).mean(axis=1)).half_width
    less = estimate(100 * (good[1] * 1.0 - good[0]).reshape(30, 20).mean(axis=1))
    assert (first.is_best, second.is_best) == (False, True)
    assert second.half_width == pytest.approx(width / 10)
    assert f"{100 * good[1].mean():.1f} % kept the SLO (± {width:.1f})" in second.words
    assert f"{less.mean:.1f} points more than A chunked (± {less.half_width:.1f})" in second.words
    counted = replace(runs[0], summary={**runs[0].summary, "slo_attainment": 0.9})  # without its warm-up
    assert np.isnan(standing([counted, runs[1]])[0].half_width)


def test_unlike_requests_are_not_paired() -> None:
    other = replace(RUNS[1], requests=RUNS[1].requests.with_columns(input_tokens=pl.lit(7, pl.Int64)))
    assert are_alike(RUNS[:2])
    assert not are_alike([RUNS[0], other])
    page = Page(compare_page([RUNS[0], other]))
    assert "which cannot be paired" in page.text
    assert "TTFT difference" not in page.text


def test_the_interval_is_that_of_batches() -> None:
    values = np.random.default_rng(0).normal(1.0, 1.0, 600)
    found = paired(values)
    means = values.reshape(30, 20).mean(axis=1)
    assert found.mean == pytest.approx(values.mean())
    assert found.half_width == pytest.approx(estimate(means).half_width)
    assert found.caveat == ""
    assert (found.below, found.above) == ((values < 0).mean(), (values > 0).mean())


def test_intervals_of_independent_differences_hold_the_mean_and_those_of_a_walk_are_not_trusted() -> None:
    draw = np.random.default_rng(1)
    held = [abs(one.mean) <= one.half_width for one in (paired(draw.normal(0, 1, 300)) for _ in range(2000))]
    assert 0.92 < np.mean(held) < 0.98
    doubted = [paired(np.cumsum(draw.normal(0, 1, 300))).caveat.startswith("too narrow") for _ in range(100)]
    assert np.mean(doubted) > 0.95


@pytest.mark.parametrize(
    ("values", "pairs", "said"),
    [
        ([], 0, "no request"),
        ([np.nan] * 5, 0, "no request"),
        ([1.0, np.nan, 3.0], 2, "no interval"),
        ([0.0] * 200, 200, ""),
    ],
)
def test_few_or_equal_differences(values: list[float], pairs: int, said: str) -> None:
    found = paired(np.array(values))
    assert found.pairs == pairs
    assert found.caveat.startswith(said)
    if pairs == 200:
        assert (found.mean, found.half_width, found.caveat) == (0.0, 0.0, "")


def test_each_figure_has_a_table_and_lies_within_its_picture() -> None:
    content = without_scripts(compare_page(RUNS))
    page = Page(content)
    assert len(page.every("details")) == len(page.every("figure")) >= 6
    assert not re.search(r"https?:|@import|url\(|<link|<img|<iframe", content)
    for path in page.every("path"):
        places = [float(number) for number in re.findall(r"-?[\d.]+", (path["d"] or "").replace("h0", ""))]
        assert all(0 <= place <= 380 for place in places)


def test_what_others_wrote_stays_text() -> None:
    hostile = replace(run(f"B {_HOSTILE}", 0.0, **{_HOSTILE: _HOSTILE}), place=_HOSTILE)
    content = without_scripts(compare_page([RUNS[0], replace(hostile, summary={**hostile.summary, "trace": _HOSTILE})]))
    page = Page(content)
    assert {one["type"] for one in page.every("script")} == {"application/json"}
    assert not page.every("img")
    assert "<img" not in content
    assert "\x1b" not in content
    assert not [one for tag, one in page.tags if any(name.startswith("on") for name in one)]


# --- the command ------------------------------------------------------------------------------------------------------


def left_by(directory: Path, policy: str, **settings: Any) -> Path:
    """A directory such as a run leaves it."""
    result = small_result(policy=policy)
    write(directory, result, evaluate(result, SLO))
    config = {"seed": 0, "trace": {"limit": 5}, "policy": {"_target_": f"policies.{policy}"}, "engine": settings}
    (directory / ".hydra").mkdir()
    OmegaConf.save(OmegaConf.create(config), directory / ".hydra" / "config.yaml")
    return directory


def test_the_command_writes_a_page_of_directories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [left_by(tmp_path / "a", "one", budget=1), left_by(tmp_path / "b", "one", budget=2)]
    names.append(left_by(tmp_path / "c", "two", budget=2))
    out = tmp_path / "deep" / "page.html"
    assert main([*map(str, names), f"out={out}"]) == 0
    assert str(out) in capsys.readouterr().err
    text = Page(out.read_text()).text
    for label in ("A one budget=1", "B one budget=2", "C two"):
        assert label in text


def test_what_is_no_run_is_refused_in_a_line(tmp_path: Path) -> None:
    whole = left_by(tmp_path / "a", "one")
    for words, said in (
        ([], "DIR .* is missing"),
        ([str(whole)], "2 to 8 runs"),
        ([str(whole)] * 9, "2 to 8 runs"),
        ([str(whole / "x")], "x: no such"),
    ):
        with pytest.raises(InputError, match=said):
            main(words)
    with pytest.raises(InputError, match="no run has left"):
        main([str(whole), str(tmp_path)])
    for name, content, part in (
        ("summary.json", b"{", "cannot be read"),
        ("summary.json", b"{}", "no summary of a run"),
        ("requests.parquet", b"PAR1", "cannot be read"),
    ):
        broken = left_by(tmp_path / f"{name}{len(content)}", "one")
        (broken / name).write_bytes(content)
        with pytest.raises(InputError, match=part):
            finished_runs([whole, broken])
    lacking = left_by(tmp_path / "lacking", "one")
    pl.DataFrame({"good": [True]}).write_parquet(lacking / "requests.parquet")
    with pytest.raises(InputError, match="has no column arrival_s"):
        finished_runs([whole, lacking])
    with pytest.raises(InputError, match="written out=VALUE"):
        main([str(whole), str(whole), "out="])
    assert main(["-h"]) == 0


def shown_in_a_browser(directory: Path, content: str, width: int) -> tuple[int, int]:
    """How wide Chromium makes a page in a window so wide, and how many pictures it has."""
    browser = program()
    if browser is None:
        pytest.skip("no Chromium")
    (directory / "page.html").write_text(content)
    probe = (
        f'<iframe id="f" src="page.html" style="width:{width}px;height:900px;border:0"></iframe><pre id="o"></pre>'
        "<script>onload=()=>{const d=document.getElementById('f').contentDocument.documentElement;"
        "document.getElementById('o').textContent=d.scrollWidth+' '+d.querySelectorAll('svg').length}</script>"
    )
    (directory / "frame.html").write_text(probe)
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    words = [browser, *options, f"--user-data-dir={directory / 'profile'}", (directory / "frame.html").as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    ((wide, pictures),) = re.findall(r'<pre id="o">(\d+) (\d+)</pre>', done.stdout)
    return int(wide), int(pictures)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_it_without_a_bar_to_scroll_aside(tmp_path: Path, width: int) -> None:
    wide, pictures = shown_in_a_browser(tmp_path, compare_page(RUNS), width)
    assert wide <= width
    assert pictures >= 6
