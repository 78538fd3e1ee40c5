"""The accuracy of a fit beyond its loads: fitted to one side of an axis, tested on the other.

Rows of each GPU and backend are divided at the median of their requests in flight, and of their prompts. For
comparison, kernels with the server's terms are shown without a fit, as a run uses them outside of its calibration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from experiments.validation.fidelity.fit import Cell, Floats, Run, Surfaces, calibration, fit_all, terms_of
from experiments.validation.fidelity.replay import Replay, Replayed
from experiments.validation.fidelity.rows import Row
from experiments.validation.fidelity.score import compare
from experiments.validation.fidelity.server import Client

AXES: Mapping[str, Callable[[Row], float]] = {
    "in flight": lambda row: row.concurrency,
    "prompt tokens": lambda row: row.isl,
}
UNFITTED, BEYOND = "nothing fitted", "fitted to the other side"


def beyond(rows: Sequence[Row], clients: Mapping[str, Client], surfaces: Surfaces, run: Run) -> pl.DataFrame:
    """A comparison (`score.py`) with `axis` and `tested`, below or above the median, of each test."""
    parts = []
    for axis, tested, training, test in _sides(rows):
        found = fit_all(training, clients, surfaces)
        nothing: Mapping[Cell, Floats] = {(): surfaces.prior.centre}
        for name, terms in ((UNFITTED, nothing), (BEYOND, found)):
            outcomes = run([Replay(row, clients[row.key], calibration(terms_of(row, terms))) for row in test])
            known = {row.key: one for row, one in zip(test, outcomes, strict=True) if isinstance(one, Replayed)}
            if known:
                compared = compare(test, known, name, fitted=False)
                parts.append(compared.with_columns(axis=pl.lit(axis), tested=pl.lit(tested)))
    return pl.concat(parts) if parts else pl.DataFrame()


def _sides(rows: Sequence[Row]) -> Iterator[tuple[str, str, list[Row], list[Row]]]:
    """(axis, side tested, rows to fit, rows to test)."""
    for axis, of in AXES.items():
        cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in rows:
            cells[row.backend, row.gpu].append(row)
        below: list[Row] = []
        above: list[Row] = []
        for members in cells.values():
            values = np.array([of(row) for row in members])
            high = values > np.median(values) if values.max() > np.median(values) else values == values.max()
            below += [row for row, is_high in zip(members, high, strict=True) if not is_high]
            above += [row for row, is_high in zip(members, high, strict=True) if is_high]
        yield axis, "above", below, above
        yield axis, "below", above, below
