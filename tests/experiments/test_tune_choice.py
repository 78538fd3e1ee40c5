"""How a search chooses: among what is left, by what is known of points, and without those that cannot be launched."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from experiments.tune import feasible as launching
from experiments.tune import plots, surrogate
from experiments.tune.base import Configuration
from experiments.tune.candidates import Candidates
from experiments.tune.expression import Expression
from experiments.tune.feasible import Feasibility
from experiments.tune.goals import Goal
from experiments.tune.gp import GaussianProcess
from experiments.tune.sampler import Proposer, SamplerKind
from experiments.tune.space import Dimension, Point, Space
from experiments.tune.storage import Presence
from experiments.tune.surrogate import Surrogate, Tried
from framework.errors import InputError
from framework.run.store import Record
from framework.system.model import TooLargeError
from tests.experiments.test_tune_parts import RNG, All, space
from tests.experiments.test_tune_search import Feasible

COUNT = Dimension("count", IntDistribution(1, 5))
NAMES = Dimension("order", CategoricalDistribution(["a", "b", "c"]))


def derived(**changes: str) -> Space:
    """A count, names, and numbers that follow from the count."""
    texts = {"twice": "2 * count", "flat": "3", "below": "count - 3"} | changes
    own = {name: Expression(text) for name, text in texts.items()}
    return space(COUNT, NAMES, derived=own, settings=dict.fromkeys((*own, "count", "order")))


def test_what_follows_from_what_is_drawn_is_a_number_where_it_differs() -> None:
    """`twice` runs from 2 to 10, `below` is above 0 at 1 and 2, and `flat` tells nothing."""
    own = derived()
    points = list(own.points())
    known = Surrogate(own, points)
    assert [(one.name, one.low, one.high) for one in known._derived] == [("twice", 2, 10), ("below", 1, 2)]
    assert known._groups == [0, 1, 2, 3, 3, 3]
    wanted = [
        [
            math.log(2 * count / 2) / math.log(5),
            float(count == 5),
            (count - 1) / 4,
            *(math.sqrt(0.5) * (name == one) for one in "abc"),
        ]
        for count in range(1, 6)
        for name in "abc"
    ]
    assert known._numbers(points) == pytest.approx(np.array(wanted))
    again = known._numbers(points[::-1])
    assert again == pytest.approx(np.array(wanted[::-1]))


def test_points_are_looked_up_once() -> None:
    own = derived()
    points = list(own.points())
    known = Surrogate(own, points)
    known._numbers(points[:2])
    known._known[points[0].overrides] = [7.0] * 6
    assert known._numbers(points[:1]).tolist() == [[7.0] * 6]


def test_with_few_trials_the_farthest_of_some_is_tried_and_with_none_any() -> None:
    own = space(Dimension("x", IntDistribution(0, 99)))
    points = list(own.points())
    known = Surrogate(own, points)
    any_one = known.choose([Tried(points[3], None)], points, RNG(1))
    assert any_one is points[int(RNG(1).integers(100))]
    tried = [Tried(points[50], (1.0,)), Tried(points[0], ())]
    some = RNG(2).choice(100, 30, replace=False)
    farthest = max(some, key=lambda at: min(abs(at - 50), at))
    assert known.choose(tried, points, RNG(2)) is points[farthest]


def test_small_figures_count_by_their_logarithms_too() -> None:
    assert surrogate._compressed(np.array([0.5, 0.25])) == pytest.approx(np.log([0.5, 0.25]))
    assert surrogate._compressed(np.array([-0.5, -0.25])) == pytest.approx(-np.log([0.5, 0.25]))


def test_equal_observations_make_a_flat_model() -> None:
    model = GaussianProcess(np.array([[0.0], [0.5], [1.0]]), np.full(3, 4.0), [0])
    assert model._z.tolist() == [0.0] * 3
    assert model.expected(np.array([[0.25]])) == pytest.approx([0.0])
    assert GaussianProcess(np.array([[0.0], [1.0]]), np.array([1.0, 1.5]), [0])._z.tolist() == [-1.0, 1.0]


# --- proposals --------------------------------------------------------------------------------------------------------


def proposer(
    kind: str, own: Space, tried: list[Tried], feasible: Any = None, first: tuple[Point, ...] = ()
) -> Proposer:
    known: Any = feasible or All(own)
    candidates = Candidates(own, known)
    return Proposer(SamplerKind(kind, 3), own, candidates, tried, first, [1, 7])


def chosen(one: Proposer, own: Space, number: int = 9) -> dict[str, Any]:
    """What is drawn for a trial: of rank 7, for two before it failed."""
    study, trial = optuna.create_study(), SimpleNamespace(number=number)
    return one.sample_relative(study, trial, dict(own.distributions))  # type: ignore[arg-type]


def test_first_points_are_taken_in_turn_unless_they_are_known() -> None:
    own = space(COUNT, required=(Expression("count - 2"),))
    points = list(own.points())
    one = proposer("grid", own, [Tried(points[2], (1.0,))], first=(points[0], points[2], points[4], points[1]))
    assert chosen(one, own) == {"count": 5}  # the first is not feasible, the second was tried


def test_a_grid_takes_any_that_is_left_by_the_stream_of_its_rank() -> None:
    own = space(COUNT)
    points = list(own.points())
    left = [points[at] for at in (0, 1, 3, 4)]
    expected = left[int(np.random.default_rng((3, 7)).integers(4))].drawn
    assert chosen(proposer("grid", own, [Tried(points[2], ())]), own) == expected


def test_where_all_is_tried_something_comes_again() -> None:
    own = space(COUNT)
    every = [Tried(point, (1.0,)) for point in own.points()]
    again = own.random_point(np.random.default_rng((3, 7))).drawn
    for kind in ("grid", "gp"):
        assert chosen(proposer(kind, own, every), own) == again
    assert chosen(proposer("random", own, every), own)["count"] in range(1, 6)


def test_the_model_chooses_for_gp() -> None:
    own = space(Dimension("x", IntDistribution(0, 40)))
    points = list(own.points())
    tried = [Tried(points[k], (-((k - 28) ** 2) / 100.0,)) for k in (0, 3, 6, 9, 12, 15, 18, 21, 24, 33, 36, 39)]
    one = proposer("gp", own, tried)
    rng = np.random.default_rng((3, 7))
    left = one._candidates.left(tried, rng)
    assert chosen(one, own) == Surrogate(own, points).choose(tried, left, rng).drawn


def test_a_sampler_that_insists_gets_the_nearest_that_will_do() -> None:
    """Nine of ten are not feasible: of what is, the nearest to what was drawn last."""
    own = space(Dimension("x", IntDistribution(0, 99)), required=(Expression("x - 90"),))
    one = proposer("random", own, [], Feasible(own))

    class Insists(optuna.samplers.RandomSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return 40

    study: Any = optuna.create_study()
    found = one._drawn(Insists(), study, SimpleNamespace(number=0), RNG(0))  # type: ignore[arg-type]
    assert found.drawn == {"x": 90}
    with pytest.raises(AssertionError, match="y is not in the space"):
        one.sample_independent(study, study.ask()._cached_frozen_trial, "y", COUNT.distribution)


def test_the_first_draw_of_a_sampler_that_will_do_is_taken() -> None:
    """The first is not feasible, the second was tried, and after the third there is no other."""
    own = space(Dimension("x", IntDistribution(0, 99)), required=(Expression("x - 90"),))
    one = proposer("random", own, [Tried(own.point({"x": 91}), (1.0,))], Feasible(own))
    draws = iter((40, 91, 97))

    class InTurn(optuna.samplers.RandomSampler):
        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {"x": next(draws)}

    study: Any = optuna.create_study()
    assert one._drawn(InTurn(), study, SimpleNamespace(number=0), RNG(0)).drawn == {"x": 97}  # type: ignore[arg-type]


# --- what can be launched ---------------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_counts_by_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def parts(config: Any) -> None:
        tried.append(config.cluster.tp)
        if config.cluster.tp < 4:
            raise TooLargeError(f"too large for {config.cluster.tp}", 1 / config.cluster.tp)
        if config.cluster.tp == 5:
            raise InputError("five is no number of GPUs")

    monkeypatch.setattr(launching, "fitting_parts", parts)
    own = space(
        *(Dimension("cluster.tp", IntDistribution(1, 6)), Dimension("engine.max_batch", IntDistribution(1, 2))),
        required=(Expression("6 - cluster.tp - engine.max_batch"),),
    )
    found = Feasibility(own, Configuration(("policy=chunked", "trace=synthetic")))
    points = {(one.drawn["cluster.tp"], one.drawn["engine.max_batch"]): one for one in own.points()}
    violations = {at: found.violation(point) for at, point in points.items()}
    assert [violations[tp, 1] for tp in range(1, 7)] == [2.0, 1.5, 1 + 1 / 3, 0.0, 1.0, 1.0]
    assert [violations[tp, 2] for tp in range(1, 7)] == [2.0, 1.5, 1 + 1 / 3, 0.0, 1.0, 2.0]
    assert sorted(tried) == [1, 2, 3, 4, 5]  # each shape once, and none that misses what is required
    assert [found.reason(points[tp, 1]) for tp in (2, 4, 5, 6)] == [
        *("too large for 2", "", "five is no number of GPUs", "it misses what the space requires")
    ]
    assert [point.drawn["cluster.tp"] for point in found.pool or ()] == [4, 4]
    assert found.is_feasible(points[4, 2])
    assert not found.is_feasible(points[5, 1])
    assert found.nearest_miss() == ""
    monkeypatch.setattr(launching, "fitting_parts", lambda config: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Feasibility(own, Configuration(("policy=chunked", "trace=synthetic"))).violation(points[4, 1])


def test_points_may_choose_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(launching, "fitting_parts", lambda config: seen.append((config.gpu.name, config.cluster.tp)))
    own = space(
        Dimension("gpu", CategoricalDistribution(["h200", "a100"])), Dimension("cluster.tp", IntDistribution(1, 2))
    )
    found = Feasibility(own, Configuration(("policy=chunked", "trace=synthetic")))
    assert [found.violation(point) for point in own.points()] == [0.0] * 4
    assert seen == [("h200", 1), ("h200", 2), ("a100", 1), ("a100", 2)]


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_a_trial_of_nobody_is_given_up_after_a_minute() -> None:
    study = optuna.create_study()
    study.set_user_attr("alive elsewhere:7:5", 0)
    presence = Presence(study)

    def begun(ago_s: float | None) -> Any:
        start = None if ago_s is None else datetime.now() - timedelta(seconds=ago_s)
        return SimpleNamespace(user_attrs={}, datetime_start=start)

    assert [presence.is_running(begun(ago_s)) for ago_s in (1.0, 55.0, 65.0, None)] == [True, True, False, True]


def test_a_figure_that_is_no_number_is_answered_with_those_that_are() -> None:
    record = Record("k", {}, {}, {"a": 1.5, "b": "text", "c": True, "d": None, "e": math.inf, "f": 2}, 0.0)
    assert [Goal(key).value(record) for key in "adef"] == [1.5, None, None, 2.0]
    for key in ("b", "c", "x"):
        with pytest.raises(InputError, match=rf"^objectives: {key} is no number of a summary; choose from a, e, f$"):
            Goal(key).value(record)


def test_dimensions_of_up_to_sixteen_values_are_cells() -> None:
    few, many = Dimension("few", IntDistribution(1, 16)), Dimension("many", IntDistribution(1, 17))
    wide = Dimension("wide", FloatDistribution(0.0, 1.0))
    found: Any = SimpleNamespace(importances={}, space=SimpleNamespace(dimensions=(wide, many, few, COUNT)))
    assert plots._grids(found) == [few, COUNT]
    found.importances = {"count": 0.5}
    assert plots._grids(found) == [COUNT, few]
