"""A search's course with runs that answer at once: what is asked for, in which batches, and what is told of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from experiments.tune.expression import Expression
from experiments.tune.goals import Goal
from experiments.tune.pruner import Rung
from experiments.tune.result import findings
from experiments.tune.sampler import SamplerKind
from experiments.tune.space import Dimension, Point, Space
from experiments.tune.storage import OWNER, only_study, open_study
from experiments.tune.study import OVERRIDES, REFUSAL, Search, counts
from framework.errors import InputError
from framework.metrics.figures import metric
from framework.run.store import Record
from framework.run.sweep import Outcome

GOAL = (Goal("goodput_rps"),)
Job = tuple[str, ...]


def space(count: int = 5, **changes: Any) -> Space:
    dimensions = (Dimension("count", IntDistribution(1, count)),)
    known: dict[str, Any] = {"derived": {}, "required": (), "starts": (), "settings": {"count": 1}}
    return Space("own", {}, changes.pop("dimensions", dimensions), **(known | changes))


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(pause_s: float) -> None:
        raise AssertionError("there is nobody to wait for")

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.setattr(time, "sleep", wait)


class Feasible:
    """All that keeps what the space requires; points of a continuum are not known beforehand."""

    def __init__(self, own: Space) -> None:
        self._own = own
        finite = own.size < math.inf
        self.pool = [point for point in own.points() if point.shortfall == 0] if finite else None

    def is_feasible(self, point: Point) -> bool:
        return point.shortfall == 0

    def violation(self, point: Point) -> float:
        return point.shortfall

    def reason(self, point: Point) -> str:
        return f"{point.overrides[0]} is too much"

    def nearest_miss(self) -> str:
        return self.reason(min(self._own.points(), key=self.violation))


class Runs:
    """Answers each job by a function of it: figures of a summary, or why there are none."""

    def __init__(self, answer: Callable[[Job], dict[str, Any] | str]) -> None:
        self.answer, self.batches = answer, list[list[Job]]()

    def run(self, jobs: Sequence[Sequence[str]]) -> list[Outcome]:
        self.batches.append([tuple(job) for job in jobs])
        return [self._outcome(job) for job in self.batches[-1]]

    def _outcome(self, job: Job) -> Outcome:
        found = self.answer(job)
        if isinstance(found, str):
            return Outcome(job, None, found)
        return Outcome(job, Record(f"key of {job[0]}", {}, {}, found, 0.0), None)


def number(job: Job) -> int:
    return int(job[0].removeprefix("count="))


def rising(job: Job) -> dict[str, Any]:
    return {"goodput_rps": float(number(job)), "cost_usd": 9.0 - number(job), "extra": 1}


class Set:
    """A search and what it is made of."""

    def __init__(
        self,
        answer: Callable[[Job], dict[str, Any] | str] = rising,
        own: Space | None = None,
        goals: Sequence[Goal] = GOAL,
        rungs: Sequence[Rung] = (),
        is_running: Callable[[FrozenTrial], bool] = lambda trial: trial.user_attrs.get(OWNER) == "me",
        sampler: str = "grid",
    ) -> None:
        self.study = optuna.create_study(directions=[goal.direction for goal in goals])
        self.space = own or space()
        self.goals, self.feasible, self.runs = goals, Feasible(self.space), Runs(answer)
        presence = SimpleNamespace(owner="me", is_running=is_running)
        self.told: list[tuple[int, int]] = []
        self.said: list[tuple[int, str]] = []  # how many could not be run, and the best
        kind = SamplerKind(sampler, 0)
        parts: Any = (self.feasible, kind, goals, rungs, self.runs, presence)
        self.search = Search(self.study, self.space, *parts)

    def run(self, trials: float = math.inf, workers: int = 1) -> None:
        self.search.run(trials, workers, self._take)

    def _take(self, ended: int, most: int, failed: int, best: str) -> None:
        self.told.append((ended, most))
        self.said.append((failed, best))

    @property
    def trials(self) -> list[FrozenTrial]:
        return self.study.get_trials()

    def states(self) -> list[str]:
        return [trial.state.name for trial in self.trials]

    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.runs.batches]


def test_all_of_a_space_is_run_once_in_batches() -> None:
    own = Set()
    own.run(workers=2)
    assert own.sizes() == [2, 2, 1]
    assert {number(job) for batch in own.runs.batches for job in batch} == {1, 2, 3, 4, 5}
    assert own.told == [(0, 5), (2, 5), (4, 5), (5, 5)]
    assert own.states() == ["COMPLETE"] * 5
    for trial in own.trials:
        count = trial.params["count"]
        assert trial.values == [float(count)]
        assert trial.user_attrs == {
            OWNER: "me",
            OVERRIDES: f"count={count}",
            "record": f"key of count={count}",
            "goodput_rps": float(count),
            "cost_usd": 9.0 - count,
        }
        assert counts(trial)
    own.run(workers=2)
    assert own.sizes() == [2, 2, 1]


def test_no_more_is_run_than_was_asked_for() -> None:
    own = Set()
    own.run(3, workers=2)
    assert (own.sizes(), own.told) == ([2, 1], [(0, 3), (2, 3), (3, 3)])
    own.run(4, workers=3)  # the batch ends where that of a search that was never interrupted does
    assert own.sizes() == [2, 1, 1]
    more = Set(own=space(20))
    more.run(4, workers=3)
    more.run(11, workers=3)
    assert more.sizes() == [3, 1, 2, 3, 2]
    Set().search.run(2, 1)  # nobody needs to be told


def test_what_cannot_be_run_is_told_and_does_not_count() -> None:
    own = Set(lambda job: "it is even" if number(job) % 2 == 0 else rising(job))
    own.run(3)
    assert sorted(own.states()) == ["COMPLETE"] * 3 + ["PRUNED"] * own.states().count("PRUNED")
    for trial in own.trials:
        is_even = trial.params["count"] % 2 == 0
        assert counts(trial) != is_even
        assert trial.constraints == {"violation": float(is_even)}  # of those without one samplers know nothing
        assert trial.user_attrs.get(REFUSAL) == ("it is even" if is_even else None)
    own.run(9)
    assert sorted(own.states()) == ["COMPLETE"] * 3 + ["PRUNED"] * 2
    assert own.said[0] == (0, "")
    assert own.said[-1] == (2, "goodput 5.00 req/s")
    fewest = Set(goals=(Goal("cost_usd", maximize=False), *GOAL))
    fewest.run()
    assert fewest.said[-1] == (0, f"{metric('cost_usd').name} 4.00 {metric('cost_usd').unit}")
    found = findings(own.study, own.space, own.feasible, GOAL)  # type: ignore[arg-type]
    assert (found.count("complete"), found.count("infeasible"), found.feasible) == (3, 2, 5)
    assert [row.point.settings["count"] for row in found.ranked] == [5, 3, 1]
    assert {row.refusal for row in found.rows} == {"", "it is even"}
    assert found.importances == {}


def test_a_figure_that_is_undefined_is_no_value() -> None:
    goals = (Goal("goodput_rps"), Goal("cost_usd", maximize=False), Goal("p99_ttft_ms", maximize=False))
    own = Set(lambda job: rising(job) | {"cost_usd": None, "p99_ttft_ms": math.nan}, goals=goals)
    own.run(1)
    assert {trial.user_attrs[REFUSAL] for trial in own.trials} == {
        "cost_usd, p99_ttft_ms is undefined: hardly a request was served"
    }
    assert own.states() == ["PRUNED"] * 5
    with pytest.raises(
        InputError, match=r"objectives: goodput is no number of a summary; choose from goodput_rps, cost"
    ):
        Set(goals=(Goal("goodput"),)).run(1)


def test_goals_are_told_as_they_are_and_learnt_as_gains() -> None:
    goals = (Goal("goodput_rps"), Goal("cost_usd", maximize=False))
    own = Set(goals=goals)
    own.run()
    best = {trial.params["count"] for trial in own.study.best_trials}
    assert best == {5}
    trial = next(trial for trial in own.trials if trial.params["count"] == 2)
    assert trial.values == [2.0, 7.0]
    assert own.search._gains(trial) == (2.0, -7.0)
    refused = Set(lambda job: "no")
    refused.run(1)
    assert refused.search._gains(refused.trials[0]) == ()


def test_a_batch_stays_around_the_best_for_what_runs_is_no_failure() -> None:
    """Every third of 41 points is known, of a parabola whose best is at 28; four are drawn before any of them ends."""
    own = Set(lambda job: {"goodput_rps": 100 - (number(job) - 28) ** 2 / 10}, own=space(41), sampler="gp")
    for count in (1, 4, 7, 10, 13, 16, 19, 22, 25, 34, 37, 40):
        own.study.enqueue_trial({"count": count})
    own.run(12)
    own.run(16, workers=4)
    assert all(26 <= number(job) <= 30 for job in own.runs.batches[-1])
    assert own.sizes()[-1] == 4


def test_a_space_of_which_nothing_fits_is_hopeless() -> None:
    required = (Expression("count - 7"),)
    with pytest.raises(
        InputError, match=r"^space own: none of its 5 points is feasible; the nearest: count=5 is too much"
    ):
        Set(own=space(required=required)).run(3)


def test_a_space_of_which_nothing_can_be_run_is_given_up() -> None:
    own = Set(lambda job: f"not {number(job)}", own=space(60))
    with pytest.raises(InputError, match=r"^space own: none of 30 trials could be run; the last: not \d+$"):
        own.run(3)
    assert len(own.trials) == 30
    one = Set(lambda job: rising(job) if number(job) == 60 else "no", own=space(60))
    one.study.enqueue_trial({"count": 60})
    one.run(2)  # goes on, for one could
    assert len(one.trials) == 60


def test_trials_that_do_badly_on_a_part_are_given_up() -> None:
    """Those below 3 on a tenth, and those below 4 on a third; what cannot be run there is not run on the whole."""

    def answer(job: Job) -> dict[str, Any] | str:
        return "it has no room" if number(job) == 5 and "trace.limit=30" in job else rising(job)

    class Below(optuna.pruners.BasePruner):
        def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
            least = {1: 3, 2: 4}[trial.last_step or 0]
            return trial.intermediate_values[trial.last_step or 0] < least

    own = Set(answer, rungs=(Rung(1, 10), Rung(2, 30)))
    own.study.pruner = Below()
    own.run(workers=5)
    first, second, whole = own.runs.batches
    assert {job[1:] for job in first} == {("trace.limit=10",)}
    assert sorted(map(number, first)) == [1, 2, 3, 4, 5]
    assert {job[1:] for job in second} == {("trace.limit=30",)}
    assert sorted(map(number, second)) == [3, 4, 5]
    assert whole == [("count=4",)]
    states = {trial.params["count"]: trial for trial in own.trials}
    assert [states[count].state.name for count in range(1, 6)] == ["PRUNED", "PRUNED", "PRUNED", "COMPLETE", "PRUNED"]
    assert [counts(states[count]) for count in range(1, 6)] == [True, True, True, True, False]
    assert states[3].intermediate_values == {1: 3.0, 2: 3.0}
    assert own.search._gains(states[1]) == (1.0,)
    found = findings(own.study, own.space, own.feasible, GOAL)  # type: ignore[arg-type]
    assert [found.count(outcome) for outcome in ("complete", "pruned", "infeasible")] == [1, 3, 1]


def test_what_was_begun_by_the_dead_is_tried_first() -> None:
    own = Set(own=space(30))
    trial = own.study.ask(dict(own.space.distributions))
    dead = trial.params["count"]
    own.run(1)
    assert own.states() == ["FAIL", "COMPLETE"]
    assert own.runs.batches == [[(f"count={dead}",)]]


def test_starts_come_first_each_once() -> None:
    starts = tuple({"count": Expression(text)} for text in ("4", "2", "4"))
    own = Set(own=space(starts=starts))
    own.run(2, workers=2)
    assert own.runs.batches == [[("count=4",), ("count=2",)]]


def test_others_may_be_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last point of a space is in other hands, which tell while this process waits."""
    own = Set(is_running=lambda trial: True)
    other = own.study.ask(dict(own.space.distributions))
    waits: list[float] = []

    def wait(pause_s: float) -> None:
        waits.append(pause_s)
        if len(waits) == 3:
            own.study.tell(other, 7.0)

    monkeypatch.setattr(time, "sleep", wait)
    own.run(workers=2)
    assert waits == [0.2] * 3
    assert own.sizes() == [1, 2, 1]
    assert sorted(own.states()) == ["COMPLETE"] * 5
    assert own.told[0] == (0, 4)
    assert own.told[-1] == (5, 5)


