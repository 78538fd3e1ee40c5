"""Pictures for papers: what they show, that nothing in them collides, that their bytes stay, and how mistakes end."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
import yaml
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from omegaconf import OmegaConf
from PIL import Image

from experiments.plot import command
from experiments.plot.arguments import read_request
from experiments.plot.bars import bars
from experiments.plot.cdf import cdf
from experiments.plot.frame import Looks
from experiments.plot.over_time import series
from experiments.plot.pareto import pareto
from experiments.plot.slo import SCALES, attained, slo
from experiments.plot.source import groups, read_source
from experiments.plot.style import legible, styled, variant_style
from experiments.table.select import kept
from framework.errors import InputError
from framework.run.job import perform
from framework.run.store import Record, Store
from tests.experiments.test_paper_table import record
from tests.helpers.composing import configured
from tests.helpers.quick import every_second

DRAWN = {"cdf": cdf, "series": series, "bars": bars, "pareto": pareto, "slo": slo}
HOSTILE = ("a\x1b[31m\nb", "$\\frac{1", "_hidden", "<script>alert(1)</script>&amp;", "日本語 policy", "x" * 300)


def run_of(directory: Path, policy: str = "chunked", seed: int = 0, **changes: Any) -> Path:
    """The files of a run that never was; `changes` are of its settings, with __ for dots, or of its summary."""
    settings = {name.replace("__", "."): value for name, value in changes.items() if "__" in name}
    figures = {name: value for name, value in changes.items() if "__" not in name}
    rng = np.random.default_rng([seed, *policy.encode()])
    speed = 1 + len(policy) % 4
    count = 120
    ttft_s, tpot_s = rng.lognormal(-1, 0.8, count) / speed, rng.lognormal(-3.2, 0.4, count) / speed
    unserved = np.arange(count) % 40 == 39
    requests = pl.DataFrame(
        {
            "state": np.where(unserved, "failed", "finished"),
            "ttft_s": np.where(unserved, np.nan, ttft_s),
            "tpot_s": np.where(unserved, np.nan, tpot_s),
            "tbt_p99_s": tpot_s * 2,
            "e2e_s": ttft_s + 100 * tpot_s,
            "queue_s": ttft_s / 2,
        }
    ).with_columns(pl.col("ttft_s", "tpot_s").fill_nan(None))
    good = ~unserved & (ttft_s <= 2.0) & (tpot_s <= 0.05)
    windows = 40
    rows = {"start_s": 5.0 + 10.0 * np.arange(windows), "window_s": np.full(windows, 10.0)}
    columns = {name: rng.random(windows) for name in ("queue", "utilization", "attainment", "decode_kv_share")}
    columns["arrivals"] = rng.integers(0, 90, windows).astype(float)
    whole = pl.DataFrame({**rows, "pool": [None] * windows, **columns}, schema_overrides={"pool": pl.String})
    pools = [whole.with_columns(pl.lit(name).alias("pool"), pl.col("utilization") * share) for name, share in POOLS]
    directory.mkdir(parents=True, exist_ok=True)
    requests.write_parquet(directory / "requests.parquet")
    pl.concat([whole, *pools]).write_parquet(directory / "series.parquet")
    gaps = pl.DataFrame({"gap_s": np.linspace(0.01, 0.2, 50) / speed, "share": np.arange(1, 51) / 50})
    gaps.write_parquet(directory / "gaps.parquet")
    made = record("chunked", seed=seed)
    summary = {
        **made.summary, "policy": policy, "goodput_rps": 8.0 + speed + seed / 3,
        "slo_attainment": float(good.mean()),
        "duration": 400.0, "offered": count, "p99_tpot_ms": 40.0, "gpus_on": 5.0, "gpu_hours": 0.5,
        "usd_per_hour": 18.0, **figures,
    }  # fmt: skip
    (directory / "summary.json").write_text(json.dumps(summary))
    config = OmegaConf.create({"policy": {"_target_": "x.Y"}})
    for name, value in {**made.config, "trace.rate": 8.0, **settings}.items():
        OmegaConf.update(config, name, value)
    (directory / ".hydra").mkdir(exist_ok=True)
    OmegaConf.save(config, directory / ".hydra" / "config.yaml")
    choices = {**made.choices, "policy": policy}
    (directory / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": {"runtime": {"choices": choices}}}))
    return directory


POOLS = (("prefill", 0.5), ("decode", 0.9))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three policies with three seeds each."""
    place = tmp_path_factory.mktemp("runs")
    for policy, seed in itertools.product(("chunked", "ares", "distserve"), range(3)):
        run_of(place / f"{policy}{seed}", policy, seed)
    return place


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Policies at several rates and sizes."""
    place = tmp_path_factory.mktemp("store")
    for policy, seed, rate in itertools.product(("chunked", "ares", "distserve"), range(3), (4.0, 8.0, 12.0)):
        share = {"chunked": 0.9, "ares": 0.95, "distserve": 0.8}[policy] - rate / 40 + seed / 100
        one = record(
            policy, seed=seed, config={"trace.rate": rate}, slo_attainment=share, duration=100.0, usd_per_hour=108.0
        )
        Store(place).put(Record(f"{policy}{seed}{rate:g}", one.config, one.choices, one.summary, one.value))
    return place


def made(*words: str) -> Figure:
    """The picture of a command line, laid out."""
    request = read_request(command.main.read(words))
    source = read_source(request.places)
    with styled():
        records = kept(source.records, request.filters)
        figure = DRAWN[request.kind](source, records, request, Looks(source.policies)).figure
        figure.draw_without_rendering()
    return figure


def every(runs: Path, *policies: str) -> list[str]:
    return [str(path) for path in sorted(runs.iterdir()) if not policies or path.name.startswith(policies)]


PICTURES = {
    "cdf": ("cdf", "RUNS", "metric=ttft,tpot"),
    "cdf of all": ("cdf", "RUNS", "metric=ttft,tpot,tbt,tbt_p99,e2e", "width=double"),
    "series": ("series", "RUNS", "seed=0"),
    "series of one": ("series", "RUNS", "seed=0", "policy=ares", "metric=utilization,arrivals", "width=double"),
    "bars": ("bars", "RUNS", "metric=goodput_rps,p99_ttft_ms"),
    "bars in groups": ("bars", "STORE", "columns=trace.rate", "width=double"),
    "pareto": ("pareto", "RUNS"),
    "pareto by size": ("pareto", "RUNS", "x=gpu_hours", "metric=p99_ttft_ms", "width=double"),
    "slo": ("slo", "RUNS"),
    "slo by rate": ("slo", "STORE", "x=trace.rate", "metric=slo_attainment,goodput_rps", "width=double"),
}


def arguments_of(name: str, runs: Path, store: Path) -> list[str]:
    places = {"RUNS": every(runs), "STORE": [str(store)]}
    return [one for word in PICTURES[name] for one in places.get(word, [word])]


@pytest.fixture(params=every_second(PICTURES), scope="module")
def picture(request: pytest.FixtureRequest, runs: Path, store: Path) -> Figure:
    return made(*arguments_of(request.param, runs, store))


# --- how they look ----------------------------------------------------------------------------------------------------


def texts_of(figure: Figure) -> list[Text]:
    """All that is written and seen: tick labels beyond the ends of an axis are not."""
    seen = []
    for one in figure.findobj(Text):
        assert isinstance(one, Text)
        if one.get_visible() and one.get_text().strip() and (one.axes is None or one.axes.get_visible()):
            seen.append(one)
    unseen = {
        tick
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_majorticklabels(), *axis.get_minorticklabels())
    }
    shown = {
        one.label1
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for one in axis._update_ticks()  # type: ignore[union-attr]
    }
    return [one for one in seen if one not in unseen or one in shown]


def test_nothing_collides_and_nothing_is_cut_off(picture: Figure) -> None:
    boxes = [(one.get_text(), one.get_window_extent()) for one in texts_of(picture)]
    width, height = picture.bbox.width, picture.bbox.height
    assert len(boxes) > 6
    for text, box in boxes:
        assert box.x0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= height + 1, text
    for (text, box), (other, its) in itertools.combinations(boxes, 2):
        assert not box.padded(-1).overlaps(its.padded(-1)), (text, other)


def test_axes_have_names_with_units(picture: Figure) -> None:
    for axes in (one for one in picture.axes if one.get_visible()):
        assert re.search(r"\(.+\)", axes.get_ylabel().replace("\n", " ")), axes.get_ylabel()
    assert any(axes.get_xlabel() for axes in picture.axes) or len(picture.legends) == 1


def test_one_colour_a_policy_in_all_pictures(runs: Path) -> None:
    found = []
    for kind in ("cdf", "bars", "slo", "pareto"):
        figure = made(kind, *every(runs))
        handles: list[Any] = list(figure.legends[0].legend_handles)
        names = [text.get_text() for text in figure.legends[0].get_texts()]
        colours = [one.get_facecolor() if hasattr(one, "get_facecolor") else one.get_color() for one in handles]
        found.append({name: to_hex(colour) for name, colour in zip(names, colours, strict=True) if "none" not in name})
    assert found[0].keys() == {"chunked", "ares", "distserve"}
    assert len(set(found[0].values())) == 3
    assert all(one == found[0] for one in found)


def test_a_policy_keeps_its_colour_among_fewer(runs: Path, store: Path, tmp_path: Path) -> None:
    """`colours=` is the order of another place, and filters change no colour."""
    colours = []
    for words in (["policy=distserve"], [], ["policy=distserve", f"colours={store}"]):
        command.main(["cdf", *every(runs), *words, f"out={tmp_path / 'p'}", "formats=svg", "metric=ttft", "note=false"])
        colours.append(set(re.findall(r"stroke: (#[0-9a-f]{6})", (tmp_path / "p.svg").read_text())))
    assert "#009e73" in colours[0]
    assert "#0072b2" not in colours[0]
    assert colours[1] >= {"#009e73", "#0072b2", "#d55e00"}
    assert "#009e73" in colours[2]


def test_settings_of_one_policy_are_told_apart_in_shade_marker_and_dashes() -> None:
    looks = [variant_style(1, number, 4) for number in range(4)]
    for key in ("color", "marker", "linestyle"):
        assert len({repr(one[key]) for one in looks}) == 4


SLOW = pytest.mark.slow


@pytest.mark.parametrize("names", [["bars"], pytest.param([*PICTURES], marks=SLOW)], ids=len)
def test_the_same_runs_give_the_same_bytes(names: list[str], runs: Path, store: Path, tmp_path: Path) -> None:
    for name in names:
        for again in ("first", "second"):
            words = arguments_of(name, runs, store)
            command.main([*words, f"out={tmp_path / again / name}", "formats=pdf,png,svg", "dpi=40"])
    made = sorted((tmp_path / "first").iterdir())
    assert len(made) == 3 * len(names)
    for path in made:
        content = path.read_bytes()
        assert content == (tmp_path / "second" / path.name).read_bytes()
        assert not re.search(rb"CreationDate|ModDate|Matplotlib v|<dc:date>", content)


@pytest.mark.parametrize(("width", "inches"), [("single", 3.3), ("double", 7.0)])
def test_pictures_have_the_width_of_a_column(width: str, inches: float, runs: Path, tmp_path: Path) -> None:
    command.main(["bars", *every(runs), f"width={width}", "dpi=100", "formats=png", f"out={tmp_path / 'p'}"])
    with Image.open(tmp_path / "p.png") as shown:
        assert shown.width == round(100 * inches)


def test_the_command_says_in_what_else_than_the_policy_runs_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alike: dict[str, Any] = {"trace__rate": 4.0, "engine__token_budget": 2048}
    places = [
        run_of(tmp_path / "1", "chunked", server__name="vllm_v1", **alike),
        run_of(tmp_path / "2", "ares", server__name="none", **alike),
        run_of(tmp_path / "3", "ares", server__name="none", **(alike | {"engine__token_budget": 512})),
    ]
    command.main(["bars", *map(str, places), f"out={tmp_path / 'p'}", "formats=svg"])
    message = capsys.readouterr().out.splitlines()[-1]  # not what was swept over within a policy
    assert message == "Besides the policy, runs differ in server (vllm_v1; none: ares)."


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bars", *(pytest.param(kind, marks=SLOW) for kind in ("cdf", "slo", "pareto"))])
def test_hostile_names_stay_text(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [str(run_of(tmp_path / str(at), name, trace=name)) for at, name in enumerate(HOSTILE)]
    command.main([kind, *places, f"out={tmp_path / 'p'}", "formats=svg,pdf", "dpi=40"])
    drawn = (tmp_path / "p.svg").read_bytes()
    ElementTree.fromstring(drawn)
    assert b"\x1b" not in drawn
    assert b"<script" not in drawn
    assert "\x1b" not in capsys.readouterr().err
    with styled():
        labels = [text.get_text() for text in made(kind, *places).legends[0].get_texts()]
    names = [legible(name).strip()[:20] for name in sorted(HOSTILE)]
    assert [label.strip()[:20] for label in labels][: len(HOSTILE)] == names
    assert all(label.isprintable() for label in labels)
    figure = made(kind, *places)
    assert figure.legends[0].get_window_extent().x1 <= figure.bbox.width


# --- what they show ---------------------------------------------------------------------------------------------------


def data_of(line: Line2D) -> Any:
    """Its points, shape (points, 2)."""
    return np.column_stack([np.asarray(one, np.float64) for one in line.get_data()])


def test_a_line_of_the_distribution_is_that_of_all_requests(runs: Path) -> None:
    """Those that failed never come: the line ends below 100 %."""
    (axes,) = made("cdf", *every(runs, "ares0"), "metric=ttft").axes
    line = axes.lines[0]
    table = pl.read_parquet(runs / "ares0" / "requests.parquet")
    for x, y in data_of(line).tolist():
        assert y == pytest.approx(100 * table.filter(pl.col("ttft_s") <= x).height / len(table))
    assert data_of(line)[-1, 1] < 98
    (limit,) = [one for one in axes.lines if one.get_linestyle() == ":"]
    assert set(data_of(limit)[:, 0]) == {2.0}


def test_gaps_are_those_of_their_file(runs: Path) -> None:
    (axes,) = made("cdf", *every(runs, "ares0"), "metric=tbt").axes
    assert axes.get_ylabel() == "gaps (%)"
    table = pl.read_parquet(runs / "ares0" / "gaps.parquet")
    gap_ms, share = table["gap_s"].to_numpy() * 1e3, table["share"].to_numpy()
    for x, y in data_of(axes.lines[0]).tolist():
        assert y == pytest.approx(100 * share[gap_ms <= x].max(initial=0.0))


def test_seeds_make_one_line_with_a_band(runs: Path) -> None:
    (axes,) = made("cdf", *every(runs), "metric=tpot").axes
    assert len([one for one in axes.lines if one.get_linestyle() not in (":", "None")]) == 3
    medians = [data_of(one)[0, 1] for one in axes.lines if one.get_linestyle() == "None"]
    assert medians == [50.0] * 3
    assert len(axes.collections) == 3


def test_bars_are_means_with_students_interval(runs: Path) -> None:
    (axes,) = made("bars", *every(runs)).axes
    assert [cast(Rectangle, bar).get_height() for bar in axes.patches] == pytest.approx(
        [8 + speed + 1 / 3 for speed in (1, 4, 2)]
    )
    half = 4.302653 * (1 / 3) / np.sqrt(3)
    ends = axes.collections[0].get_segments()[0][:, 1]  # type: ignore[attr-defined]
    assert ends == pytest.approx([9 + 1 / 3 - half, 9 + 1 / 3 + half], rel=1e-6)


def test_the_front_joins_what_nothing_beats(tmp_path: Path) -> None:
    sizes = {1: (2, 5.0), 2: (4, 9.0), 3: (6, 8.0), 4: (8, 12.0), 5: (4, 3.0)}
    for number, (gpus, goodput) in sizes.items():
        run_of(tmp_path / str(number), cluster__instances=number, gpus=gpus, goodput_rps=goodput)
    (axes,) = made("pareto", *every(tmp_path), "x=gpus").axes
    front = next(line for line in axes.lines if line.get_drawstyle() == "steps-post")
    assert data_of(front).tolist() == [[2, 5], [4, 9], [8, 12]]
    assert {text.get_text() for text in axes.texts} == {"instances 1", "instances 2", "instances 4"}


def test_pictures_mark_latencies_of_overloaded_runs(tmp_path: Path) -> None:
    """Hollow, with their meaning in the legend; a goodput is none the worse for it."""
    run_of(tmp_path / "calm", "chunked", load_state="stable", p99_ttft_ms=400.0)
    run_of(tmp_path / "over", "ares", load_state="overloaded", p99_ttft_ms=900.0)
    run_of(tmp_path / "calmer", "distserve", load_state="backlogged", p99_ttft_ms=300.0)
    for metric, fills in (("p99_ttft_ms", 1), ("goodput_rps", 0)):
        figure = made("pareto", *every(tmp_path), f"metric={metric}", "x=gpus")
        marks = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", None, "")]
        assert [line.get_markerfacecolor() for line in marks].count("white") == fills
        assert ("hollow: overloaded, grows with the run" in told_by(figure)) == bool(fills)
    (bars,) = made("bars", *every(tmp_path), "metric=p99_ttft_ms").axes
    assert sum(cast(Rectangle, bar).get_facecolor()[:3] == (1, 1, 1) for bar in bars.patches) == 1
    assert "ares (overloaded)" in told_by(made("cdf", *every(tmp_path)))


@pytest.mark.parametrize("kind", every_second(["bars", "cdf", "pareto", "series", "slo"]))
def test_pictures_tell_of_windows_that_are_too_short(kind: str, tmp_path: Path) -> None:
    more = ["x=gpus"] if kind == "pareto" else []
    run_of(tmp_path / "short", "chunked", window_is_short=True)
    run_of(tmp_path / "long", "ares", window_is_short=False)
    said = " ".join(told_by(made(kind, *every(tmp_path), *more)).split())
    assert "flatters all figures (1 of 2 runs: chunked)" in said
    assert "under 5 times" not in told_by(made(kind, str(tmp_path / "long"), *more))
    assert "flatters all figures (" not in told_by(made(kind, str(tmp_path / "short"), *more))


def told_by(figure: Figure) -> str:
    """All that is written in a picture."""
    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_attainment_at_scale_one_is_that_of_the_run(tmp_path: Path) -> None:
    """Of a run of the engine, with limits on gaps and on a reader's wait too."""
    config = configured(
        "policy=chunked", "trace=synthetic", "trace.requests=80", "trace.arrivals.rate=30", "slo.ttft_s=0.2",
        "slo.tpot_s=0.02", "slo.tbt_p99_s=0.03", "slo.reader_wait_s=0.001", "slo.reading_tokens_s=60",
    )  # fmt: skip
    summary = perform(config, tmp_path).evaluation.summary
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(config, tmp_path / ".hydra" / "config.yaml")
    content = {"hydra": {"runtime": {"choices": {"policy": "chunked"}}}}
    (tmp_path / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(content))
    source = read_source([tmp_path])
    shares = attained(source, source.records[0])
    assert 0 < summary["slo_attainment"] < 1
    assert shares[list(SCALES).index(1.0)] == pytest.approx(summary["slo_attainment"])
    assert (np.diff(shares) >= 0).all()


