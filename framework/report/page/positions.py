"""Gaps between tokens by their position in the output, as a figure."""

from __future__ import annotations

import numpy as np

from framework.metrics.by_position import by_position
from framework.metrics.phases import DecodeClock
from framework.report.page.chart import Chart
from framework.report.page.markup import Cell, Legend, Sheet, figure
from framework.report.page.scale import Scale, from_zero
from framework.result import Result


def positions(result: Result, clock: DecodeClock | None = None) -> list[str]:
    """The mean gap by position; nothing if it is unknown, or if all gaps are in one bucket."""
    found = by_position(result, clock)
    if found is None or len(found) < 2:
        return []
    edges = np.array([*(one["from_token"] for one in found), found[-1]["to_token"]], np.float64)
    means_ms = np.array([one["mean_itl_ms"] for one in found])
    label = "token of the output"
    chart = Chart(
        "Mean gap by position", Scale(edges[0], edges[-1], log=True), from_zero(means_ms), label, "mean gap (ms)"
    )
    chart.steps(edges, means_ms, "s0")
    rows: list[list[Cell]] = [
        [f"{one['from_token']:,} to {one['to_token'] - 1:,}", one["gaps"], one["mean_itl_ms"]] for one in found
    ]
    sheet = Sheet(["gap after token", "gaps", "mean (ms)"], rows)
    return [figure("TBT by position", "mean gap, the further an output has come", chart.html(), Legend(()), sheet)]
