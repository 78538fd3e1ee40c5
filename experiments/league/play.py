"""One policy in one cell: tuned on the first half of the trace, judged on samples of the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.guide.families import Family
from experiments.guide.tuning import Task, Tuned, tuned, value
from experiments.league.results import Entry, Played
from experiments.league.study import Cell
from experiments.tune.base import Configuration, with_demand
from experiments.tune.feasible import LARGEST_POOL, Feasibility
from experiments.tune.space import Point, Space
from experiments.tune.space_file import read_space
from framework.cli.explain import explain
from framework.errors import InputError
from framework.objective.capacity_bound import CapacityBound, capacity_bound
from framework.run.compose import compose
from framework.run.run_key import CODE_DIGITS
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

    def rate_worth(self, family: Family, point: Point) -> float:
        """1: all of an entrant's trials have the same GPUs."""
        return 1.0

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Outcome]:
        return self._sweep.run(jobs)


def opened(cell: Cell, terms: Terms) -> Played:
    """The cell without entries: its bounds, and the rates that are shares of the bounds of either half."""
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
        settings=settings_of(cell, terms),
        source="fitted" if settings.get("trace.format") == "twin" else str(settings["trace.name"]),
        tuning_rps=_shares(best.rate_rps, terms.shares),
        rates_rps=_shares(float(np.mean(found)), terms.shares),
        bounds_rps=tuple(found),
        bound_limit=best.limit,
    )


def settings_of(cell: Cell, terms: Terms) -> tuple[str, ...]:
    """What all entries of a cell share, as its results keep it."""
    return (*cell.tuning, f"objective.passes={cell.load.passes}", *terms.further)


def _shares(bound_rps: float, shares: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{share * bound_rps:.3g}") for share in shares)


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


class Player:
    """Plays entrants in cells, by one sweep. Raises InputError for a space that is a continuum."""

    def __init__(self, terms: Terms, sweep: Sweep) -> None:
        self._terms, self._sweep = terms, sweep
        self._feasible: dict[tuple[str, str], Feasibility] = {}  # by policy and setup: no load changes what fits

    def played(self, entrant: Entrant, cell: Cell, rates: Played) -> Entry:
        """The entry of a policy: its best trial on the first half, on each sample of the second."""
        offer = _Offer(entrant, cell, rates, self._terms)
        runs = self._runs(entrant, cell)
        tuned = self._tuned(offer, runs)
        if tuned.best is None or tuned.best.record is None:
            return Entry(refusal=tuned.refusal or "none of its trials could be run", trials=len(tuned.trials))
        point = tuned.best.point.overrides
        outcomes = runs.run([offer.judging(1, offer.highest_kept(tuned.best.record), point)])
        if outcomes[0].record is not None:  # the others begin where it ended
            first = offer.highest_kept(outcomes[0].record)
            outcomes += runs.run([offer.judging(k, first, point) for k in range(2, self._terms.replicates + 1)])
        records = [one.record for one in outcomes if one.record is not None]
        if len(records) < len(outcomes):
            return Entry(refusal=next(one.refusal for one in outcomes if one.refusal) or "", trials=len(tuned.trials))
        return _entry(tuned, records)

    def _tuned(self, offer: _Offer, runs: _Runs) -> Tuned:
        """The trials, all from the rate at which the policy's defaults ended."""
        family, terms = offer.family, self._terms
        before = tuned(runs, family, Task(offer.tuning(terms.first), value, 1, seed=0))
        if before.best is None or before.best.record is None:
            first = terms.first
        else:
            first = offer.highest_kept(before.best.record)
        return tuned(runs, family, Task(offer.tuning(first), value, terms.trials, seed=0))

    def _runs(self, entrant: Entrant, cell: Cell) -> _Runs:
        base = Configuration((*entrant.places, *entrant.fixed, *cell.tuning, *self._terms.further))
        given = [word.partition("=")[0] for word in (*entrant.fixed, *cell.setup.overrides, *self._terms.further)]
        space = read_space(entrant.space, {**base.choices, **base.settings}, given, {"gpus": str(cell.setup.gpus)})
        if space.size > LARGEST_POOL:
            raise InputError(f"space={space.name} has too many points for the league; give another one")
        feasible = self._feasible.setdefault((entrant.name, cell.setup.name), Feasibility(space, base))
        try:
            return _Runs(self._sweep, with_demand(space, base), feasible)
        except Exception as error:  # instances of one GPU are too small for the model
            if explain(error) is None:
                raise
            return _Runs(self._sweep, space, feasible)


@dataclass(frozen=True)
class _Offer:
    """The settings of the runs of an entrant in a cell."""

    entrant: Entrant
    cell: Cell
    rates: Played
    terms: Terms

    @property
    def family(self) -> Family:
        """The entrant, as the guide's tuning takes it."""
        one = self.entrant
        return Family(one.name, one.name, one.fixed, one.space, "", "", unmoved_by="")

    def tuning(self, first: int) -> tuple[str, ...]:
        """Of a trial that begins with rate number `first`."""
        return (*self.cell.tuning, *self._offered(self.rates.tuning_rps, first))

    def judging(self, sample: int, first: int, point: Sequence[str]) -> tuple[str, ...]:
        """Of a sample of the second half."""
        offered = self._offered(self.rates.rates_rps, first)
        return (*self.family.arguments((*self.cell.judged(sample), *offered)), *point)

    def highest_kept(self, record: Record) -> int:
        """The number of the highest rate that kept the share, where further runs begin."""
        rates = record.summary["offered_rates"]["rates"]
        kept = [row["rate_rps"] for row in rates if row["attainment"] >= self.terms.attainment]
        return list(record.config["objective.rates_rps"]).index(max(kept)) if kept else 0

    def _offered(self, rates_rps: Sequence[float], first: int) -> tuple[str, ...]:
        rates = ",".join(f"{rate:g}" for rate in rates_rps)
        given = (f"objective.rates_rps=[{rates}]", f"objective.attainment={self.terms.attainment:g}")
        passes = f"objective.passes={self.cell.load.passes}"
        return ("objective=offered", passes, f"objective.first={first}", *given, *self.terms.further)


def _entry(tuned: Tuned, records: Sequence[Record]) -> Entry:
    every = [*records, *(trial.record for trial in tuned.trials if trial.record is not None)]
    assert tuned.best is not None
    return Entry(
        capacities_rps=tuple(record.value for record in records),
        tuned_rps=tuned.best.worth,
        untuned_rps=max(0.0, tuned.trials[0].worth),
        settings=tuned.best.point.overrides,
        trials=len(tuned.trials),
        curve=_curve(records),
        lost_to=_sums([record.summary["offered_rates"]["lost_to"] for record in records]),
        answer_us=float(np.mean([record.summary["offered_rates"]["answer_us"] for record in records])),
        runs=sum(len(record.summary["offered_rates"]["rates"]) for record in every),
        cpu_s=sum(record.summary["offered_rates"]["cpu_s"] for record in every),
        usd_per_hour=records[0].summary["usd_per_hour"],
        code=records[0].key[:CODE_DIGITS],
    )


def _curve(records: Sequence[Record]) -> tuple[tuple[float, float], ...]:
    shares: dict[float, list[float]] = {}
    for record in records:
        for row in record.summary["offered_rates"]["rates"]:
            shares.setdefault(row["rate_rps"], []).append(row["attainment"])
    return tuple((rate_rps, float(np.mean(shares[rate_rps]))) for rate_rps in sorted(shares))


def _sums(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = sorted({name for one in counts for name in one})
    return {name: sum(one.get(name, 0) for one in counts) for name in names}
