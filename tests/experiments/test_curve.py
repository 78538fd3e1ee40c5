"""Curves: what is run, what each point shows, where a series saturates, how it looks, and how mistakes end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hydra import compose, initialize_config_dir
from matplotlib.figure import Figure
from rich.console import Console

from experiments.curve import command as command
from experiments.curve import plots
from experiments.curve.arguments import Job, Plan, Series, read_plan
from experiments.curve.axis import CONCURRENCY, RATE, Axis, values
from experiments.curve.figures import ALL, Curve, Line, saturation, tabulated
from experiments.curve.plots import draw
from experiments.curve.table import report
from experiments.plot.point_labels import PointLabel, place_labels
from experiments.plot.style import lay_out, legend_below, save, series_style, styled
from framework.errors import InputError
from framework.metrics.statistics import estimate
from framework.objective.goodput import Measurement
from framework.run import job
from framework.run.store import Record
from framework.run.sweep import Outcome
from tests.conftest import ROOT
from tests.helpers.launcher import typed

SMALL = ("policy=chunked", "trace=synthetic", "trace.limit=120", "cluster.instances=1")
BOTH = ("series=policy=chunked cluster.instances=2", "series=policy=distserve cluster.prefill=1 cluster.decode=1")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of the command leave their files in a place of their own, without pictures, which take a while."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "draw", lambda found, directory: [])


def figures(tokens: int | None, load: float, scale: float = 1.0) -> dict[str, Any]:
    """What a summary, or a bucket of one, says at a load."""
    names = [f"{statistic}_{name}_ms" for name in ("ttft", "tpot", "e2el") for statistic in ("median", "p95", "p99")]
    return {
        "from_tokens": 0 if tokens == 512 else 512,
        "to_tokens": tokens,
        "offered": 100 if tokens else 200,
        "completed": 90,
        "out_of_memory": 5,
        "slo_attainment": max(0.0, 1 - load / 40),
        "request_throughput": min(load, 20.0),
        "goodput_rps": scale * min(load, 15.0),
        "output_throughput": 123_456.7 * scale,
        "total_token_throughput": 1_000.0,
        **dict.fromkeys(names, 100 * scale * load**2),
    }


def record(load: float, scale: float = 1.0, **changes: Any) -> Record:
    whole = figures(None, load, scale) | {"duration": 20.0, "offered": 200, "gpus": 8, "policy": "chunked"}
    where = {"trace": "azure_conv", "trace_source": "twin", "timing_source": "measured"}
    buckets = [figures(512, load, scale), figures(None, load, scale) | {"offered": 100}]
    summary = whole | where | {"buckets": buckets} | changes
    return Record(f"{load}-{scale}", {"slo.ttft_s": 2.0, "slo.tpot_s": 0.05}, {}, summary, 0.0)


def made(axis: Axis = RATE, seeds: Sequence[int] = (0,), labels: Sequence[str] = ("one",), **changes: Any) -> Curve:
    """A curve of runs that never were."""
    loads = (1.0, 4.0, 8.0, 16.0, 32.0)
    plan = Plan(axis, tuple(Series(label, (), loads) for label in labels), tuple(seeds), (), 0.9, None)
    jobs = plan.jobs()
    return tabulated(plan, jobs, [Outcome((), record(one.value, 1 + 0.1 * one.seed, **changes), None) for one in jobs])


def line(axis: Axis, **columns: Sequence[float]) -> Line:
    return Line("one", axis, pl.DataFrame(columns))


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,2.5,4", (1, 2.5, 4)),
        ("1:8:8", (1, 2, 3, 4, 5, 6, 7, 8)),
        ("0.1:0.4:4", (0.1, 0.2, 0.3, 0.4)),
        ("1:256:x2", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("1:300:x2", (1, 2, 4, 8, 16, 32, 64, 128, 256)),
        ("0.1:0.9:x3", (0.1, 0.3, 0.9)),
        ("1,4:16:x2", (1, 4, 8, 16)),
    ],
)
def test_numbers_of_an_axis(text: str, numbers: Sequence[float]) -> None:
    assert values(RATE, text) == numbers


def test_each_combination_is_a_series() -> None:
    plan = read_plan([*SMALL[1:3], "policy=chunked,continuous", "engine.token_budget=256,512", "rates=1,2", "seed=3"])
    assert [one.label for one in plan.series] == [
        *("chunked, token_budget 256", "chunked, token_budget 512"),
        *("continuous, token_budget 256", "continuous, token_budget 512"),
    ]
    assert len(plan.jobs()) == 8
    first = plan.jobs()[0]
    assert set(first.overrides) >= {"policy=chunked", "engine.token_budget=256", "trace.rate=1", "seed=3"}


def test_a_series_may_have_settings_of_its_own() -> None:
    plan = read_plan([*BOTH, *SMALL[1:3], "concurrency=1:4:x2", "seed=0,1", "hydra/launcher=basic", "attainment=0.99"])
    assert [one.label for one in plan.series] == ["chunked, instances 2", "distserve, prefill 1, decode 1"]
    assert plan.seeds == (0, 1)
    assert plan.launcher == ("hydra/launcher=basic",)
    assert plan.attainment == 0.99
    last = plan.jobs()[-1].overrides
    assert set(last) >= {"load=closed", "load.concurrency=4", "seed=1", "policy=distserve", "cluster.prefill=1"}
    assert not any(word.startswith(("series", "concurrency", "hydra")) for word in last)


def test_rates_are_around_that_of_the_trace_if_nothing_is_said() -> None:
    (series,) = read_plan([*SMALL, "trace.arrivals.rate=8", "trace.limit=5000"]).series
    assert series.label == "chunked"
    assert series.values[3] == pytest.approx(8, rel=0.1)
    assert np.divide(series.values, series.values[3]) == pytest.approx([0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4], rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["policy=nothing"], "there is no policy of that name"),
        (["series=policy=chunked", "series=policy=nothing"], "there is no policy of that name"),
        (["rates=0,1"], "above 0"),
        (["rates=-1:4:4"], "above 0"),
        (["rates=nan"], "above 0"),
        (["rates=2,1"], "must increase"),
        (["rates=1,1"], "must increase"),
        (["rates=4:1:4"], "must increase"),
        (["rates=1:4"], "first:last:count"),
        (["rates=1:4:1"], "count"),
        (["rates=1:4:x1"], "factor"),
        (["rates=1:1e9:x1.0001"], "more than 1000"),
        (["rates=fast"], "not a number"),
        (["rates=1", "rates=2"], "given twice"),
        (["rates=1", "concurrency=1"], "exclude each other"),
        (["concurrency=1.5"], "whole"),
        (["concurrency=auto"], "not a number"),
        (["rates="], "rates=VALUE"),
        (["series="], "series=VALUE"),
        (["rates=1", "load=closed"], "load=open"),
        (["rates=1", "trace.rate=3"], "leave this out"),
        (["rates=1", "objective=capacity"], "objective=goodput"),
        (["rates=1", "attainment=1.5"], "attainment"),
        (["rates=1", "seed=0,0"], "given twice"),
        (["rates=1", "seed=x"], "whole number"),
        (["rates=1", "policy=chunked,chunked"], "the same"),
        (["rates=1", "series='policy=chunked"], "quotation"),
        (["rates=1", "model=llama3_70b"], "does not fit"),
        (["rates=1", "nonsense"], "nonsense"),
        (["rates=1", "no.such=1"], "no.such: there is no such setting"),
    ],
)
def test_a_mistake_is_one_line(arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = [] if any("policy=" in word for word in arguments) else ["policy=chunked"]
    assert typed("curve")([*arguments, *own, "trace=synthetic", "trace.limit=10", "out=results_of_this"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not Path("results_of_this").exists()


# --- runs -------------------------------------------------------------------------------------------------------------


def test_every_figure_is_that_of_the_requests_of_the_run(tmp_path: Path) -> None:
    words = [*SMALL, "trace.input.mean=2500"]
    assert typed("curve")([*words, "rates=2,20", "out=found"]) == 0
    runs = pl.read_csv("found/curve.csv")
    assert runs["bucket"].to_list() == 2 * ["all", "< 512", "512 to < 4,096", ">= 4,096"]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", overrides=[*words, "trace.rate=20"])
    job.perform(config, tmp_path / "run")
    requests = pl.read_parquet(tmp_path / "run" / "requests.parquet")
    arrival_s, e2e_s = (requests[name].to_numpy() for name in ("arrival_s", "e2e_s"))
    duration_s = np.max(arrival_s + e2e_s) - np.min(arrival_s)
    window_s = json.loads((tmp_path / "run" / "summary.json").read_text())["window_s"]
    assert 0 < requests["good"].sum() < len(requests)
    for bucket, low, high in (("all", 0, 1e9), ("< 512", 0, 512), ("512 to < 4,096", 512, 4096)):
        own = requests.filter((pl.col("input_tokens") >= low) & (pl.col("input_tokens") < high))
        row = runs.filter((pl.col("rate_rps") == 20) & (pl.col("bucket") == bucket)).row(0, named=True)
        assert row["offered"] == row["completed"] == len(own)
        assert row["offered_rps"] == pytest.approx(20 * len(own) / 120)
        assert row["slo_attainment"] == pytest.approx(np.mean(own["good"].to_numpy()))
        assert row["goodput_rps"] == pytest.approx(int(own["good"].sum()) / window_s)
        assert row["output_throughput"] == pytest.approx(int(own["output_tokens"].sum()) / duration_s)
        assert row["out_of_memory_rate"] == 0
        assert row["p99_ttft_ms"] == pytest.approx(1e3 * np.percentile(own["ttft_s"].to_numpy(), 99))
        assert row["p95_tpot_ms"] == pytest.approx(1e3 * np.percentile(own["tpot_s"].drop_nulls().to_numpy(), 95))
        assert row["median_e2el_ms"] == pytest.approx(1e3 * np.median(own["e2e_s"].to_numpy()))


def test_what_was_run_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*SMALL, "rates=2,4"]
    assert typed("curve")([*words, "out=first"]) == 0
    first = Path("first/curve.csv").read_bytes()
    measured: list[Any] = []
    real = job._measured

    def counted(*parts: Any) -> Measurement:
        measured.append(parts)
        return real(*parts)

    monkeypatch.setattr(job, "_measured", counted)
    assert typed("curve")([*words, "out=again"]) == 0
    assert not measured
    assert Path("again/curve.csv").read_bytes() == first
    assert typed("curve")([*SMALL, "rates=2,4,8", "out=more"]) == 0
    assert len(measured) == 1


def test_the_command_prints_a_table_and_leaves_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[Path] = []
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(command, "draw", lambda found, directory: drawn.append(directory))
    assert typed("curve")([*SMALL, "rates=2,4"]) == 0
    printed = capsys.readouterr()
    directory = Path(printed.err.splitlines()[-1].removeprefix("results in "))
    assert directory.parts[0] == "outputs"
    assert drawn == [directory]
    assert [path.name for path in directory.iterdir()] == ["curve.csv"]
    assert "▸ chunked: at least 90 % meet the SLO up to 4 req/s, the most that was tried" in printed.out
    assert "Besides the policy" not in printed.out


def test_the_command_says_in_what_else_than_their_words_series_differ(capsys: pytest.CaptureFixture[str]) -> None:
    other = [word for word in SMALL if not word.startswith("policy=")]
    words = ["series=policy=chunked engine.token_budget=512", "series=policy=sglang", "rates=2", "out=found"]
    assert typed("curve")([*other, *words]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Besides the policy"))
    assert line.startswith("Besides the policy, runs differ in server (")
    assert "token_budget" not in line


def test_prompts_too_long_for_memory_are_reported() -> None:
    words = ["gpu=a10g", "engine.kv_fraction=0.7", "trace.input.mean=8000", "trace.input.cv=2"]
    assert typed("curve")([*SMALL, *words, "rates=1", "out=found"]) == 0
    whole, *parts = pl.read_csv("found/curve.csv").iter_rows(named=True)
    assert whole["out_of_memory"] == sum(part["out_of_memory"] for part in parts) > 0
    assert whole["out_of_memory_rate"] == pytest.approx(whole["out_of_memory"] / 120)
    assert parts[0]["out_of_memory"] == 0
    assert whole["completed"] == 120 - whole["out_of_memory"]


def test_more_clients_are_served_until_there_is_no_more_to_give() -> None:
    assert typed("curve")([*BOTH, *SMALL[1:3], "concurrency=1:64:x4", "out=found"]) == 0
    runs = pl.read_csv("found/curve.csv").filter(pl.col("bucket") == ALL)
    assert runs["concurrency"].to_list() == 2 * [1, 4, 16, 64]
    assert runs["rate_rps"].null_count() == len(runs)
    for series in runs["series"].unique():
        served = runs.filter(pl.col("series") == series)["request_throughput"].to_numpy()
        assert np.all(np.diff(served) > 0)
        assert served[1] / served[0] > 2 > served[3] / served[2]


def test_seeds_make_intervals() -> None:
    plan = read_plan([*SMALL, "rates=4", "seed=0,1,2"])
    found = tabulated(plan, plan.jobs(), command.run(plan, Path("found")))
    goodput = found.runs.filter(pl.col("bucket") == ALL)["goodput_rps"].to_numpy()
    expected = estimate(goodput)
    assert expected.half_width > 0
    assert found.line("chunked").mean("goodput_rps") == pytest.approx([expected.mean])
    assert found.line("chunked").half_width("goodput_rps") == pytest.approx([expected.half_width])


def test_an_interrupt_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(plan: Plan, directory: Path) -> list[Outcome]:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    assert typed("curve")([*SMALL, "rates=4", "out=found"]) == 130
    assert not Path("found").exists()


# --- figures ----------------------------------------------------------------------------------------------------------


def test_refused_points_are_left_out_and_reported() -> None:
    series = Series("one", (), (1.0, 2.0))
    plan = Plan(RATE, (series,), (0,), (), 0.9, None)
    jobs = [Job(series, value, 0, ()) for value in series.values]
    refused = Outcome((), None, "it does not fit")
    found = tabulated(plan, jobs, [Outcome((), record(1.0), None), refused])
    assert found.line("one").values.tolist() == [1.0]
    assert found.refusals == ("it does not fit [one, rates 2]",)
    with pytest.raises(InputError, match="no point is left: it does not fit"):
        tabulated(plan, jobs, [refused, refused])


def test_a_point_that_is_missing_makes_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = command.run

    def some(plan: Plan, directory: Path) -> list[Outcome]:
        first, *others = real(plan, directory)
        return [first, *(Outcome(one.overrides, None, "too much") for one in others)]

    monkeypatch.setattr(command, "run", some)
    assert typed("curve")([*SMALL, "rates=4,8", "out=found"]) == 2
    assert capsys.readouterr().err.endswith("error: too much [chunked, rates 8]\n")
    assert len(pl.read_csv("found/curve.csv")) == 4


def test_saturation_by_the_clock_is_the_last_rate_up_to_which_the_slo_is_kept() -> None:
    def point(*attainments: float) -> int | None:
        return saturation(line(RATE, slo_attainment=attainments), 0.9)

    assert point(1.0, 0.95, 0.9, 0.5) == 2
    assert point(1.0, 0.8, 0.95, 0.5) == 0
    assert point(1.0, 1.0) == 1
    assert point(0.5, 0.4) is None


def test_saturation_with_clients_is_the_first_near_the_highest_throughput() -> None:
    served = [1.0, 2.0, 3.9, 4.0, 3.5]
    assert saturation(line(CONCURRENCY, request_throughput=served), 0.9) == 2


def test_undefined_figures_stay_undefined() -> None:
    found = made(seeds=(0, 1), p99_ttft_ms=None)
    assert np.isnan(found.line("one").mean("p99_ttft_ms")).all()
    assert np.isfinite(found.line("one").mean("p99_tpot_ms")).all()


def test_per_gpu_figures() -> None:
    row = made(gpus=4).runs.filter(pl.col("bucket") == ALL).row(1, named=True)
    assert row["goodput_rps_per_gpu"] == row["goodput_rps"] / 4 == 1.0
    assert row["offered_rps_per_gpu"] == 1.0


# --- table and pictures -----------------------------------------------------------------------------------------------


def printed(found: Curve) -> str:
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(report(found), highlight=False)
    return capture.get()


@pytest.mark.parametrize("axis", [RATE, CONCURRENCY])
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_the_table_fits_100_columns(axis: Axis, seeds: Sequence[int]) -> None:
    found = made(axis, seeds, labels=("one", "another with quite a long name, instances 12"))
    lines = printed(found).splitlines()
    rows = [text for text in lines if text.lstrip(" ▸").split(" ")[0] in ("1", "4", "8", "16", "32")]
    rows = [text for text in rows if "GPUs" not in text]
    assert len(rows) >= 2 * 2 * 5  # two series of five points; a wide table goes on below
    assert all(len(text.rstrip()) <= 100 for text in lines)
    assert "fitted trace" in lines[0]


def test_the_table_says_what_a_reader_must_know() -> None:
    text = printed(made())
    assert "▸ one: at least 90 % meet the SLO up to 4 req/s, not 8" in text
    assert "3.00 %" not in text
    assert "Runs are short" not in text
    assert "Runs are short: at ▸ they last up to 60 % longer" in printed(made(duration=80.0))
    assert "Seeds make no difference" in printed(made(seeds=(0, 1), request_throughput=1.0))


@pytest.mark.slow  # as those of tests/experiments/test_plot.py have
def test_pictures_have_the_same_bytes_every_time(tmp_path: Path) -> None:
    found = made(RATE, (0, 1), goodput_bound=18.0)
    with styled():
        first, again = (save(plots._goodput(found), tmp_path / name, "goodput") for name in ("first", "again"))
    for one, other in zip(first, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert not [one for one in first if b"CreationDate" in one.read_bytes()]


@pytest.mark.slow
def test_a_point_that_served_nothing_can_be_drawn(tmp_path: Path) -> None:
    series = Series("one", (), (1.0,))
    plan = Plan(CONCURRENCY, (series,), (0,), (), 0.9, None)
    nothing: dict[str, Any] = {"completed": 0, "p99_ttft_ms": None, "p99_tpot_ms": None, "request_throughput": 0.0}
    drawn = draw(tabulated(plan, plan.jobs(), [Outcome((), record(1.0, **nothing), None)]), tmp_path)
    assert [path.name for path in drawn] == [
        f"{name}.{kind}" for name in ("latency", "goodput", "buckets") for kind in ("png", "pdf", "svg")
    ]


def test_labels_keep_off_each_other_and_within_the_axes() -> None:
    rng = np.random.default_rng(0)
    with styled():
        figure = Figure(figsize=(4, 3))
        axes = figure.subplots()
        points = rng.random((60, 2))
        axes.plot(*points.T, "o")
        lay_out(figure)
        place_labels(figure, axes, [PointLabel(x, y, "1,024", "black", 1) for x, y in points])
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in axes.texts]
    assert 5 < len(boxes) < 60
    frame = axes.get_window_extent()
    for index, box in enumerate(boxes):
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert not any(box.padded(-1).overlaps(other.padded(-1)) for other in boxes[:index])


def test_a_legend_stays_within_its_picture() -> None:
    with styled():
        figure = Figure(figsize=(7, 3))
        axes = figure.subplots()
        lines = [axes.plot([0], [0], label=f"a policy with settings {index}")[0] for index in range(6)]
        legend_below(figure, lines)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= 700


def test_no_two_series_look_the_same() -> None:
    looks = [repr(series_style(index)) for index in range(28)]
    assert len(set(looks)) == 28
