"""The whole answer: the ranking, then the other requested parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.utils import instantiate

from experiments.guide.axes import Value, all_hits, axis
from experiments.guide.families import chosen
from experiments.guide.flips import Bests, Line, lines
from experiments.guide.judged import Judged, judged
from experiments.guide.knobs import BATCHES, Around, Knob, against_hits, of_batch, of_space
from experiments.guide.limits import SHARE, Front, fronts
from experiments.guide.plan import Plan
from experiments.guide.ranking import Ranking, entered
from experiments.guide.rules import Load, link_share
from experiments.guide.runs import Progress, Runs
from experiments.guide.samples import Samples
from experiments.guide.tuning import Task, Tuned, all_tuned, good_rps, value
from framework.errors import InputError
from framework.workload import Workload, rate_rps

# families whose knob is moved; their batch is moved too, that of the best aggregated family as well
_KNOBS = ("chunked", "disaggregated")
_CELL_VALUES = 5  # values of an axis
_COMPARED = 2  # families compared in each cell on fresh samples: those that tuned best


@dataclass(frozen=True)
class Answer:
    """The results. Parts that were not requested are empty; rates are requests/s of all GPUs together.

    `rules`: those of thumb on the families. `batches`: the most sequences in a batch. `hits`: the P:D ratios at each
    share of cached prompts. `fronts` are at `front_rate_rps`.
    """

    plan: Plan
    settings: dict[str, Any]
    timing: str
    source: str
    tuned: tuple[Tuned, ...]
    ranking: Ranking
    rules: tuple[Judged, ...]
    knobs: tuple[Knob, ...]
    batches: tuple[Knob, ...]
    lines: tuple[Line, ...]
    hits: tuple[tuple[Value, Knob], ...]
    fronts: tuple[Front, ...]
    front_rate_rps: float

    @property
    def gpus(self) -> int:
        return self.plan.gpus


def answered(plan: Plan, progress: Progress | None = None) -> Answer:
    """Run what the plan describes. Raises InputError if no family serves the load at any rate."""
    families = chosen(plan.families, plan.decode_gpu, plan.gpus)
    runs = Runs(plan, families, progress, expected_runs(plan))
    workload = instantiate(runs.base.config.trace, _convert_="all")
    task = Task(plan.capacity, value, plan.trials, plan.seed, rate_rps(workload))
    tuned = all_tuned(runs, families, task)
    if all(one.best is None or one.best.worth <= 0 for one in tuned):
        raise InputError(f"no architecture sustains any rate within the SLO; {_reasons(tuned)}")
    summary = runs.first.summary
    samples = Samples(plan.seed, plan.replicates, summary.get("trace_source") == "real")
    ranking = entered(runs, tuned, task, samples)
    if ranking is None or ranking.best.values.mean() == 0:
        raise InputError(f"no architecture sustains any rate within the SLO; {_reasons(tuned)}")
    best_rps = float(ranking.best.values.mean())
    settings = dict(runs.base.settings)
    every = [Around(one.family, one.point, plan.capacity, one.tuned_value, samples) for one in ranking.entrants]
    around = [one for one in every if one.family.name in _KNOBS]
    aggregated = next((one for one in every if one.family.space != "pd"), None)
    batched = [one for one in every if one is aggregated or one in around]
    few = Samples(samples.seed, plan.cell_replicates, samples.is_recorded)

    def cell(overrides: tuple[str, ...], begin: Bests) -> tuple[Ranking | None, Bests]:
        is_search = "objective=goodput" not in overrides
        own = (*plan.capacity, *overrides) if is_search else overrides
        task = Task(own, value if is_search else good_rps, plan.cell_trials, plan.seed, best_rps if is_search else None)
        found = [one for one in all_tuned(runs, families, task, begin) if one.best is not None]
        found.sort(key=lambda one: -one.best.worth if one.best is not None else 0.0)
        return entered(runs, found[:_COMPARED], task, few), _bests(found)

    axes = [axis(name, settings, best_rps) for name in plan.axes] if "map" in plan.parts else []
    front_rps = SHARE * best_rps
    return Answer(
        plan=plan,
        settings=settings,
        timing=str(summary.get("timing_source")),
        source=str(summary.get("trace_source")),
        tuned=tuple(tuned),
        ranking=ranking,
        rules=tuple(judged(ranking, tuned, _load(runs, workload, ranking))),
        knobs=tuple(of_space(runs, one) for one in around) if "knobs" in plan.parts else (),
        batches=tuple(of_batch(runs, one) for one in batched) if "batch" in plan.parts else (),
        lines=tuple(lines(axes, cell, _bests(tuned))),
        hits=tuple(_hits(runs, around, settings)) if "hits" in plan.parts else (),
        fronts=tuple(fronts(runs, families, front_rps, plan.trials, samples)) if "limits" in plan.parts else (),
        front_rate_rps=front_rps,
    )


def expected_runs(plan: Plan) -> int:
    """The approximate number of runs, for a progress bar."""
    families = len(plan.families)
    found = families * (plan.trials + 1)
    if "knobs" in plan.parts:
        found += 13
    if "batch" in plan.parts:
        found += 3 * len(BATCHES)
    if "map" in plan.parts:
        found += len(plan.axes) * _CELL_VALUES * (families * plan.cell_trials + 2)
    if "hits" in plan.parts:
        found += _CELL_VALUES * 7
    return found + families * (plan.trials + plan.replicates) * ("limits" in plan.parts)


def _bests(tuned: Sequence[Tuned]) -> Bests:
    return {one.family.name: one.best for one in tuned if one.best is not None}


def _load(runs: Runs, workload: Workload, ranking: Ranking) -> Load:
    settings, config = runs.base.settings, runs.base.config
    split = next((one.point.settings for one in ranking.entrants if one.family.name == "disaggregated"), {})
    model, gpu = (instantiate(part, _convert_="all") for part in (config.model, config.gpu))
    outputs = workload.output_tokens
    return Load(
        gpus=runs.plan.gpus,
        prompt_tokens=float(workload.input_tokens.mean()),
        output_tokens=float(outputs.mean()),
        output_cv=float(outputs.std() / outputs.mean()),
        ttft_s=settings["slo.ttft_s"],
        tpot_s=settings["slo.tpot_s"],
        link_share=link_share(
            model, gpu, settings.get("cluster.link_bandwidth_bytes_s"), split.get("cluster.prefill_tp", 1)
        ),
        bandwidth_gain=runs.bandwidth_gain,
    )


def _reasons(tuned: Sequence[Tuned]) -> str:
    return "; ".join(f"{one.family.label}: {one.refusal or 'its limit is missed at any rate'}" for one in tuned)


def _hits(runs: Runs, around: Sequence[Around], settings: dict[str, Any]) -> list[tuple[Value, Knob]]:
    split = next((one for one in around if one.family.name == "disaggregated"), None)
    return [] if split is None else against_hits(runs, split, all_hits(settings))
