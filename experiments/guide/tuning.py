"""Equal tuning: each family climbs its space from its start, with as many trials, the same requests and the same steps.

A trial is one configuration. From the best so far every next value of every setting is tried, in both directions, until
none is better; remaining trials start from the point farthest from all tried ones.

If the highest rate is searched, only the first trial is a full search. Every other one is a race: it begins at the
lowest rate that the family's best so far does not sustain, and a configuration that does not sustain it either is given
up there. This finds the same best as full searches would, to their resolution, in a fraction of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from experiments.guide.families import Family
from experiments.guide.runs import at_price, first_step, starting_at
from experiments.tune.feasible import Feasibility
from experiments.tune.space import Drawn, Point, Space
from framework.run.store import Record
from framework.run.sweep import Outcome

Worth = Callable[[Record, float], float]  # of a run, in which a request/s counts as much as is said
_NEAR = 1.2  # first step of a search from the rate of a nearby load
_RACE = 1.1  # the same for a configuration that has won its race


class Runner(Protocol):
    """What makes the runs of families: the space and the feasible points of each, and the outcomes of jobs."""

    def space(self, family: Family) -> Space: ...

    def feasible(self, family: Family) -> Feasibility: ...

    def rate_worth(self, family: Family, point: Point) -> float: ...

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Outcome]: ...


@dataclass(frozen=True)
class Task:
    """The goal of tuning: `overrides` make the load, `worth` gives the value of a run, higher is better.

    All get `trials`, on the sample of `seed`. `start_rps`: where searches for the highest rate begin; None if the rate
    is set.
    """

    overrides: tuple[str, ...]
    worth: Worth
    trials: int
    seed: int
    start_rps: float | None = None


@dataclass(frozen=True)
class Trial:
    """A tried configuration; `record` is None if it was refused, for `refusal`.

    `raced_rps`: what it had to be worth to beat the best so far; None if its own highest rate was searched.
    """

    point: Point
    worth: float
    record: Record | None
    refusal: str
    raced_rps: float | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether it lost its race: its highest rate is below `raced_rps`, and no more is known."""
        return self.raced_rps is not None and self.record is not None and self.worth <= 0

    @property
    def is_settled(self) -> bool:
        """Whether every rate that decided it could be decided."""
        return self.record is None or bool(self.record.summary.get("capacity_settled", True))


@dataclass(frozen=True)
class Tuned:
    """A family's trials in order; `points`: the number of its configurations."""

    family: Family
    points: int
    trials: tuple[Trial, ...]
    refusal: str

    @property
    def best(self) -> Trial | None:
        """The best that could be run; among equals the first."""
        run = [trial for trial in self.trials if trial.record is not None]
        return max(run, key=lambda trial: trial.worth, default=None)


def value(record: Record, rate_worth: float) -> float:
    """The worth of a run by its own objective, a rate."""
    return record.value * rate_worth


def good_rps(record: Record, rate_worth: float) -> float:
    """The rate of good requests among those that arrive, which does not depend on how long a run takes to drain."""
    return float(record.summary["slo_attainment"] * record.config["trace.rate"]) * rate_worth


def tuned(runs: Runner, family: Family, task: Task, begin: Trial | None = None) -> Tuned:
    """The family after its trials; there are fewer only if its space has no more points.

    `begin`: the best of a nearby load, whose point and rate it starts from; without it the start of the space.
    """
    space, feasible = runs.space(family), runs.feasible(family)
    pool = feasible.pool or []
    if not pool:
        return Tuned(family, 0, (), feasible.nearest_miss())
    trials = _Trials(runs, family, task, begin)
    for start in _starts(space, pool, begin.point if begin else None, trials.tried):
        centre, best = None, start
        while best is not centre and len(trials.tried) < min(task.trials, len(pool)):
            centre = best
            around = [centre, *_adjacent(space, feasible, centre.drawn)]
            best = trials.best_of(around[: _room(around, trials.tried, task.trials)]) or centre
        if len(trials.tried) >= min(task.trials, len(pool)):
            break
    every = tuple(trials.tried.values())
    refusals = [trial.refusal for trial in every if trial.refusal]
    return Tuned(family, len(pool), every, refusals[-1] if len(refusals) == len(every) else "")


