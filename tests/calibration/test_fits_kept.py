"""Fits of made-up times, the surfaces that they go by, and the report: to the last figure and letter as they were.

That fits find what is there, and how well they know it, is tested elsewhere.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from framework.calibration.optimise import Fitted, Floats, Term, fit
from framework.calibration.replay import Served
from framework.calibration.surfaces import Box, Surfaces, added_noise
from framework.calibration.tables import Replayed, report
from tests.helpers.pinned import check, check_texts, total

HERE = Path(__file__).parent
PRIOR = (
    Term("kernel", 1.0, width=0.2, lowest=0.5, highest=2.0, factor=True),
    Term("step_s", 1e-3, width=5e-4, lowest=0.0, highest=0.01),
    Term("host_s", 0.0, width=1e-3, lowest=0.0, highest=0.01),
    Term("request_s", 0.02, width=0.01, lowest=0.0, highest=0.1),
)
SIZES = np.linspace(1.0, 40.0, 24)


def predicted(seed: int) -> tuple[list[str], Floats]:
    """Which times know of which terms, and noise of the simulator."""
    rng = np.random.default_rng(seed)
    return ["kernel", *(name for name in ("step_s", "host_s") if rng.random() < 0.8)], 0.01 * rng.standard_normal(24)


def fitted(seed: int) -> Fitted:
    rng = np.random.default_rng(seed)
    used, off = predicted(seed)

    def predict(values: Mapping[str, float]) -> Floats:
        own = values["kernel"] * SIZES * 1e-3 + sum(values[name] for name in used[1:]) * (1 + (SIZES > 20) * (seed % 2))
        return np.log(own + 1e-4) + 0.2 * off * np.sin(1e4 * sum(values.values()) + SIZES)

    truth = {"kernel": float(rng.uniform(0.8, 1.3)), "step_s": 2e-3, "host_s": 5e-4 * (seed % 3), "request_s": 0.03}
    measured = predict(truth) + off
    measured[seed] += 1.0  # an outlier
    return fit(
        predict, measured, PRIOR, weights=np.where(SIZES < 10, 2.0, 1.0) if seed % 2 else None, points=2 + seed % 3
    )


def test_fits_find_what_they_found() -> None:
    found = {}
    for seed in range(4):
        own = fitted(seed)
        found[str(seed)] = [*own.values.values(), *own.errors.values(), *own.known.values(), len(own.idle)]
        found[str(seed)] += [own.noise, own.evaluations, total([own.before, own.after, own.scatter, own.correlation])]
    check(HERE / "fits.json", found, rel=1e-6)


def test_surfaces_are_as_they_were() -> None:
    found = {}
    for seed in range(8):
        rng = np.random.default_rng(seed)
        terms, times = int(rng.integers(1, 4)), int(rng.integers(4, 12))
        box = Box.around(rng.uniform(-1, 1, terms), 0.7, np.full(terms, -1.5), np.full(terms, 1.2))
        points = box.points(40, seed)
        slopes = rng.standard_normal((terms, times))
        outcomes = points @ slopes + 0.3 * (points**2).sum(axis=1)[:, None] + 0.05 * rng.standard_normal((40, times))
        outcomes += rng.uniform(-1.0, 1.0, times)
        surfaces, weights = Surfaces.through(points, outcomes, (box.low + box.high) / 2), rng.uniform(0.5, 2.0, times)
        z = surfaces.optimum(box, weights, 0.05)
        noise = added_noise(rng.standard_normal(times) / 9, rng.uniform(0.01, 0.1, times), weights, terms)
        values = [noise, surfaces.noise(z, weights)]
        values += [total(part) for part in (box, points, surfaces, z, surfaces.residuals(z), surfaces.scatter)]
        found[str(seed)] = [*values, total(surfaces.covariance(z, 0.05, weights))]
    check(HERE / "surfaces.json", found, rel=1e-7)


def served(seed: int, count: int, duration_s: float | None) -> Served:
    rng = np.random.default_rng(seed)
    tpot_s = rng.uniform(0.01, 0.1, count)
    tpot_s[::3] = np.nan
    return Served(rng.uniform(0.1, 2.0, count), tpot_s, rng.uniform(2.0, 9.0, count), duration_s)


def test_reports_are_written_as_they_were() -> None:
    measured, before, after, checked = (served(seed, 6, 1e-3 * 6**seed) for seed in range(4))
    whole = Replayed("one", np.arange(1, 7), measured, before, after, checked, np.arange(6), "the rest")
    part = Replayed(
        *("two", np.full(3, 9), served(4, 3, 0.0), served(5, 3, 2.0), served(6, 3, None), served(7, 3, 1.0)),
        *(np.arange(1, 3), "the other runs", ("of a client",)),
    )
    console = Console(width=110, file=io.StringIO(), color_system=None)
    console.print(report([whole, part], fitted(1), ("never tested: closed loops",)))
    text = "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]
    check_texts(HERE / "report.txt", {"two runs": text})