def test_of_those_who_draw_the_same_at_once_the_first_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Set(is_running=lambda trial: True, own=space(2))
    other = own.study.ask()  # nothing is drawn yet
    known = own.search._known

    def draws(pause_s: float) -> None:
        other.suggest_int("count", 1, 2)

    monkeypatch.setattr(time, "sleep", draws)
    asked = own.search._ask(math.inf, 2)
    mine = [trial for trial in own.trials[1:] if trial.state == TrialState.RUNNING]
    assert [trial.number for trial, _ in asked] == [trial.number for trial in mine]
    drawn = [trial.params["count"] for trial in known()]
    assert len(drawn) == len(set(drawn))
    assert own.search._ask(1, 2) == []  # more is there than was asked for
    assert own.states()[-1] == "FAIL"


def test_an_interrupt_leaves_what_was_not_told_to_be_tried_again() -> None:
    def answer(job: Job) -> dict[str, Any]:
        raise KeyboardInterrupt

    own = Set(answer)
    with pytest.raises(KeyboardInterrupt):
        own.run(workers=2)
    assert own.states() == ["FAIL", "FAIL"]
    own.runs.answer = rising
    own.run(workers=2)
    assert own.runs.batches[0] == own.runs.batches[1]


def test_points_of_a_continuum_that_miss_what_is_required_are_not_run() -> None:
    share = Dimension("count", FloatDistribution(0.0, 1.0))
    never = space(dimensions=(share,), required=(Expression("count - 1.5"),))
    own = Set(own=never, sampler="random")
    with pytest.raises(InputError, match=r"none of 32 trials could be run; the last: count=.* is too much"):
        own.run(4, workers=4)
    assert all(job == [] for job in own.runs.batches)
    assert own.told[-1] == (0, 4)
    assert all(
        trial.constraints == {"violation": pytest.approx(1.5 - trial.params["count"], abs=1e-4)} for trial in own.trials
    )


