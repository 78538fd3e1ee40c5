"""Stages in open loop compared with closed loops, for people (terminal, picture) and for programs (CSV)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Table

from experiments.validation.fidelity.campaigns import METRICS
from experiments.validation.fidelity.report import Section, as_table, save, titled_table
from framework.cli.files import write_whole
from framework.timing.calibration_terms import Calibration

_NAMES = {"ttft_ms_p50": "TTFT, median", "ttft_ms_mean": "TTFT, mean", "tpot_ms_mean": "TPOT, mean"}
# Okabe and Ito, "Color Universal Design" (2008), by fit.
_LOOKS = (("#999999", "x"), ("#56B4E9", "s"), ("#0072B2", "o"), ("#D55E00", "D"))


@dataclass(frozen=True)
class Record:
    """Both directions between the campaigns.

    `stages`: as in `campaigns.compared`; `closed_loops`: a comparison of the rows of the stages' GPU and backend,
    without a fit and by a fit to the stages alone; `terms`: those fitted to everything, by kind.
    """

    stages: pl.DataFrame
    closed_loops: pl.DataFrame
    terms: Mapping[str, Calibration]


def stage_tables(record: Record) -> Iterator[Table]:
    """The terminal's tables: each stage by each fit, their means, and closed loops by the fit to stages."""
    shown = with_errors(record.stages)
    table = _table("Stages in open loop that a fit has not seen, by what it has: errors in percent", "stage", "fit")
    for line in shown.iter_rows(named=True):
        table.add_row(line["stage"], line["fit"], *(f"{line[f'error_{metric}']:+.1f}" for metric in METRICS))
    yield table
    table = _table("Their mean absolute and largest errors in percent", "fit")
    for line in means(record.stages).iter_rows(named=True):
        cells = (f"{line[f'{metric}_mape']:.1f} ({line[f'{metric}_most']:.1f})" for metric in METRICS)
        table.add_row(line["fit"], *cells)
    yield table
    title = "Closed loops on the same GPU and backend, by what was fitted to the stages alone"
    yield as_table(Section(title, ("kind",), record.closed_loops.filter(~pl.col("doubtful"))))


def with_errors(stages: pl.DataFrame) -> pl.DataFrame:
    """The lines of `campaigns.compared` with the signed error of each metric in percent."""
    ratio = {metric: pl.col(f"predicted_{metric}") / pl.col(f"measured_{metric}") for metric in METRICS}
    return stages.with_columns((100 * (ratio[metric] - 1)).alias(f"error_{metric}") for metric in METRICS)


def means(stages: pl.DataFrame) -> pl.DataFrame:
    """For each fit the mean absolute and the largest error of each metric, `<metric>_mape` and `<metric>_most`."""
    errors = {metric: pl.col(f"error_{metric}").abs() for metric in METRICS}
    return (
        with_errors(stages)
        .group_by("fit", maintain_order=True)
        .agg(
            *(error.mean().alias(f"{metric}_mape") for metric, error in errors.items()),
            *(error.max().alias(f"{metric}_most") for metric, error in errors.items()),
        )
    )


def write_stages(record: Record, folder: Path) -> list[Path]:
    """Write stages.csv, stages.svg and stages.png into `folder`; the paths."""
    path = folder / "stages.csv"
    write_whole(path, with_errors(record.stages).write_csv(float_precision=4).encode())
    return [path, *draw_stages(record.stages, folder)]


def draw_stages(stages: pl.DataFrame, folder: Path) -> list[Path]:
    """Draw the error of each stage by each fit, median TTFT next to mean TPOT; the paths."""
    shown = with_errors(stages)
    names, fits = shown["stage"].unique(maintain_order=True), shown["fit"].unique(maintain_order=True)
    figure: Any = importlib.import_module("matplotlib.figure").Figure(figsize=(9.2, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, metric in zip(panels, ("ttft_ms_p50", "tpot_ms_mean"), strict=True):
        axes.axvspan(-10, 10, color="0.92", linewidth=0, zorder=0)
        axes.axvline(0, color="0.35", linewidth=0.9, zorder=1)
        for fit, (colour, marker) in zip(fits, _LOOKS, strict=True):
            errors = shown.filter(pl.col("fit") == fit)[f"error_{metric}"].to_list()
            axes.scatter(errors, range(len(names)), s=34, color=colour, marker=marker, label=fit, zorder=2)
        axes.set_xlabel(f"error of {_NAMES[metric]} (%)", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
    panels[0].set_yticks(range(len(names)), names.to_list())
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return [save(figure, folder / f"stages.{suffix}", suffix) for suffix in ("svg", "png")]


def _table(title: str, *labels: str) -> Table:
    table = titled_table(title, *labels)
    for metric in METRICS:
        table.add_column(_NAMES[metric], justify="right")
    return table
