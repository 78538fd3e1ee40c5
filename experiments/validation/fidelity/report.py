"""A comparison of predictions with measurements for people (terminal, picture) and for programs (CSV)."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich import box
from rich.table import Table
from rich.text import Text

from experiments.validation.fidelity.score import METRICS, errors, scores
from framework.cli.files import write_whole
from framework.errors import InputError

_Axes = Any  # matplotlib is an extra: without it there is no picture, and nothing to check types with
BAND = 0.25  # the shaded band of the picture: predictions within this of the measurement
_COLOURS = 128  # of a PNG: a third of the bytes, and no difference to see
_TITLES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "tokens_s_gpu": "throughput"}
_UNITS = {
    "ttft_s": ("TTFT", "s", 1.0),
    "tpot_s": ("TPOT", "ms", 1e3),
    "tokens_s_gpu": ("output", "tokens / s / GPU", 1.0),
}
# Okabe and Ito, "Color Universal Design" (2008): distinguished by colour-blind readers too.
_KINDS = {
    ("agg", "moe"): ("mixture of experts", "#E69F00", "s"),
    ("agg", "dense"): ("dense", "#0072B2", "o"),
    ("disagg", "moe"): ("disaggregated", "#009E73", "^"),
    ("disagg", "dense"): ("disaggregated", "#009E73", "^"),
}


@dataclass(frozen=True)
class Section:
    """A table: a title, the columns that name a line, and the comparison that it summarizes."""

    title: str
    by: tuple[str, ...]
    comparison: pl.DataFrame


def overview(comparison: pl.DataFrame) -> Iterator[Section]:
    """All rows by class, with and without the doubtful ones."""
    yield Section("Every row that can be replayed", ("mode", "kind"), comparison)
    yield Section("The same without doubtful rows", ("mode", "kind"), comparison.filter(~pl.col("doubtful")))


def sections(comparison: pl.DataFrame) -> Iterator[Section]:
    """The tables of the study: by class, system, model, load, at saturation, and without the doubtful rows."""
    aggregated = comparison.filter(pl.col("mode") == "agg")
    yield Section("Rows that all predictors predict", ("mode", "kind"), comparison)
    yield Section("The same without doubtful rows", ("mode", "kind"), comparison.filter(~pl.col("doubtful")))
    yield Section("Aggregated, by system and backend", ("kind", "gpu", "backend"), aggregated)
    yield Section("Aggregated, by model", ("kind", "model"), aggregated)
    yield Section("Aggregated, by decile of concurrency per GPU", ("kind", "decile"), aggregated)
    queueing = comparison.filter(pl.col("queueing"))
    if len(queueing):
        yield Section("Saturated: TTFT over a quarter of the decoding time", ("mode", "kind"), queueing)


def beyond(comparison: pl.DataFrame) -> Section:
    """The accuracy of a fit on loads that it has not seen."""
    title = "Aggregated, fitted to one half of the loads and tested on the other"
    return Section(title, ("kind", "axis", "tested"), comparison.filter(~pl.col("doubtful")))


def titled_table(title: str, *labels: str) -> Table:
    """A table under a title, so far with columns of labels."""
    table = Table(title=Text(title, "bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in labels:
        table.add_column(name, no_wrap=True)
    return table


def as_table(section: Section) -> Table:
    """The terminal's table: a line for each group and predictor."""
    table = titled_table(section.title, *section.by, "predictor")
    table.add_column("n", justify="right")
    for metric in METRICS:
        table.add_column(f"{_TITLES[metric]} MAPE %", justify="right")
        table.add_column("median %", justify="right", style="dim")
    group: tuple[object, ...] | None = None
    for line in scores(section.comparison, section.by).iter_rows(named=True):
        named = tuple(line[name] for name in section.by)
        labels = [str(value) for value in named] if named != group else [""] * len(named)
        group = named
        numbers = [f"{line[f'{metric}{part}']:{sign}.1f}" for metric in METRICS for part, sign in _PARTS]
        table.add_row(*labels, _label(line["predictor"], fitted=line["fitted"]), str(line["n"]), *numbers)
    return table


def write_errors(comparison: pl.DataFrame, folder: Path) -> Path:
    """Write every row with its errors to `errors.csv` in `folder`; return the path."""
    path = folder / "errors.csv"
    write_whole(path, errors(comparison).write_csv(float_precision=6).encode())
    return path


def write_scores(shown: Iterable[Section], folder: Path) -> Path:
    """Write the numbers of all tables to `scores.csv` in `folder`; return the path."""
    parts = []
    for section in shown:
        name = pl.concat_str([pl.col(one).cast(pl.String) for one in section.by], separator=" ")
        table = scores(section.comparison, section.by).with_columns(table=pl.lit(section.title), group=name)
        parts.append(table.select("table", "group", pl.exclude(*section.by, "table", "group")))
    path = folder / "scores.csv"
    write_whole(path, pl.concat(parts).write_csv(float_precision=2).encode())
    return path


