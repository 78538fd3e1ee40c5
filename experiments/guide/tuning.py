"""Equal tuning: each family climbs its space from its start, with as many trials, the same requests and the same steps.

A trial is one configuration. From the best so far every next value of every setting is tried, in both directions, until
none is better; trials that are left go on from the point farthest from all that were tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.guide.families import Family
from experiments.guide.runs import Runs, starting_at
from experiments.tune.feasible import Feasibility
from experiments.tune.space import Drawn, Point, Space
from framework.run.store import Record

Worth = Callable[[Record], float]


@dataclass(frozen=True)
class Task:
    """What families are tuned for: `overrides` make the load, `worth` says what of a run is good, the more the better.

    All get `trials`, on the sample of `seed`. `start_rps`: where searches for the highest rate begin; None where the
    rate is set.
    """

    overrides: tuple[str, ...]
    worth: Worth
    trials: int
    seed: int
    start_rps: float | None = None


@dataclass(frozen=True)
class Trial:
    """A configuration that was tried; `record` is None where it was refused, for `refusal`."""

    point: Point
    worth: float
    record: Record | None
    refusal: str


@dataclass(frozen=True)
class Tuned:
    """A family's trials in order; `points`: how many configurations there are."""

    family: Family
    points: int
    trials: tuple[Trial, ...]
    refusal: str

    @property
    def best(self) -> Trial | None:
        """The best that could be run; the first of several."""
        run = [trial for trial in self.trials if trial.record is not None]
        return max(run, key=lambda trial: trial.worth, default=None)


def value(record: Record) -> float:
    """The worth of a run by its own objective."""
    return record.value


def good_rps(record: Record) -> float:
    """The rate of good requests among those that arrive, which the time that a run takes to drain leaves alone."""
    return float(record.summary["slo_attainment"] * record.config["trace.rate"])


def tuned(runs: Runs, family: Family, task: Task, begin: Point | None = None) -> Tuned:
    """The family after its trials; fewer than asked for only where its space has no more points.

    `begin`: where it starts to climb, that of the space if nothing is said.
    """
    space, feasible = runs.space(family), runs.feasible(family)
    pool = feasible.pool or []
    if not pool:
        return Tuned(family, 0, (), feasible.nearest_miss())
    trials = _Trials(runs, family, task)
    for start in _starts(space, pool, begin, trials.tried):
        centre, best = None, start
        while best is not centre and len(trials.tried) < min(task.trials, len(pool)):
            centre = best
            around = [centre, *_neighbours(space, feasible, centre.drawn)]
            best = trials.best_of(around[: _room(around, trials.tried, task.trials)]) or centre
        if len(trials.tried) >= min(task.trials, len(pool)):
            break
    every = tuple(trials.tried.values())
    refusals = [trial.refusal for trial in every if trial.refusal]
    return Tuned(family, len(pool), every, refusals[-1] if len(refusals) == len(every) else "")


class _Trials:
    """What was tried so far, by overrides, in order."""

    def __init__(self, runs: Runs, family: Family, task: Task) -> None:
        self._runs, self._family, self._task = runs, family, task
        self._rate_rps = task.start_rps
        self.tried: dict[tuple[str, ...], Trial] = {}

    def best_of(self, points: Sequence[Point]) -> Point | None:
        """The best of these points, each of which is tried if it was not; None where none can be run."""
        new = {point.overrides: point for point in points if point.overrides not in self.tried}
        start = () if self._rate_rps is None else (starting_at(self._rate_rps),)
        shared = (*self._family.words(self._task.overrides), f"seed={self._task.seed}", *start)
        outcomes = self._runs.run([(*shared, *overrides) for overrides in new])
        for point, one in zip(new.values(), outcomes, strict=True):
            worth = -float("inf") if one.record is None else self._task.worth(one.record)
            self.tried[point.overrides] = Trial(point, worth, one.record, one.refusal or "")
        known = [self.tried[point.overrides] for point in points]
        best = max((one for one in known if one.record is not None), key=lambda one: one.worth, default=None)
        if best is not None and self._rate_rps is not None and best.worth > 0:
            self._rate_rps = best.worth
        return None if best is None else best.point


def _room(points: Sequence[Point], tried: Mapping[tuple[str, ...], Trial], trials: int) -> int:
    """How many of `points` there are trials for; those that were tried take none."""
    left = trials - len(tried)
    for number, point in enumerate(points):
        left -= point.overrides not in tried
        if left < 0:
            return number
    return len(points)


def _starts(
    space: Space, pool: Sequence[Point], begin: Point | None, tried: Mapping[tuple[str, ...], Trial]
) -> Iterator[Point]:
    """Where to climb from: at first where it is said, or nearest to it; then ever farthest from what was tried."""
    wanted = begin or next(iter(space.first_points()), pool[0])
    yield min(pool, key=lambda point: space.distance(point.drawn, wanted.drawn))
    while left := [point for point in pool if point.overrides not in tried]:
        known = [trial.point.drawn for trial in tried.values()]
        yield max(left, key=lambda point: min(space.distance(point.drawn, other) for other in known))


def _neighbours(space: Space, feasible: Feasibility, drawn: Drawn) -> Iterator[Point]:
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
    runs: Runs, families: Sequence[Family], task: Task, begin: Mapping[str, Point] | None = None
) -> list[Tuned]:
    """Every family, tuned equally; `begin` by the names of families."""
    return [tuned(runs, family, task, (begin or {}).get(family.name)) for family in families]
