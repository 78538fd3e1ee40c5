"""The whole answer: the ranking, then the parts that were asked for beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.utils import instantiate

from experiments.guide.axes import TITLES, Value, all_hits, axis
from experiments.guide.families import BY_NAME, FAMILIES
from experiments.guide.flips import Line, lines
from experiments.guide.knobs import BATCHES, Knob, Replicates, against_hits, of_batch, of_space
from experiments.guide.limits import SHARE, Front, fronts
from experiments.guide.plan import Plan
from experiments.guide.ranking import Ranking, entered
from experiments.guide.runs import Progress, Runs, starting_at
from experiments.guide.tuning import CAPACITY, GOODPUT, Task, Tuned, all_tuned
from framework.errors import InputError
from framework.workload import Workload, rate_rps

_BLOCKS = "trace.resample_s=300"  # by which a recording has other samples
_KNOBS = ("chunked", "disaggregated")  # families whose knob and batch are moved
_CELL_VALUES = 5  # of an axis


@dataclass(frozen=True)
class Answer:
    """What was found. Parts that were not asked for are empty; rates are requests/s of all GPUs together.

    `hits`: the P:D ratios at each share of cached prompts. `fronts` are at `front_rate_rps`.
    """

    plan: Plan
    settings: dict[str, Any]
    timing: str
    source: str
    tuned: tuple[Tuned, ...]
    ranking: Ranking
    knobs: tuple[Knob, ...]
    lines: tuple[Line, ...]
    hits: tuple[tuple[Value, Knob], ...]
    fronts: tuple[Front, ...]
    front_rate_rps: float

    @property
    def gpus(self) -> int:
        return self.plan.gpus


def answered(plan: Plan, progress: Progress | None = None) -> Answer:
    """Run what the plan asks for. Raises InputError where no family serves the load at any rate."""
    runs = Runs(plan, FAMILIES, progress, expected_runs(plan))
    task = Task(plan.capacity, CAPACITY, plan.trials, plan.seed, rate_rps(_workload(runs)))
    tuned = all_tuned(runs, FAMILIES, task)
    if all(one.best is None for one in tuned):
        raise InputError(f"no architecture sustains any rate within the SLO; {_reasons(tuned)}")
    summary = runs.first.summary
    samples = (_BLOCKS,) if summary.get("trace_source") == "real" else ()
    ranking = entered(runs, tuned, task, plan.seeds, samples)
    if ranking is None or ranking.best.values.mean() == 0:
        raise InputError(f"no architecture sustains any rate within the SLO; {_reasons(tuned)}")
    best_rps = float(ranking.best.values.mean())
    settings = dict(runs.base.settings)
    replicates = Replicates((*plan.capacity, starting_at(best_rps)), tuple(plan.seeds), samples)

    def cell(overrides: tuple[str, ...], compared: int) -> Ranking | None:
        is_search = "objective=goodput" not in overrides
        own = (*plan.capacity, *overrides) if is_search else overrides
        task = Task(
            own, CAPACITY if is_search else GOODPUT, plan.cell_trials, plan.seed, best_rps if is_search else None
        )
        found = [one for one in all_tuned(runs, FAMILIES, task) if one.best is not None]
        found.sort(key=lambda one: -one.best.values[0] if one.best is not None else 0.0)
        return entered(runs, found[:compared], task, plan.seeds, samples)

    axes = [axis(name, settings, best_rps) for name in plan.axes] if "map" in plan.parts else []
    front_rps = SHARE * best_rps
    return Answer(
        plan=plan,
        settings=settings,
        timing=str(summary.get("timing_source")),
        source=str(summary.get("trace_source")),
        tuned=tuple(tuned),
        ranking=ranking,
        knobs=tuple(_knobs(runs, ranking, replicates)) if "knobs" in plan.parts else (),
        lines=tuple(lines(axes, cell)),
        hits=tuple(_hits(runs, ranking, replicates, settings)) if "hits" in plan.parts else (),
        fronts=tuple(fronts(runs, FAMILIES, front_rps, plan.trials, plan.seed)) if "limits" in plan.parts else (),
        front_rate_rps=front_rps,
    )


def expected_runs(plan: Plan) -> int:
    """About how many runs there will be, for a bar of progress."""
    families = len(FAMILIES)
    found = families * (plan.trials + plan.replicates)
    if "knobs" in plan.parts:
        found += (13 + len(_KNOBS) * len(BATCHES)) * plan.replicates
    if "map" in plan.parts:
        known = sum(name in TITLES for name in plan.axes)
        found += known * _CELL_VALUES * (families * plan.cell_trials + 2 * plan.replicates)
    if "hits" in plan.parts:
        found += _CELL_VALUES * 7 * plan.replicates
    return found + families * plan.trials * ("limits" in plan.parts)


def _workload(runs: Runs) -> Workload:
    found = instantiate(runs.base.config.trace, _convert_="all")
    assert isinstance(found, Workload)
    return found


def _reasons(tuned: Sequence[Tuned]) -> str:
    return "; ".join(f"{one.family.label}: {one.refusal or 'its limit is missed at any rate'}" for one in tuned)


def _knobs(runs: Runs, ranking: Ranking, task: Replicates) -> list[Knob]:
    found = []
    for one in ranking.entrants:
        if one.family.name in _KNOBS:
            found.append(of_space(runs, one.family, one.point, task))
            found.append(of_batch(runs, one.family, one.point, task))
    return found


def _hits(runs: Runs, ranking: Ranking, task: Replicates, settings: dict[str, Any]) -> list[tuple[Value, Knob]]:
    family = BY_NAME["disaggregated"]
    entrant = next((one for one in ranking.entrants if one.family is family), None)
    if entrant is None or settings.get("trace.input.mean") is None:
        return []
    return against_hits(runs, family, entrant.point, task, all_hits(settings))