class _Trials:
    """What was tried so far, by overrides, in order."""

    def __init__(self, runs: Runner, family: Family, task: Task, begin: Trial | None) -> None:
        self._runs, self._family, self._task, self._begin = runs, family, task, begin
        self._most = self._least_rps = 0.0  # worth of the leader of the races, and the least that it does not reach
        self.tried: dict[tuple[str, ...], Trial] = {}

    def best_of(self, points: Sequence[Point]) -> Point | None:
        """The best of these points, each of which is tried unless it was; None if none can be run."""
        new = list({point.overrides: point for point in points if point.overrides not in self.tried}.values())
        # 1: the first has no rival to race
        alone = 1 if self._task.start_rps is not None and self._most == 0 else 0
        for some in (new[:alone], new[alone:]):
            self._try(some)
        known = [self.tried[point.overrides] for point in points]
        best = max((one for one in known if one.record is not None), key=lambda one: one.worth, default=None)
        return None if best is None else best.point

    def _try(self, points: Sequence[Point]) -> None:
        """Run points concurrently; those of a race all begin at the same rate."""
        raced_rps = self._least_rps or None
        own, seed = self._family.arguments(self._task.overrides), f"seed={self._task.seed}"
        counts = [self._runs.rate_worth(self._family, point) for point in points]
        jobs = [
            (*at_price(own, count), seed, *self._search(raced_rps, count), *point.overrides)
            for point, count in zip(points, counts, strict=True)
        ]
        for point, count, one in zip(points, counts, self._runs.run(jobs) if jobs else [], strict=True):
            worth = -float("inf") if one.record is None else self._task.worth(one.record, count)
            self.tried[point.overrides] = Trial(point, worth, one.record, one.refusal or "", raced_rps)
            if self._task.start_rps is not None and one.record is not None and worth > self._most:
                self._most, self._least_rps = worth, float(one.record.summary["capacity_high"]) * count

    def _search(self, raced_rps: float | None, rate_worth: float) -> tuple[str, ...]:
        """The settings of a search or a race; none if the rate is set."""
        if self._task.start_rps is None:
            return ()
        if raced_rps is not None:
            at_least = f"objective.at_least={raced_rps / rate_worth:.6g}"
            return (starting_at(self._most / rate_worth), first_step(_RACE), at_least)
        if self._begin is not None and self._begin.worth > 0:
            return (starting_at(self._begin.worth / rate_worth), first_step(_NEAR))
        return (starting_at(self._task.start_rps / rate_worth),)


def _room(points: Sequence[Point], tried: Mapping[tuple[str, ...], Trial], trials: int) -> int:
    """The number of `points` for which there are trials; tried ones take none."""
    left = trials - len(tried)
    for number, point in enumerate(points):
        left -= point.overrides not in tried
        if left < 0:
            return number
    return len(points)


def _starts(
    space: Space, pool: Sequence[Point], begin: Point | None, tried: Mapping[tuple[str, ...], Trial]
) -> Iterator[Point]:
    """The starts of climbs: first the given start, or the nearest point; then ever the farthest from all tried ones."""
    wanted = begin or next(iter(space.first_points()), pool[0])
    yield min(pool, key=lambda point: space.distance(point.drawn, wanted.drawn))
    while left := [point for point in pool if point.overrides not in tried]:
        known = [trial.point.drawn for trial in tried.values()]
        yield max(left, key=lambda point: min(space.distance(point.drawn, other) for other in known))


def _adjacent(space: Space, feasible: Feasibility, drawn: Drawn) -> Iterator[Point]:
    """The next configurations in each direction of each setting that can be launched."""
    here = space.point(drawn)
    for dimension in space.dimensions:
        every = list(dimension.all() or ())
        place = every.index(drawn[dimension.label])
        for side in (every[place + 1 :], every[:place][::-1]):
            moved = (space.point({**drawn, dimension.label: one}) for one in side)
            found = (point for point in moved if point.overrides != here.overrides and feasible.is_feasible(point))
            yield from [point for point in (next(found, None),) if point is not None]


def all_tuned(
    runs: Runner, families: Sequence[Family], task: Task, begin: Mapping[str, Trial] | None = None
) -> list[Tuned]:
    """Every family, tuned equally; `begin` by the names of families."""
    return [tuned(runs, family, task, (begin or {}).get(family.name)) for family in families]