def test_classes_have_limits_of_their_own(tmp_path: Path) -> None:
    own = run_of(tmp_path / "one", slo__classes={"batch": {"ttft_s": 1000.0, "tpot_s": None}})
    table = pl.read_parquet(own / "requests.parquet")
    table.with_columns(pl.lit("batch").alias("slo_class")).write_parquet(own / "requests.parquet")
    source = read_source([own])
    assert attained(source, source.records[0])[0] == pytest.approx((table["state"] == "finished").mean())


def test_groups_are_told_apart_by_as_few_settings_as_do(tmp_path: Path) -> None:
    for number, (prefill, chunk) in enumerate(itertools.product((1, 2), (256, 512))):
        run_of(tmp_path / f"a{number}", cluster__prefill=prefill, engine__token_budget=chunk)
    run_of(tmp_path / "b", "ares")
    source = read_source([Path(place) for place in every(tmp_path)])
    labels = [one.label for one in groups(source.records, "seed", (), {})]
    assert labels == [
        "ares",
        *(f"chunked, token_budget {chunk}, prefill {at}" for chunk in (256, 512) for at in (1, 2)),
    ]
    assert [one.label for one in groups(source.records, "seed", (), {"policy": "chunked,ares"})][-1] == "ares"


def test_a_twin_is_named(tmp_path: Path) -> None:
    figure = made("bars", str(run_of(tmp_path, trace_source="twin")))
    assert "fitted trace, not a recording" in figure.get_suptitle()
    assert made("bars", str(tmp_path), "note=false").get_suptitle() == ""


