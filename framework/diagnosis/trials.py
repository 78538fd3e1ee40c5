"""Runs of the same requests under changed conditions, each compared with the diagnosed run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from framework.diagnosis.changes import Change, Seen
from framework.diagnosis.evidence import evidence
from framework.diagnosis.findings import LEAST, LEAST_SHARE, Diagnosis, diagnose
from framework.diagnosis.remedies import Remedy, remedies
from framework.diagnosis.removals import REMOVABLE, Cause
from framework.diagnosis.waiting import waiting_of
from framework.errors import InputError, hook_noted
from framework.metrics.clock import clock_of
from framework.metrics.figures import HEADLINE
from framework.metrics.parts import rate
from framework.metrics.request_table import counted
from framework.metrics.slo import judge
from framework.objective.experiment import Experiment
from framework.objective.goodput import Measurement, shortest_s

_NEARLY = 0.9  # share of the largest worth from which a cause that a setting can fix precedes faster hardware
Compose = Callable[[Mapping[str, Any]], Experiment]


@dataclass(frozen=True)
class Trial:
    """The result of one run: `kept` of the `offered` requests kept the SLO, `goodput` of them each second."""

    kept: int
    offered: int
    goodput: float
    window_s: float
    gpus: int
    closed: bool

    def worth(self, base: Trial) -> float:
        """Requests/s that keep the SLO here and did not in `base`.

        If the trace fixes arrivals, they are counted over the window of `base`: a run is not better because it ends
        sooner. If clients wait for their answers, it is the difference of goodputs.
        """
        if self.closed or base.window_s <= 0:
            return self.goodput - base.goodput
        return (self.kept - base.kept) / base.window_s

    def is_better(self, base: Trial) -> bool:
        """Whether it is better by more than a few requests."""
        if self.closed:
            return self.goodput >= (1 + LEAST_SHARE) * base.goodput and self.goodput > 0
        return self.kept - base.kept >= max(LEAST, LEAST_SHARE * base.offered)


@dataclass(frozen=True)
class Removed:
    """A cause, the run without it, and the evidence for it in the diagnosed run."""

    name: str
    cause: Cause
    trial: Trial
    evidence: str


@dataclass(frozen=True)
class Tried:
    """A remedy and the run with it."""

    remedy: Remedy
    trial: Trial


@dataclass(frozen=True)
class Trials:
    """What limits the goodput of a run.

    `base`: the run itself, `seen`: the causes of its lost requests. `removed`: the causes without which it is better,
    the most valuable first; `indifferent`: causes without which it is not. `tried`: remedies, the best first.
    """

    base: Trial
    seen: Diagnosis
    removed: tuple[Removed, ...]
    indifferent: tuple[Cause, ...]
    tried: tuple[Tried, ...]


def trials(
    experiment: Experiment,
    measurement: Measurement,
    settings: Mapping[str, Any],
    compose: Compose,
    progress: Callable[[int, int], None] | None = None,
) -> Trials:
    """Run `experiment` again, whose run is `measurement`, without one cause after another, then with remedies.

    `settings`: those of the run, by name; `compose` makes the experiment with some of them changed, on the same
    requests. Raises the same errors as the experiment's own run.
    """
    base = trial_of(measurement, experiment)
    seen = diagnose(measurement.result, measurement.evaluation, measurement.slo)
    if base.kept == base.offered:
        return Trials(base, seen, (), (), ())
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, done + more)

    found = _without_each(experiment, measurement, tell)
    better = [(name, one) for name, one in found.items() if one.is_better(base)]
    waiting = waiting_of(measurement.result)
    removed = tuple(
        Removed(name, REMOVABLE[name], one, evidence(name, experiment, measurement, seen, waiting))
        for name, one in _ranked(better, base)
    )
    indifferent = tuple(REMOVABLE[name] for name in found if name not in {one.name for one in removed})
    causes = [one.name for one in removed]
    if waiting is not None and waiting.room.memory_is_full and "memory" not in causes:
        causes.append("memory")  # more of it is no help alone, because there is too much of everything else
    chosen = remedies(settings, experiment, causes)
    return Trials(base, seen, removed, indifferent, _with_each(chosen, compose, base, tell))


def trial_of(measurement: Measurement, experiment: Experiment) -> Trial:
    """The measured run, as one of the trials."""
    summary = measurement.evaluation.summary
    kept = int(counted(measurement.evaluation.requests)["good"].sum())
    closed = experiment.load.clients is not None
    return Trial(kept, summary["offered"], summary[HEADLINE], summary["window_s"], summary["gpus"], closed)


def run(experiment: Experiment) -> Trial:
    """Run an experiment, only as far as a trial needs."""
    result = experiment.run()
    clock = clock_of(result, experiment.slo, partial(shortest_s, experiment, result))
    kept = int((judge(result, experiment.slo).good & clock.counted).sum())
    offered, closed = int(clock.counted.sum()), experiment.load.clients is not None
    return Trial(kept, offered, rate(kept, clock.window_s), clock.window_s, result.cluster.gpus, closed)


def _without_each(experiment: Experiment, measurement: Measurement, tell: Callable[[int], None]) -> dict[str, Trial]:
    """The best run without each possible cause, by its name."""
    batch = measurement.evaluation.pools["mean_batch"].drop_nulls().max()
    seen = Seen(measurement.evaluation.summary["duration"], float(batch) if isinstance(batch, float) else 1.0)
    found: dict[str, Trial] = {}
    for number, (name, cause) in enumerate(REMOVABLE.items(), 1):
        runs = [one for change in cause.changes if (one := _without(change, experiment, seen)) is not None]
        if runs:
            found[name] = max(runs, key=_value)
        tell(len(REMOVABLE) - number)
    return found


def _without(change: Change, experiment: Experiment, seen: Seen) -> Trial | None:
    """The run with the change; None if it changes nothing, or if the cluster or the policy cannot have it.

    A policy that relies on a hook of its own, which the change replaced, may raise anything.
    """
    try:
        changed = change(experiment, seen)
        return None if changed is None else run(changed)
    except InputError:
        return None
    except Exception as error:
        if hook_noted(error):
            return None
        raise


def _with_each(
    chosen: Sequence[Remedy], compose: Compose, base: Trial, tell: Callable[[int], None]
) -> tuple[Tried, ...]:
    """The remedies that the run can have, the best first; among nearly equal ones, the one with the fewest GPUs."""
    tried = []
    for number, remedy in enumerate(chosen, 1):
        with suppress(InputError):  # this policy, model or cluster cannot have it
            tried.append(Tried(remedy, run(compose(remedy.settings))))
        tell(len(chosen) - number)
    ordered = sorted(tried, key=lambda one: (-one.trial.worth(base), one.trial.gpus))
    near = [one for one in ordered if not ordered[0].trial.is_better(one.trial)]  # equal up to a few requests
    return (*sorted(near, key=lambda one: one.trial.gpus), *(one for one in ordered if one not in near))


def _ranked(better: Sequence[tuple[str, Trial]], base: Trial) -> list[tuple[str, Trial]]:
    """The causes by their worth; among those nearly as good as the best, the narrowest comes first."""
    if not better:
        return []
    ordered = sorted(better, key=lambda one: -one[1].worth(base))
    most = ordered[0][1].worth(base)
    near = [one for one in ordered if one[1].worth(base) >= _NEARLY * most]
    near.sort(key=lambda one: REMOVABLE[one[0]].breadth)
    return near + ordered[len(near) :]


def _value(one: Trial) -> float:
    return one.goodput if one.closed else float(one.kept)