# --- the study --------------------------------------------------------------------------------------------------------


def test_of_several_studies_one_is_to_be_named() -> None:
    storage = optuna.storages.InMemoryStorage()
    assert only_study(storage, "own") == "own"
    optuna.create_study(study_name="first", storage=storage)
    assert only_study(storage, "own") == "first"
    optuna.create_study(study_name="second", storage=storage)
    assert only_study(storage, "second") == "second"
    with pytest.raises(InputError, match=r"several studies: choose one of first, second or another with name=NAME"):
        only_study(storage, "own")


def test_a_study_of_something_else_is_refused_once_anything_came_of_it() -> None:
    storage = optuna.storages.InMemoryStorage()
    up, down = optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE
    one = open_study(storage, "one", [up], {"space": "a", "seed": 1})
    assert one.user_attrs["identity"] == {"space": "a", "seed": 1}
    again = open_study(storage, "one", [up], {"space": "a", "seed": 1})
    assert again._study_id == one._study_id
    other = open_study(storage, "one", [down, up], {"space": "b"})  # nothing has come of it
    assert (other.directions, other.user_attrs["identity"]) == ([down, up], {"space": "b"})
    assert len(optuna.get_all_study_names(storage)) == 1
    other.tell(other.ask(), [1.0, 2.0])
    for identity, words in (
        ({"space": "c"}, r"^study one is of something else \(space: b there, c here\); choose another with name=NAME$"),
        ({"space": "b", "seed": 2}, r"\(seed: none there, 2 here\)"),
        ({}, r"\(space: b there, none here\)"),
    ):
        with pytest.raises(InputError, match=words):
            open_study(storage, "one", [down, up], identity)
    assert open_study(storage, "one", [down, up], {"space": "b"})._study_id == other._study_id
    bare = optuna.create_study(storage=storage, study_name="bare", directions=[up])
    assert open_study(storage, "bare", [up], {"space": "a"})._study_id == bare._study_id
    assert open_study(storage, "bare", [down], {"space": "b"}).directions == [down]
