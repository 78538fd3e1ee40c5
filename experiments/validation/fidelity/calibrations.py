"""The fits of the study to all measured deployments, as calibrations that timing=measured finds with its profiles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.validation.fidelity.csv_file import VERSION
from experiments.validation.fidelity.fit import Cell, cells
from experiments.validation.fidelity.online import place_of, read_stages
from experiments.validation.fidelity.rows import Row
from experiments.validation.fidelity.study import Study
from framework.timing.calibration_terms import Calibration, Fit, Selector, calibration_path, write_calibrations
from framework.timing.fit_domain import Domain, Place
from framework.timing.shipped.shipped_setups import GPUS

_SOURCE = f"silicon_sample.csv of aiconfigurator-core {VERSION} (NVIDIA), most of it measured by InferenceX"
_LICENCE = "Apache-2.0"
STAGES_OF = ("vllm", "h100")  # backend and GPU of the stages in online.csv
_FEWEST = 20  # least deployments of a GPU and backend for a calibration


def write_fitted(
    studies: Iterable[Study],
    directory: Path,
    with_stages: Mapping[str, Calibration] | None = None,
    fewest: int = _FEWEST,
) -> list[Path]:
    """Write `directory`/<gpu>/<backend>/calibration.json of each GPU with shipped profiles; return the files.

    `with_stages`: by kind, the terms of the stages' GPU and backend that were also fitted to the stages. A GPU and
    backend with fewer than `fewest` deployments of a kind has none. Entries: dense and mixture-of-experts models as a
    whole, and each measured model and data type. Only aggregated deployments count: their terms are those of one kind
    of instance.
    """
    found: dict[tuple[str, str], list[Fit]] = defaultdict(list)
    for one in studies:
        if one.rows and one.rows[0].mode == "agg":
            for cell, fit in _fits(one, fewest):
                backend, gpu = cell[:2]
                kind = fit.selector.kind
                if cell == STAGES_OF and kind in (with_stages or {}):
                    note = f"{fit.note}, and to the stages of experiments/validation/fidelity/online.csv"
                    domain = None if fit.domain is None else fit.domain | Domain.around(map(place_of, read_stages()))
                    fit = replace(fit, calibration=(with_stages or {})[kind], note=note, domain=domain)
                found[gpu, backend].append(fit)
    paths = []
    for (gpu, backend), fits in sorted(found.items()):
        if gpu in GPUS:
            paths.append(calibration_path(directory, gpu, backend))
            write_calibrations(paths[-1], fits)
    return paths


def _fits(one: Study, fewest: int) -> Iterator[tuple[Cell, Fit]]:
    """The fitted cells of one GPU and backend, or narrower, and their entries."""
    for cell, terms in one.terms.items():
        if len(cell) == 2:
            selector = Selector(kind=one.rows[0].kind)
        elif len(cell) == 4:
            selector = Selector(model=cell[2], dtype=cell[3])
        else:
            continue
        members = [row for row in one.rows if cell in cells(row) and not row.doubts]
        if sum(cell[:2] in cells(row) for row in one.rows) < fewest:
            continue
        rows = sorted(row.key for row in members)
        note = f"fitted to {len(rows)} measured deployments by experiments/validation/fidelity"
        yield cell, Fit(terms, selector, tuple(rows), note, _SOURCE, _LICENCE, _domain(members))


def _domain(rows: Sequence[Row]) -> Domain | None:
    """The loads of these rows; their prompts share nothing."""
    places = [Place(row.isl, row.osl, in_flight=row.concurrency) for row in rows]
    return Domain.around(places) if places else None
