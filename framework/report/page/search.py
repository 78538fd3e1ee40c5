"""The search for the capacity of a run: every rate that was tried, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.objective.stability import MISSED, SUSTAINED
from framework.report.page.chart import Chart, Trend
from framework.report.page.markup import Cell, Legend, Sheet, figure
from framework.report.page.scale import Scale, fitting

Floats = NDArray[np.float64]
Summary = Mapping[str, Any]
_HALVES = (("attainment_first_half", "1st half"), ("attainment", "2nd half"))


def search(summary: Summary, probes: pl.DataFrame | None) -> str | None:
    """The rates tried with the run's own requests, as a picture and a table; None if no capacity was searched."""
    if probes is None or summary.get("capacity") is None:
        return None
    own = probes.filter(pl.col("sample") == 0).sort("rate_rps")
    rates = own["rate_rps"].to_numpy().astype(np.float64)
    shares = 100 * np.minimum(*(own[name].to_numpy().astype(np.float64) for name, _ in _HALVES))
    verdicts = own["verdict"].to_list()
    x, y = fitting(rates), Scale(max(0.0, 5 * np.floor(shares.min() / 5) - 5), 102.0)
    chart = Chart("SLO kept at each rate", x, y, "request rate (requests/s)", "SLO kept (%)")
    chart.level_limit(100 * summary["capacity_attainment"], f"{100 * summary['capacity_attainment']:g} %")
    chart.upright_limit(summary["capacity"], "capacity")
    said = [verdict for verdict in dict.fromkeys([SUSTAINED, MISSED, *verdicts]) if verdict in verdicts]
    chosen = [np.array([one == verdict for one in verdicts], np.bool_) for verdict in said]
    chart.trends([_tried(rates[own_rates], shares[own_rates]) for own_rates in chosen])
    legend = Legend([(verdict, f"s{number} m{number}") for number, verdict in enumerate(said)])
    note = "the worse half of each run; a rate is sustained if both halves keep the SLO and no queue grows"
    return figure("Rates tried", note, chart.html(), legend, _rates(own))


def _tried(rates: Floats, shares: Floats) -> Trend:
    return Trend(rates, shares, shares, shares, np.zeros(len(rates), np.bool_), [""] * len(rates))


def _rates(own: pl.DataFrame) -> Sheet:
    rows: list[list[Cell]] = [
        [
            *(one["rate_rps"], *(100 * one[name] for name, _ in _HALVES), 100 * one["growth"]),
            *(one["requests"], one["simulated_s"], one["verdict"]),
        ]
        for one in own.iter_rows(named=True)
    ]
    shares = (f"{name}: SLO kept (%)" for _, name in _HALVES)
    return Sheet(["rate (requests/s)", *shares, "queue grows (%)", "requests", "simulated (s)", "verdict"], rows)
