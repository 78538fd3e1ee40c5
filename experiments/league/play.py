"""One policy in one cell: tuned on the first half of the trace, judged on samples of the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.guide.families import Family
from experiments.guide.tuning import Task, tuned, value
from experiments.league.results import Entry, Played
from experiments.league.study import Cell
from experiments.tune.base import Configuration, with_demand
from experiments.tune.feasible import Feasibility
from experiments.tune.space import Space
from experiments.tune.space_file import read_space
from framework.cli.explain import explain
from framework.objective.capacity_bound import CapacityBound, capacity_bound
from framework.run.compose import compose
from framework.run.store import Record
from framework.run.sweep import Outcome, Sweep

_PARTS = (1, 2, 4, 8)  # GPUs of an instance, of which the best bound counts
_START_RPS = 10.0  # where the search for a bound begins


@dataclass(frozen=True)
class Entrant:
    """A policy: its settings, the space of conf/space in which it is tuned, and where YAMLs of its user's are."""

    name: str
    fixed: tuple[str, ...]
    space: str
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Terms:
    """What is the same for all entrants."""

    trials: int
    replicates: int
    attainment: float
    shares: Sequence[float]
    first: int
    further: tuple[str, ...]


class _Runs:
    """Runs of one entrant, as the guide's tuning asks for them."""

    def __init__(self, sweep: Sweep, space: Space, feasible: Feasibility) -> None:
        self._sweep, self._space, self._feasible = sweep, space, feasible

    def space(self, family: Family) -> Space:
        return self._space

    def feasible(self, family: Family) -> Feasibility:
        return self._feasible

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Outcome]:
        return self._sweep.run(jobs)


def opened(cell: Cell, terms: Terms) -> Played:
    """The cell without entries: its bounds, and the rates that are shares of the bound of the first half."""
    bounds = {tp: _bound((*cell.tuning, *terms.further), cell.setup.gpus, tp, terms) for tp in _parts(cell.setup.gpus)}
    tp, best = max(((tp, one) for tp, one in bounds.items() if one is not None), key=lambda pair: pair[1].rate_rps)
    samples = [
        _bound((*cell.judged(sample), *terms.further), cell.setup.gpus, tp, terms)
        for sample in range(1, terms.replicates + 1)
    ]
    found = [one.rate_rps for one in samples if one is not None]
    settings = dict(Configuration(("policy=chunked", *cell.tuning, *terms.further)).settings)
    return Played(
        load=cell.load.name,
        setup=cell.setup.name,
        gpus=cell.setup.gpus,
        settings=(*cell.tuning, *terms.further),
        source="fitted" if settings.get("trace.format") == "twin" else str(settings["trace.name"]),
        rates_rps=tuple(float(f"{share * best.rate_rps:.3g}") for share in terms.shares),
        bounds_rps=tuple(found),
        bound_limit=best.limit,
    )


def _parts(gpus: int) -> list[int]:
    return [tp for tp in _PARTS if gpus % tp == 0]


def _bound(overrides: Sequence[str], gpus: int, tp: int, terms: Terms) -> CapacityBound | None:
    """The bound on capacity of all GPUs in instances of `tp`; None if the model does not fit into these."""
    size = (f"cluster.tp={tp}", f"cluster.instances={gpus // tp}")
    try:
        experiment = compose(Configuration(("policy=chunked", *overrides, *size)).config)
    except Exception as error:
        if explain(error) is None:
            raise
        return None
    return capacity_bound(experiment, terms.attainment, _START_RPS)


def played(entrant: Entrant, cell: Cell, rates: Played, terms: Terms, sweep: Sweep) -> Entry:
    """The entry of a policy: its best trial on the first half, on each sample of the second."""
    runs = _Runs(sweep, *_space(entrant, cell, terms))
    family = Family(entrant.name, entrant.name, entrant.fixed, entrant.space, "", "", unmoved_by="")
    rated = f"objective.rates_rps={list(rates.rates_rps)}".replace(" ", "")
    judging = (f"objective.attainment={terms.attainment:g}", rated)
    task = Task((*cell.tuning, *_offered(terms.first), *judging, *terms.further), value, terms.trials, seed=0)
    found = tuned(runs, family, task)
    if found.best is None or found.best.record is None:
        return Entry(refusal=found.refusal or "none of its trials could be run", trials=len(found.trials))
    first = _highest_kept(found.best.record, rates.rates_rps, terms.attainment)
    jobs = [
        (
            *family.arguments((*cell.judged(sample), *_offered(first), *judging, *terms.further)),
            *found.best.point.overrides,
        )
        for sample in range(1, terms.replicates + 1)
    ]
    outcomes = runs.run(jobs)
    records = [one.record for one in outcomes if one.record is not None]
    if len(records) < len(outcomes):
        return Entry(refusal=next(one.refusal for one in outcomes if one.refusal) or "", trials=len(found.trials))
    every = [*records, *(trial.record for trial in found.trials if trial.record is not None)]
    return Entry(
        capacities_rps=tuple(record.value for record in records),
        tuned_rps=found.best.worth,
        untuned_rps=max(0.0, found.trials[0].worth),
        settings=found.best.point.overrides,
        trials=len(found.trials),
        curve=_curve(records),
        lost_to=_sums([record.summary["offered"]["lost_to"] for record in records]),
        answer_us=float(np.mean([record.summary["offered"]["answer_us"] for record in records])),
        runs=sum(len(record.summary["offered"]["rates"]) for record in every),
        cpu_s=sum(record.summary["offered"]["cpu_s"] for record in every),
        usd_per_hour=records[0].summary["usd_per_hour"],
        code=records[0].key[:8],
    )


def _offered(first: int) -> tuple[str, ...]:
    return ("objective=offered", f"objective.first={first}")


def _space(entrant: Entrant, cell: Cell, terms: Terms) -> tuple[Space, Feasibility]:
    base = Configuration((*entrant.places, *entrant.fixed, *cell.tuning, *terms.further))
    given = [word.partition("=")[0] for word in (*entrant.fixed, *terms.further)]
    gpus = {"gpus": str(cell.setup.gpus)}
    space = read_space(entrant.space, {**base.choices, **base.settings}, given, gpus)
    try:
        space = with_demand(space, base)
    except Exception as error:  # instances of one GPU are too small for the model
        if explain(error) is None:
            raise
    return space, Feasibility(space, base)


def _highest_kept(record: Record, rates_rps: Sequence[float], attainment: float) -> int:
    """The number of the highest rate that kept the share: where the rates of the samples begin."""
    kept = [row["rate_rps"] for row in record.summary["offered"]["rates"] if row["attainment"] >= attainment]
    return rates_rps.index(max(kept)) if kept else 0


def _curve(records: Sequence[Record]) -> tuple[tuple[float, float], ...]:
    shares: dict[float, list[float]] = {}
    for record in records:
        for row in record.summary["offered"]["rates"]:
            shares.setdefault(row["rate_rps"], []).append(row["attainment"])
    return tuple((rate_rps, float(np.mean(shares[rate_rps]))) for rate_rps in sorted(shares))


def _sums(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = sorted({name for one in counts for name in one})
    return {name: sum(one.get(name, 0) for one in counts) for name in names}