# --- mistakes ---------------------------------------------------------------------------------------------------------


def refusal(words: Sequence[str], out: Path | None = None) -> str:
    with pytest.raises(InputError) as refused:
        command.main([*words, f"out={out}"] if out else list(words))
    return str(refused.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pareta"], "did you mean pareto?"),
        (["cdf", "width=3"], "width=3: choose one of single, double"),
        (["cdf", "formats=gif"], "formats=gif: choose from png, pdf, svg"),
        (["cdf", "dpi=high"], "dpi=high: must be a whole number"),
        (["cdf", "out=a.pdf"], "give the name without an ending, as out=a"),
        (["cdf", "x=gpus"], "plot cdf has no such option"),
        (["cdf", "=3"], "not understood"),
        (["bars", "note=false", "note=true"], "note is given twice"),
        (["cdf", "nowhere"], "nowhere: is no directory"),
    ],
)
def test_mistakes_of_words_are_one_line(words: list[str], message: str) -> None:
    assert message in refusal(words)


SAID: Mapping[tuple[str, ...], str] = {
    ("cdf", "STORE"): "name directories",
    ("cdf", "RUNS", "metric=itl"): "metric=itl: ",
    ("series", "RUNS", "metric=goodput"): "metric=goodput: ",
    ("bars", "RUNS", "metric=goodput"): "did you mean goodput_rps",
    ("slo", "STORE", "x=trace.rat"): "did you mean trace.rate",
    ("slo", "STORE", "x=trace.name"): "must be a number in all runs",
    ("slo", "RUNS", "metric=p99_ttft_ms"): "with x=scale it is one of",
    ("pareto", "STORE"): "these differ in trace.rate (12.0, 4.0, 8.0): choose one",
    ("pareto", "RUNS", "metric=offered"): "neither more nor less of offered is better",
    ("cdf", "RUNS", "policy=orca"): "policy=orca: no run is left",
}


