"""The search: asks for configurations in batches, runs them, and reports the results, until enough have been run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from experiments.tune.candidates import Candidates
from experiments.tune.feasible import Feasibility
from experiments.tune.goals import Goal
from experiments.tune.pruner import Rung
from experiments.tune.sampler import Proposer, SamplerKind
from experiments.tune.space import Point, Space
from experiments.tune.storage import OWNER, Presence
from experiments.tune.surrogate import Tried
from framework.cli.terminal import Report
from framework.errors import InputError
from framework.metrics.figures import HEADLINE
from framework.report.table_words import named
from framework.run.sweep import Outcome, Sweep

OVERRIDES, REFUSAL = "overrides", "refusal"  # user attributes of a trial
SHOWN = (HEADLINE, "slo_attainment", "p99_ttft_ms", "p99_tpot_ms", "cost_usd")  # keys shown after the goals
_VIOLATION = "violation"
_REFUSED = 30  # refused trials in a row after which the search ends
_POLL_S = 0.2


Asked = tuple[Trial, Point]


class Search:
    """One process's part in a study, which other processes may share.

    `rungs`: the shares of the trace before the whole, none unless there is a pruner. Trials that cannot be run are
    reported to the sampler as infeasible, and are not counted. Trials of a process that died are not counted either,
    and are tried again.
    """

    def __init__(
        self,
        study: Study,
        space: Space,
        feasible: Feasibility,
        sampler: SamplerKind,
        goals: Sequence[Goal],
        rungs: Sequence[Rung],
        sweep: Sweep,
        presence: Presence,
    ) -> None:
        self._study = study
        self._space = space
        self._feasible = feasible
        self._candidates = Candidates(space, feasible)
        self._sampler = sampler
        self._goals = goals
        self._rungs = rungs
        self._sweep = sweep
        self._presence = presence
        self._points: dict[int, Point] = {}

    def run(self, trials: float, workers: int, progress: Report | None = None) -> None:
        """Continue until `trials` have ended in the study, or nothing new is left; `workers` are run at a time.

        Raises InputError for a space in which nothing can be run, and for goals that summaries lack.
        """
        while True:
            known = self._known()
            ended = sum(trial.state.is_finished() for trial in known if counts(trial))
            if progress is not None:
                refused = sum(not counts(trial) for trial in known)
                progress(ended, int(min(trials, ended + self._left(known))), refused, self._best(known))
            running = [trial for trial in known if trial.state == TrialState.RUNNING]
            self._refuse_hopeless(known)
            room = min(trials - ended - len(running), self._left(known))
            # Batches begin where they would have begun without interruption, so their trials are the same.
            batch = self._ask(trials, int(min(room, workers - len(known) % workers))) if room > 0 else []
            if batch:
                self._evaluate(batch)
            elif running or len(self._known()) > len(known):  # Trials run in other processes.
                time.sleep(_POLL_S)
            else:
                return

    def _known(self) -> list[FrozenTrial]:
        """The trials that have ended or are being run; trials of ended processes are given up."""
        known = []
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state == TrialState.RUNNING and not self._presence.is_running(trial):
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            elif trial.state in (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED):
                known.append(trial)
        return known

    def _best(self, known: Sequence[FrozenTrial]) -> str:
        """The best result by the first goal, in words."""
        goal = self._goals[0]
        whole = [trial for trial in known if trial.state == TrialState.COMPLETE and counts(trial)]
        values = [trial.values[0] for trial in whole]
        return named(goal.key, (max if goal.maximize else min)(values)) if values else ""

    def _left(self, known: Sequence[FrozenTrial]) -> float:
        pool = self._feasible.pool
        taken = {self._point(trial).overrides for trial in known if self._is_drawn(trial)}
        return math.inf if pool is None else len(pool) - len(taken)

    def _refuse_hopeless(self, known: Sequence[FrozenTrial]) -> None:
        if self._feasible.pool == []:
            raise InputError(
                f"space {self._space.name}: none of its {self._space.size:,.0f} points is feasible; the nearest:"
                f" {self._feasible.nearest_miss()}"
            )
        refused = [trial for trial in known if not counts(trial)]
        if len(refused) >= _REFUSED and not any(counts(trial) for trial in known):
            raise InputError(
                f"space {self._space.name}: none of {len(refused)} trials could be run; the last:"
                f" {refused[-1].user_attrs.get(REFUSAL)}"
            )

    # --- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, trials: float, count: int) -> list[Asked]:
        asked: list[Asked] = []
        for _ in range(count):
            known = self._known()
            tried = [Tried(self._point(trial), self._gains(trial)) for trial in known if self._is_drawn(trial)]
            failed = self._study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
            first = [self._point(trial) for trial in failed if self._is_drawn(trial)] + self._space.first_points()
            numbers = [trial.number for trial in failed]
            self._study.sampler = Proposer(self._sampler, self._space, self._candidates, tried, first, numbers)
            trial = self._study.ask(dict(self._space.distributions))
            trial.set_user_attr(OWNER, self._presence.owner)
            point = self._space.point(trial.params)
            trial.set_user_attr(OVERRIDES, " ".join(point.overrides))
            before = self._before(trial.number)
            is_known = any(point.overrides == self._point(one).overrides for one in before if self._is_drawn(one))
            if is_known or sum(map(counts, before)) >= trials:  # other processes were faster
                self._study.tell(trial, state=TrialState.FAIL)
                break
            asked.append((trial, point))
        return asked

    def _before(self, number: int) -> list[FrozenTrial]:
        """The trials before that one, all drawn: among processes that draw the same at once the first keeps it."""
        while True:
            before = [trial for trial in self._known() if trial.number < number]
            if all(trial.state.is_finished() or self._is_drawn(trial) for trial in before):
                return before
            time.sleep(_POLL_S)

    def _gains(self, trial: FrozenTrial) -> tuple[float, ...] | None:
        """The result of a trial, higher is better; for one that was given up, on the part of the trace that it ran."""
        if trial.state == TrialState.RUNNING:
            return None
        if not counts(trial) or trial.values is None:
            return ()
        return tuple(value if goal.maximize else -value for goal, value in zip(self._goals, trial.values, strict=True))

    def _is_drawn(self, trial: FrozenTrial) -> bool:
        return self._space.distributions.keys() <= trial.params.keys()

    def _point(self, trial: FrozenTrial) -> Point:
        if trial.number not in self._points:
            self._points[trial.number] = self._space.point(trial.params)
        return self._points[trial.number]

    # --- running ------------------------------------------------------------------------------------------------------

    def _evaluate(self, batch: Sequence[Asked]) -> None:
        try:
            left = [asked for asked in batch if not self._refused_unseen(*asked)]
            for rung in self._rungs:
                left = self._promoted(left, rung)
            for (trial, _), outcome in zip(left, self._sweep.run([point.overrides for _, point in left]), strict=True):
                self._conclude(trial, outcome)
        finally:  # after an interrupt, or a bug, unfinished trials are free to be tried again
            for trial, _ in batch:
                self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def _refused_unseen(self, trial: Trial, point: Point) -> bool:
        violation = self._feasible.violation(point)
        if violation > 0:
            self._refuse(trial, violation, self._feasible.reason(point))
        return violation > 0

    def _promoted(self, asked: Sequence[Asked], rung: Rung) -> list[Asked]:
        """The points that continue after running `rung`."""
        jobs = [(*point.overrides, f"trace.limit={rung.requests}") for _, point in asked]
        left = []
        for (trial, point), outcome in zip(asked, self._sweep.run(jobs), strict=True):
            value = self._values(trial, outcome)
            if value is None:
                continue
            trial.report(value[0], rung.step)
            if trial.should_prune():
                trial.set_constraint(_VIOLATION, 0.0)
                self._tell(trial, state=TrialState.PRUNED)
            else:
                left.append((trial, point))
        return left

    def _conclude(self, trial: Trial, outcome: Outcome) -> None:
        values = self._values(trial, outcome)
        if values is None or outcome.record is None:
            return
        summary = outcome.record.summary
        shown = {key: summary[key] for key in SHOWN if key in summary} | {"record": outcome.record.key}
        for key, value in shown.items():
            trial.set_user_attr(key, value)
        trial.set_constraint(_VIOLATION, 0.0)
        self._tell(trial, values)

    def _values(self, trial: Trial, outcome: Outcome) -> list[float] | None:
        """The goals' figures; None, with the trial reported as infeasible, if there are none."""
        if outcome.record is None:
            self._refuse(trial, 1.0, str(outcome.refusal))
            return None
        values = [goal.value(outcome.record) for goal in self._goals]
        defined = [value for value in values if value is not None]
        if len(defined) < len(values):
            undefined = ", ".join(
                str(goal.key) for goal, value in zip(self._goals, values, strict=True) if value is None
            )
            self._refuse(trial, 1.0, f"{undefined} is undefined: hardly a request was served")
            return None
        return defined

    def _refuse(self, trial: Trial, violation: float, line: str) -> None:
        trial.set_user_attr(REFUSAL, line)
        trial.set_constraint(_VIOLATION, violation)
        self._tell(trial, state=TrialState.PRUNED)

    def _tell(self, trial: Trial, values: Sequence[float] | None = None, state: TrialState | None = None) -> None:
        self._study.tell(trial, values, state, skip_if_finished=True)  # another process counted this one as gone


def counts(trial: FrozenTrial) -> bool:
    """Whether a trial counts towards the requested number: it could be run, or this is not known yet."""
    return max(trial.constraints.values(), default=0.0) <= 0
