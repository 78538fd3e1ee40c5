"""The table and the heat map of `experiments.validation.optimum`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.table import Table

from experiments.validation.optimum.solve import Optimum
from framework.cli.files import write_whole
from framework.report.table_words import open_table

_HEADINGS = {
    "model": "model",
    "trace": "trace",
    "policy": "policy",
    "rate": "req/s\noffered",
    "points": "\npoints",
    "layout": "best\nP:D, TP",
    "chunk": "\nchunk",
    "goodput": "goodput\nreq/s",
    "attainment": "SLO\nmet %",
    "near": "points\nwithin 2 %",
    "gap": "searches:\nbelow best",
    "worst": "\nat most",
    "trials": "within 2 %\nafter",
}


def rows(solved: Sequence[Optimum], near: float) -> list[dict[str, Any]]:
    """One row for each scenario: the best of all points, and the searches' results (medians)."""
    found = []
    for one in solved:
        settings, summary = one.points[one.best].settings, one.summaries[one.best]
        found.append(
            {
                "model": one.scenario.model,
                "trace": one.scenario.trace,
                "policy": one.scenario.policy,
                "rate": one.scenario.rate,
                "points": len(one.values),
                "layout": layout(settings),
                "chunk": settings["engine.token_budget"],
                "goodput": one.values[one.best],
                "attainment": summary["slo_attainment"],
                "near": one.share_near(near),
                "gap": float(np.median(one.gaps())),
                "worst": float(one.gaps().max()),
                "trials": float(np.median(one.trials_to(near))),
                "order": settings.get("policy.order"),
                "max_batch": settings.get("engine.max_batch"),
            }
        )
    return found


def layout(settings: Any) -> str:
    """Instances and their GPUs: 3×2 : 1×2 for three prefill and one decode instance of two GPUs each."""
    if "cluster.instances" in settings:
        return f"{settings['cluster.instances']}×{settings['cluster.tp']}"
    pools = [f"{settings[f'cluster.{pool}']}×{settings[f'cluster.{pool}_tp']}" for pool in ("prefill", "decode")]
    return " : ".join(pools)


def table(solved: Sequence[Optimum], near: float) -> Table:
    """The table for the terminal."""
    shown = open_table()
    for key, heading in _HEADINGS.items():
        shown.add_column(
            heading, justify="left" if key in ("model", "trace", "policy", "layout") else "right", no_wrap=True
        )
    for row in rows(solved, near):
        shown.add_row(*(_cell(key, row[key]) for key in _HEADINGS))
    return shown


def write(out: Path, solved: Sequence[Optimum], near: float) -> None:
    """optimum.csv, optimum.md, and points.csv with every point of every scenario."""
    summary = rows(solved, near)
    write_whole(out / "optimum.csv", pl.DataFrame(summary).write_csv().encode())
    lines = [" | ".join(heading.replace("\n", " ").strip() for heading in _HEADINGS.values())]
    lines.append(" | ".join("---" for _ in _HEADINGS))
    lines += [" | ".join(_cell(key, row[key]) for key in _HEADINGS) for row in summary]
    write_whole(out / "optimum.md", "".join(f"| {line} |\n" for line in lines).encode())
    points = [
        {"scenario": one.scenario.name, **one.points[key].settings, "goodput": value}
        for one in solved
        for key, value in one.values.items()
    ]
    write_whole(out / "points.csv", pl.DataFrame(points, infer_schema_length=None).write_csv().encode())


def draw(out: Path, solved: Sequence[Optimum]) -> None:
    """heatmap.png: for each scenario the best goodput by layout and chunk size, as a share of the best of all."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(4, len(solved))
    lines = -(-len(solved) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(3.1 * columns + 0.8, 3.0 * lines), squeeze=False)
    for place in axes.flat[len(solved) :]:
        place.set_visible(False)
    image = None
    for place, one in zip(axes.flat, solved, strict=False):
        ups, chunks, grid = _grid(one)
        image = place.imshow(grid, vmin=0, vmax=1, cmap="viridis", aspect="auto", origin="lower")
        place.set_xticks(range(len(chunks)), [f"{chunk // 1024}K" if chunk >= 1024 else str(chunk) for chunk in chunks])
        place.set_yticks(range(len(ups)), [str(up) for up in ups])
        place.tick_params(labelsize=7)
        place.set_title(f"{one.scenario.policy}, {one.scenario.model}, {one.scenario.trace}", fontsize=8)
        top = np.unravel_index(np.nanargmax(grid), grid.shape)
        place.plot(top[1], top[0], marker="*", color="white", markeredgecolor="black", markersize=11)
        is_mixed = "cluster.instances" in next(iter(one.points.values())).settings
        place.set_ylabel("GPUs per instance (TP)" if is_mixed else "GPUs that prefill", fontsize=8)
        place.set_xlabel("chunk size (tokens)", fontsize=8)
    assert image is not None
    figure.tight_layout(rect=(0, 0, 0.93, 1))
    bar = figure.colorbar(image, cax=figure.add_axes((0.945, 0.12, 0.012, 0.76)))
    bar.set_label("goodput / best", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130, metadata={"Software": None})
    plt.close(figure)
    write_whole(out / "heatmap.png", content.getvalue())


def _grid(one: Optimum) -> tuple[list[int], list[int], np.ndarray]:
    """Best goodput by (GPUs that prefill or TP, chunk size), as a share of the best of all; NaN for an empty cell."""
    best: dict[tuple[int, int], float] = {}
    for key, value in one.values.items():
        settings = one.points[key].settings
        up = (
            settings["cluster.tp"]
            if "cluster.instances" in settings
            else settings["cluster.prefill"] * settings["cluster.prefill_tp"]
        )
        cell = (int(up), int(settings["engine.token_budget"]))
        best[cell] = max(best.get(cell, 0.0), value)
    ups, chunks = sorted({up for up, _ in best}), sorted({chunk for _, chunk in best})
    top = max(best.values())
    return ups, chunks, np.array([[best.get((up, chunk), np.nan) / top for chunk in chunks] for up in ups])


def _cell(key: str, value: Any) -> str:
    match key:
        case "attainment":
            return f"{100 * value:.1f}"
        case "near":
            return f"{100 * value:.1f} %"
        case "gap" | "worst":
            return f"{100 * value:.1f} %"
        case "trials":
            return "–" if np.isinf(value) else f"{value:.0f}"
        case "goodput":
            return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
        case "rate":
            return f"{value:g}"
        case "points" | "chunk":
            return f"{value:,}"
    return str(value)