@pytest.mark.parametrize("words", SAID, ids=" ".join)
def test_runs_that_cannot_be_drawn_are_refused(words: tuple[str, ...], runs: Path, store: Path, tmp_path: Path) -> None:
    places = {"RUNS": every(runs), "STORE": [str(store)]}
    assert SAID[words] in refusal([one for word in words for one in places.get(word, [word])], tmp_path / "p")
    assert not list(tmp_path.iterdir())


def test_a_run_without_the_file_says_how_to_get_it(tmp_path: Path) -> None:
    for name in ("series.parquet", "gaps.parquet"):
        (run_of(tmp_path / "one") / name).unlink()
        kind = "series" if name.startswith("series") else "cdf"
        assert "output." in refusal([kind, str(tmp_path / "one"), *(["metric=tbt"] if kind == "cdf" else [])])
    (tmp_path / "one" / "series.parquet").unlink()
    assert "output.series_s=10" in refusal(["series", str(tmp_path / "one")])
    (tmp_path / "one" / "requests.parquet").write_bytes(b"no table")
    assert "cannot be read" in refusal(["cdf", str(tmp_path / "one")])


def test_limits_that_the_files_do_not_tell_of_cannot_be_scaled(tmp_path: Path) -> None:
    assert "slo.tbt_tail_s is in force" in refusal(["slo", str(run_of(tmp_path, slo__tbt_tail_s=0.3))])


def test_one_run_twice_is_refused(tmp_path: Path) -> None:
    places = [str(run_of(tmp_path / name)) for name in ("one", "other")]
    assert "2 runs have the same settings and the same seed" in refusal(["cdf", *places])
    made("cdf", places[0], places[0])