def require_matplotlib() -> None:
    """Raise InputError without the library that `draw` needs."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("the picture needs matplotlib: pip install '.[fidelity]'")


def draw(comparison: pl.DataFrame, folder: Path) -> list[Path]:
    """Draw predictions against measurements, `scatter.svg` and `scatter.png` in `folder`; return the paths.

    A row for each predictor, a column for each metric.
    """
    shown = comparison.select("predictor", "fitted").unique(maintain_order=True).rows()
    size = (10.2, 3.25 * len(shown) + 0.4)
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(shown), len(METRICS), squeeze=False)
    for column, metric in enumerate(METRICS):
        limits = _limits(comparison, metric)
        for line, (predictor, fitted) in enumerate(shown):
            axes = panels[line, column]
            part = comparison.filter((pl.col("predictor") == predictor) & (pl.col("fitted") == fitted))
            _panel(axes, part, metric, limits)
            if column == 0:
                axes.set_title(_label(predictor, fitted=fitted), fontsize=10.5, fontweight="bold", loc="left", pad=9)
            if line == len(shown) - 1:
                axes.set_xlabel("measured " + _axis(metric), fontsize=9)
    handles, labels = _legend(panels.flat)
    found = figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9, markerscale=2.2
    )
    for handle in found.legend_handles:
        handle.set_alpha(1)
    return [save(figure, folder / f"scatter.{suffix}", suffix) for suffix in ("svg", "png")]


_PARTS = (("_mape", ""), ("_median", "+"))


def _label(predictor: str, *, fitted: bool) -> str:
    return f"{predictor}, calibrated" if fitted else predictor


def _panel(axes: _Axes, part: pl.DataFrame, metric: str, limits: tuple[float, float]) -> None:
    factor = _UNITS[metric][2]
    line = [limits[0], limits[1]]
    band = ([(1 - BAND) * value for value in line], [(1 + BAND) * value for value in line])
    axes.fill_between(line, *band, color="0.88", linewidth=0, zorder=0, label=f"within {100 * BAND:.0f} %")
    axes.plot(line, line, color="0.35", linewidth=0.9, zorder=1)
    for (mode, kind), (label, colour, marker) in _KINDS.items():
        points = part.filter((pl.col("mode") == mode) & (pl.col("kind") == kind))
        if not len(points):
            continue
        measured, predicted = (points[f"{which}_{metric}"] * factor for which in ("measured", "predicted"))
        look = {"s": 8, "marker": marker, "color": colour, "alpha": 0.35, "linewidths": 0}
        axes.scatter(measured, predicted, label=label, rasterized=True, **look)
    axes.set(xscale="log", yscale="log", xlim=limits, ylim=limits, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}".replace(",", "\N{NARROW NO-BREAK SPACE}"))
    axes.set_ylabel("predicted " + _axis(metric), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    _score_note(axes, part, metric)


def _axis(metric: str) -> str:
    name, unit, _ = _UNITS[metric]
    return f"{name} ({unit})"


def _score_note(axes: _Axes, part: pl.DataFrame, metric: str) -> None:
    score = scores(part).row(0, named=True)
    note = f"MAPE {score[f'{metric}_mape']:.0f} %\nmedian {score[f'{metric}_median']:+.0f} %\nn = {score['n']}"
    axes.text(
        0.04,
        0.96,
        note.replace("-", "\N{MINUS SIGN}"),
        transform=axes.transAxes,
        va="top",
        fontsize=8.5,
        linespacing=1.35,
    )


def _limits(comparison: pl.DataFrame, metric: str) -> tuple[float, float]:
    """The limits of both axes: all points of every predictor, with a little room."""
    factor = _UNITS[metric][2]
    values = pl.concat([comparison[f"measured_{metric}"], comparison[f"predicted_{metric}"]]) * factor
    values = values.filter(values > 0)
    spread = values.to_numpy()
    return float(spread.min()) / 1.3, float(spread.max()) * 1.3


def _legend(panels: Iterable[_Axes]) -> tuple[list[Any], list[str]]:
    """Each label once."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)


def save(figure: Any, path: Path, suffix: str) -> Path:
    """Write a picture, equal bytes for equal pictures, a PNG with 128 colours; return the path."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if suffix == "svg" else {}
    figure.savefig(buffer, format=suffix, dpi=160, metadata=metadata)
    if suffix == "png":
        from PIL import Image  # comes with matplotlib

        drawn, buffer = Image.open(buffer).convert("RGB"), io.BytesIO()
        drawn.quantize(_COLOURS).save(buffer, format="png", optimize=True)
    write_whole(path, buffer.getvalue())
    return path
