"""What a search of settings is made of: its Gaussian process, figures and weights, dimensions, expressions, rungs."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

from experiments.tune import surrogate
from experiments.tune.base import Configuration, with_demand
from experiments.tune.candidates import Candidates
from experiments.tune.command import _replays, _said, _workers
from experiments.tune.expression import Expression
from experiments.tune.feasible import Feasibility
from experiments.tune.files import _cell
from experiments.tune.goals import Goal
from experiments.tune.gp import GaussianProcess, _matern
from experiments.tune.pruner import make_pruner, read_prefixes, rungs
from experiments.tune.report import _setting
from experiments.tune.result import Findings, Row
from experiments.tune.sampler import SamplerKind
from experiments.tune.space import Dimension, Point, Space, override_text
from experiments.tune.space_file import _range
from experiments.tune.surrogate import Surrogate, Tried
from framework.errors import InputError

RNG = np.random.default_rng


# --- the Gaussian process ---------------------------------------------------------------------------------------------


def process(count: int = 12) -> tuple[GaussianProcess, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Over two columns of one group and one of another."""
    x = RNG(0).random((count, 3))
    y = np.sin(4 * x[:, 0]) + x[:, 1] ** 2 + 0.1 * x[:, 2]
    return GaussianProcess(x, y, [0, 0, 1]), x, y


def matern(one: Any, other: Any, lengths: Any) -> float:
    """Rasmussen and Williams, equation 4.17."""
    r = math.sqrt(sum(((a - b) / length) ** 2 for a, b, length in zip(one, other, lengths, strict=True)))
    return (1 + math.sqrt(5) * r + 5 * r * r / 3) * math.exp(-math.sqrt(5) * r)


def test_the_covariance_is_materns() -> None:
    one, other, lengths = RNG(1).random((4, 3)), RNG(2).random((2, 3)), np.array([0.5, 1.0, 2.0])
    expected = [[matern(a, b, lengths) for b in other] for a in one]
    assert _matern(one, other, lengths) == pytest.approx(np.array(expected))


def test_what_is_expected_is_the_mean_of_the_posterior() -> None:
    """Rasmussen and Williams, equations 2.25 and 2.26, with what was fitted."""
    found, x, y = process()
    at = RNG(3).random((5, 3))
    noise = (found._noise + 1e-9) * np.eye(len(x))
    inverse = np.linalg.inv(found._variance * np.array([[matern(a, b, found._lengths) for b in x] for a in x]) + noise)
    across = found._variance * np.array([[matern(a, b, found._lengths) for b in x] for a in at])
    scaled = (y - y.mean()) / y.std()
    assert found.expected(at) == pytest.approx(across @ inverse @ scaled)
    mean, deviation = found._predicted(at, found._lengths, x, scaled)
    assert mean == pytest.approx(across @ inverse @ scaled)
    assert deviation**2 == pytest.approx(found._variance - np.diag(across @ inverse @ across.T))


def test_what_was_observed_is_expected_where_it_was() -> None:
    found, x, y = process()
    assert found.expected(x) == pytest.approx((y - y.mean()) / y.std(), abs=0.02)
    assert found._lengths[0] == found._lengths[1]  # of one group
    flat = GaussianProcess(x, np.full(len(x), 3.0), [0, 0, 1])
    assert flat.expected(x).tolist() == [0.0] * len(x)


def test_the_gradient_of_the_loss_is_its_slope() -> None:
    found, _, _ = process(6)
    start, spreads = np.array([-0.7, -0.6, 0.0, -5.0]), np.array([1.0, 1.0, 1.0, 1.5])
    at = np.array([-0.3, 0.4, 0.2, -3.0])
    _, gradient = found._loss(at, start, spreads)
    for k in range(4):
        step = 1e-5 * np.eye(4)[k]
        slope = (found._loss(at + step, start, spreads)[0] - found._loss(at - step, start, spreads)[0]) / 2e-5
        assert gradient[k] == pytest.approx(slope, rel=1e-4)


def test_the_loss_is_minus_the_logarithm_of_the_posterior() -> None:
    """Of a normal density with that covariance, and of normal priors; differences of two are free of constants."""
    found, x, _ = process(6)
    start, spreads = np.array([-0.7, -0.6, 0.0, -5.0]), np.array([1.0, 2.0, 1.0, 1.5])

    def loss(at: Any) -> float:
        lengths = np.exp([at[0], at[0], at[1]])
        covariance = np.exp(at[2]) * np.array([[matern(a, b, lengths) for b in x] for a in x])
        covariance += (np.exp(at[3]) + 1e-9) * np.eye(len(x))
        fit = 0.5 * found._z @ np.linalg.inv(covariance) @ found._z + 0.5 * np.linalg.slogdet(covariance)[1]
        return float(fit + 0.5 * (((at - start) / spreads) ** 2).sum())

    for at in (start, np.array([0.1, -1.0, 0.3, -2.0])):
        assert found._loss(at, start, spreads)[0] == pytest.approx(loss(at))


def test_the_improvement_is_that_of_draws_of_the_posterior() -> None:
    """Over three smoothnesses; a pending point counts as observed at what is expected of it."""
    found, x, y = process()
    at, z = RNG(4).random((3, 3)), (y - y.mean()) / y.std()
    normal = RNG(5).standard_normal((200_000, 1))
    expected = np.zeros(3)
    for scaling in (0.5, 1.0, 2.0):
        mean, deviation = found._predicted(at, scaling * found._lengths, x, z)
        expected += np.maximum(mean + deviation * normal - z.max(), 0.0).mean(axis=0) / 3
    assert found.improvement(at, np.zeros((0, 3))) == pytest.approx(expected, rel=0.05, abs=1e-4)
    assert found.improvement(at, at[:1])[0] < 0.2 * found.improvement(at, np.zeros((0, 3)))[0]


# --- figures of trials ------------------------------------------------------------------------------------------------


def test_figures_of_one_sign_count_by_their_logarithms_and_the_worst_alike() -> None:
    assert surrogate._compressed(np.array([100.0, 10.0, 0.5, 0.0])) == pytest.approx(np.log([100.0, 10.0, 1.0, 1.0]))
    assert surrogate._compressed(np.array([-2.0, -20.0, -900.0])) == pytest.approx(-np.log([2.0, 20.0, 200.0]))
    for values in ([1.0, -1.0], [0.0, 0.0], [0.0, -1.0]):
        assert surrogate._compressed(np.array(values)).tolist() == values


def test_what_could_not_be_run_is_as_bad_as_the_worst() -> None:
    found = surrogate._scalar([(4.0,), (), (2.0,)], RNG(0))
    assert found == pytest.approx(np.log([4.0, 2.0, 2.0]))


def test_several_goals_are_weighed_by_their_worst_and_a_little_by_their_sum() -> None:
    """ParEGO: of shares of the ranges times weights the least, and 0.05 times their sum."""
    values = [(1.0, 100.0), (100.0, 1.0), (10.0, 10.0), ()]
    weights = RNG(7).dirichlet(np.ones(2))
    shares = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    figure = (weights * shares).min(axis=1) + 0.05 * (weights * shares).sum(axis=1)
    assert surrogate._scalar(values, RNG(7)) == pytest.approx([*figure, figure.min()])
    same = surrogate._scalar([(1.0, 2.0), (2.0, 2.0)], RNG(7))
    assert same == pytest.approx([0.0, 0.05 * weights[0]])


# --- spaces -----------------------------------------------------------------------------------------------------------

COUNT = Dimension("count", IntDistribution(2, 6))
SHARE = Dimension("share", FloatDistribution(0.0, 1.0))
SCALE = Dimension("scale", FloatDistribution(0.01, 100.0, log=True))
BUDGET = Dimension("engine.budget", IntDistribution(8, 12), is_exponent=True)
ORDER = Dimension("order", CategoricalDistribution(["first", "last", "short"]))
SIZES = Dimension("sizes", CategoricalDistribution([1, 10, 100]))


def space(*dimensions: Dimension, **changes: Any) -> Space:
    settings = {dimension.name: None for dimension in dimensions}
    known: dict[str, Any] = {
        "name": "own",
        "fixed": {},
        "dimensions": dimensions,
        "derived": {},
        "required": (),
        "starts": (),
        "settings": settings,
    }
    return Space(**(known | changes))


def test_a_drawn_number_stands_for_a_value() -> None:
    assert (COUNT.value(3), BUDGET.value(9), ORDER.value("last")) == (3, 512, "last")
    assert SHARE.value(0.123456789) == 0.1235
    assert (BUDGET.label, COUNT.label) == ("log2 engine.budget", "count")
    assert [one.is_logarithmic for one in (COUNT, SHARE, SCALE, ORDER)] == [False, False, True, False]


def test_a_value_is_drawn_where_it_can_be_and_else_the_middle() -> None:
    assert [COUNT.drawn(value) for value in (2, 6, 3.4, 7, 1, None, "3")] == [2, 6, 3, 4, 4, 4, 4]
    assert [BUDGET.drawn(value) for value in (256, 4096, 300, 8192, 0, -4)] == [8, 12, 8, 10, 10, 10]
    assert [SHARE.drawn(value) for value in (0.25, 1, 1.5)] == [0.25, 1.0, 0.5]
    assert [ORDER.drawn(value) for value in ("short", "none")] == ["short", "first"]


def test_places_in_a_range() -> None:
    assert [COUNT.at(share) for share in (0.0, 0.19, 0.2, 0.5, 0.99)] == [2, 2, 3, 4, 6]
    assert [SHARE.at(share) for share in (0.0, 0.5)] == [0.0, 0.5]
    assert [SCALE.at(share) for share in (0.0, 0.5, 0.75)] == pytest.approx([0.01, 1.0, 10.0])
    assert [COUNT.position(drawn) for drawn in (2, 4, 6)] == [0.0, 0.5, 1.0]
    assert [SCALE.position(drawn) for drawn in (0.01, 1.0, 100.0)] == pytest.approx([0.0, 0.5, 1.0])
    assert [SIZES.position(drawn) for drawn in (1, 10, 100)] == [0.0, 0.5, 1.0]
    assert Dimension("one", IntDistribution(3, 3)).position(3) == 0.0
    assert Dimension("one", CategoricalDistribution([5])).position(5) == 0.0


def test_what_can_be_drawn_and_where_it_stands() -> None:
    assert list(COUNT.all() or ()) == [2, 3, 4, 5, 6]
    assert SHARE.all() is None
    assert [COUNT.index(drawn) for drawn in (2, 6)] == [0, 4]
    assert [SHARE.index(drawn) for drawn in (0.0, 0.19, 0.2, 0.95)] == [0, 1, 2, 9]
    assert ORDER.index("short") == 2
    assert (COUNT.numbers(4), SIZES.numbers(10)) == ([0.5], [0.5])
    assert ORDER.numbers("last") == pytest.approx([0.0, math.sqrt(0.5), 0.0])


def test_points_are_drawn_derived_and_held_against_what_is_required() -> None:
    own = space(
        COUNT,
        BUDGET,
        fixed={"gpus": 8},
        derived={"half": Expression("gpus // 2"), "left": Expression("half - count")},
        required=(Expression("left"), Expression("count - 3")),
        settings={"count": 4, "engine.budget": 2048, "left": 0},
        starts=(
            {"count": Expression("load_prefill_gpus"), "engine.budget": Expression("600")},
            {"count": Expression("gpus - 5")},
            {"engine.budget": Expression("300")},
            {"count": Expression("3")},
        ),
    )
    assert own.size == 25
    assert len(list(own.points())) == 25
    point = own.point({"count": 6, "log2 engine.budget": 9})
    assert point.settings == {"left": -2, "count": 6, "engine.budget": 512}
    assert point.overrides == ("left=-2", "count=6", "engine.budget=512")
    assert point.shortfall == 2.0
    assert [own.point({"count": count, "log2 engine.budget": 9}).shortfall for count in (2, 3, 4, 5)] == [1, 0, 0, 1]
    assert [one.drawn for one in own.first_points()] == [
        {"count": 3, "log2 engine.budget": 11},
        {"count": 4, "log2 engine.budget": 8},
    ]
    assert replace(own, asked={"load_prefill_gpus": 5}).first_points()[0].settings["count"] == 5
    assert space(COUNT, SHARE).size == math.inf
    assert own.distributions == {"count": COUNT.distribution, "log2 engine.budget": BUDGET.distribution}
    assert own.described["space.require"] == "left; count - 3"
    assert own.described["space.left"] == "half - count"


def test_how_far_apart_points_are_drawn() -> None:
    own = space(COUNT, ORDER, SHARE)
    one = {"count": 2, "order": "first", "share": 0.0}
    assert own.distance(one, one) == 0.0
    assert own.distance(one, one | {"count": 4}) == 0.25
    assert own.distance(one, one | {"order": "last"}) == pytest.approx(1.0)
    assert own.distance(one, {"count": 6, "order": "short", "share": 0.5}) == pytest.approx(2.25)


def test_a_point_nearby_moves_a_third_of_its_dimensions_a_tenth_of_their_range() -> None:
    dimensions = tuple(Dimension(f"d{k}", FloatDistribution(0.0, 1.0)) for k in range(9))
    own, rng = space(*dimensions), RNG(0)
    point = own.point({one.label: 0.5 for one in dimensions})
    moved = np.array(
        [[near.drawn[one.label] - 0.5 for one in dimensions] for near in (own.nearby(point, rng) for _ in range(400))]
    )
    changed = moved != 0.0
    assert changed.any(axis=1).all()
    assert changed.sum(axis=1).mean() == pytest.approx(1 / 3 * 8 + 1, rel=0.05)  # one always, a third of the others
    assert moved[changed].std() == pytest.approx(0.1, rel=0.05)
    edge = own.point({one.label: 0.999 for one in dimensions})
    assert all(0.0 <= value < 1.0 for _ in range(50) for value in own.nearby(edge, rng).drawn.values())


def test_names_have_no_neighbours_so_a_point_nearby_has_any() -> None:
    own, rng = space(Dimension("order", CategoricalDistribution(["a", "b", "c"]))), RNG(0)
    point = own.point({"order": "a"})
    assert {own.nearby(point, rng).drawn["order"] for _ in range(30)} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "null"), (True, "true"), (False, "false"), (3, "3"), (0.5, "0.5"), ("a.b/c-d", "a.b/c-d")),
        *(("null", "'null'"), ("True", "'True'"), ("a b", "'a b'"), ("it's", "'it\\'s'"), ("a\\b", "'a\\\\b'")),
    ],
)
def test_values_as_overrides(value: Any, text: str) -> None:
    assert override_text(value) == text


# --- candidates, and the choice among them ----------------------------------------------------------------------------


class All:
    """Feasible is what keeps what the space requires."""

    def __init__(self, own: Space) -> None:
        self.pool = None if own.size == math.inf else list(own.points())

    def is_feasible(self, point: Point) -> bool:
        return point.shortfall == 0


def candidates(own: Space) -> Candidates:
    return Candidates(own, All(own))  # type: ignore[arg-type]


def test_what_is_left_has_not_been_tried() -> None:
    own = space(COUNT)
    points = list(own.points())
    left = candidates(own).left([Tried(points[1], (1.0,)), Tried(points[3], None)], RNG(0))
    assert [point.drawn["count"] for point in left] == [2, 4, 6]
    assert len(candidates(own).sample) == 5


def test_of_a_continuum_some_points_are_drawn_and_some_near_the_best() -> None:
    own = space(SHARE, required=(Expression("0.9 - share"),))
    tried = [Tried(own.point({"share": 0.5}), (9.0,)), Tried(own.point({"share": 0.1}), None)]
    left = candidates(own).left(tried, RNG(0))
    assert 470 < len(left) < 540
    assert max(point.drawn["share"] for point in left) <= 0.9
    near = [point for point in left[-35:] if abs(point.drawn["share"] - 0.5) < 0.35]
    assert len(near) > 30
    assert len(candidates(own).sample) == 500


def test_the_model_finds_the_best_of_a_parabola() -> None:
    """Twelve of 41 points are tried, none near the best, at 28; the next one is near it."""
    own = space(Dimension("x", IntDistribution(0, 40)))
    points = list(own.points())
    tried = [Tried(points[k], (-((k - 28) ** 2) / 100.0,)) for k in (0, 3, 6, 9, 12, 15, 18, 21, 24, 33, 36, 39)]
    left = candidates(own).left(tried, RNG(0))
    chosen = Surrogate(own, points).choose(tried, left, RNG(0))
    assert 25 <= chosen.drawn["x"] <= 31
    assert Surrogate(own, points).importances(tried, points) == {"x": pytest.approx(1.0)}
    assert Surrogate(own, points).importances(tried[:9], points) == {}


def test_few_trials_are_spread_out() -> None:
    own = space(Dimension("x", IntDistribution(0, 20)))
    points = list(own.points())
    chosen = Surrogate(own, points).choose([Tried(points[0], (1.0,)), Tried(points[4], (2.0,))], points[1:], RNG(0))
    assert chosen.drawn["x"] == 20


def test_what_follows_from_settings_is_a_number_in_their_range() -> None:
    derived = surrogate._Derived("x", 2.0, 32.0)
    found = [number for value in (1, 2, 8, 32) for number in derived.numbers(value)]
    assert found == pytest.approx([0.0, 0.0, 0.5, 1.0])


def test_of_two_dimensions_the_one_that_matters_explains_more() -> None:
    own = space(COUNT, ORDER)
    points = list(own.points())
    tried = [Tried(point, (10.0 + point.drawn["count"] + 0.01 * (point.drawn["order"] == "last"),)) for point in points]
    shares = Surrogate(own, points).importances(tried, points)
    assert list(shares) == ["count", "order"]
    assert shares["count"] > 0.95 > 0.05 > shares["order"]


# --- samplers, pruners, expressions, results --------------------------------------------------------------------------


def test_a_sampler_says_what_it_cannot_do() -> None:
    with pytest.raises(InputError, match="one objective only"):
        SamplerKind("cmaes", 0).check(space(COUNT), goals=2)
    SamplerKind("cmaes", 0).check(space(COUNT), goals=1)
    many = space(Dimension("a", IntDistribution(1, 500)), Dimension("b", IntDistribution(1, 101)))
    with pytest.raises(InputError, match="50,500 points, more than 50,000"):
        SamplerKind("grid", 0).check(many, goals=1)
    SamplerKind("grid", 0).check(space(Dimension("a", IntDistribution(1, 50_000))), goals=1)


def test_prefixes_and_rungs() -> None:
    assert read_prefixes(None) == (0.125, 0.25, 0.5)
    assert read_prefixes("[0.2, 0.9]") == (0.2, 0.9)
    for text in ("[0.5, 0.2]", "[0.5, 0.5]", "[0, 0.5]", "[0.5, 1]", "[]", "0.5", "[true]", "[a"):
        with pytest.raises(InputError, match="prefixes must"):
            read_prefixes(text)
    assert [(rung.step, rung.requests) for rung in rungs((0.125, 0.5), 100)] == [(1, 13), (2, 50)]
    assert isinstance(make_pruner("none", (0.5,), 3), NopPruner)
    assert isinstance(make_pruner("median", (0.5,), 1), MedianPruner)
    assert isinstance(make_pruner("hyperband", (0.5,), 1), HyperbandPruner)
    with pytest.raises(InputError, match="there are 2 objectives"):
        make_pruner("median", (0.5,), 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("a.b + 2 * 3", 11), ("-(a.b - 7) / 4", 0.5), ("min(a.b, 3, 4) - max(1, a.b)", -2), ("7 // 2", 3)),
        ("0.5", 0.5),
    ],
)
def test_arithmetic(text: str, value: float) -> None:
    assert Expression(text)({"a.b": 5}) == value
    assert Expression(text).names == ({"a.b"} if "a.b" in text else frozenset())


@pytest.mark.parametrize(
    "text", ["a ** 2", "f(1, 2)", "min(1)", "'a'", "a[0]", "True", "not a", "+a", "max(1, k=2)", "(", "a.f().b"]
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not understood"):
        Expression(text)


@pytest.mark.parametrize(
    ("text", "values", "words"),
    [
        ("a / b", {"a": 1, "b": 0}, "has no value"),
        ("a * a", {"a": 1e200}, "is not finite"),
        ("a + 1", {}, "a is not a number here, but None"),
        ("a + 1", {"a": True}, "a is not a number here, but True"),
    ],
)
def test_expressions_without_a_value(text: str, values: Mapping[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Expression(text)(values)


def rows(*values: tuple[float, ...]) -> tuple[Row, ...]:
    own = space(Dimension("x", IntDistribution(0, 99)))
    return tuple(Row(k, "complete", value, own.point({"x": k}), {}) for k, value in enumerate(values))


def findings(*values: tuple[float, ...], **changes: Any) -> Findings:
    goals = (Goal("request_goodput"), Goal("cost_usd", maximize=False))[: len(values[0])]
    return Findings("own", space(COUNT), 5, goals, changes.get("rows", rows(*values)), {})


def test_trials_are_ranked_by_the_first_goal_each_configuration_once() -> None:
    ended = rows((1.0,), (3.0,), (3.0,), (2.98,), (2.9,))
    again = Row(9, "complete", (1.5,), ended[0].point, {})
    pruned = Row(10, "pruned", (), ended[0].point, {"refused": ""})
    found = findings((1.0,), rows=(*ended, again, pruned))
    assert [row.number for row in found.ranked] == [1, 2, 3, 4, 0]
    assert found.near == 3
    assert (found.count("complete"), found.count("pruned"), found.count("infeasible")) == (6, 1, 0)


def test_the_front_is_what_nothing_is_better_than() -> None:
    """Goodput, the more the better, and cost, the less."""
    found = findings((5.0, 9.0), (4.0, 3.0), (4.0, 4.0), (1.0, 1.0), (1.0, 1.0), (0.5, 3.0))
    assert [row.number for row in found.front] == [0, 1, 3, 4]


def test_a_configuration_is_given_without_hydras_own_part() -> None:
    base = Configuration(("trace=synthetic",))
    assert "hydra" not in base.config
    assert base.config.trace == base._composed.trace
    more = base.with_overrides(["seed=3"])
    assert (more.overrides, more.config.seed) == (("trace=synthetic", "seed=3"), 3)
    assert more.settings["seed"] == 3
    assert more.choices["trace"] == "synthetic"


def test_the_best_point_is_run_again_without_the_launcher_of_the_search() -> None:
    best = Configuration(("policy=ares", "hydra/launcher=joblib", "+hydra.launcher.n_jobs=2", "seed=1"))
    assert _replays("mine", best) == ["python run.py +tuned=mine", "python run.py policy=ares seed=1"]


def test_workers_are_as_many_as_are_asked_for_or_as_joblib_has_cores() -> None:
    assert _workers(None, ["seed=1"]) == 1
    assert _workers(None, ["seed=1", "hydra/launcher=joblib"]) == os.cpu_count()
    assert _workers("3", ["hydra/launcher=joblib"]) == 3
    with pytest.raises(InputError, match="workers"):
        _workers("0", [])


def test_points_of_a_large_space_are_not_looked_at_one_by_one() -> None:
    base = Configuration(())
    assert Feasibility(space(SHARE), base).pool is None
    assert Feasibility(space(Dimension("a", IntDistribution(1, 50_001))), base).pool is None
    few = Feasibility(space(COUNT, required=(Expression("count - 4"),)), base)
    assert [point.drawn["count"] for point in few.pool or ()] == [4, 5, 6]
    assert [few.violation(point) for point in space(COUNT, required=few._space.required).points()] == [2, 1, 0, 0, 0]
    assert few.reason(few._space.point({"count": 2})) == "it misses what the space requires"


def test_a_bracket_begins_with_the_shortest_prefix_and_ends_with_the_whole() -> None:
    pruner: Any = make_pruner("hyperband", (0.25, 0.5), 1)
    assert (pruner._min_resource, pruner._max_resource, pruner._reduction_factor) == (1, 3, 2)


def test_cells_of_a_table_are_numbers_or_text() -> None:
    assert [_cell(value) for value in (None, True, 2, 0.5, "a", [1])] == [None, True, 2, 0.5, "a", "[1]"]


def test_settings_are_shown_as_they_are_typed() -> None:
    row: Any = SimpleNamespace(point=SimpleNamespace(settings={"a": True, "b": 0.12345, "c": "fcfs"}))
    assert [_setting(row, name) for name in "abcd"] == ["true", "0.123", "fcfs", "null"]


def test_a_range_between_fractions_is_one_of_fractions() -> None:
    assert _range("it", 0.5, 2, log=False) == FloatDistribution(0.5, 2.0)
    assert _range("it", 1, 2, log=True) == IntDistribution(1, 2, log=True)


def test_what_a_database_says_is_its_own_first_line() -> None:
    error = RuntimeError("a guess")
    error.__cause__ = ValueError("it is gone\nand more")
    assert _said(error) == "it is gone"
    error.__cause__.orig = OSError("no route\nto it")  # type: ignore[attr-defined]
    assert _said(error) == "no route"


def test_a_space_whose_starts_need_no_demand_is_left_as_it_is() -> None:
    space: Any = SimpleNamespace(starts=[{}, {"cluster.prefill": SimpleNamespace(names={"gpus"})}])
    base: Any = None
    assert with_demand(space, base) is space


def test_in_a_continuum_points_are_drawn_at_random_and_around_the_five_best() -> None:
    def point(name: Any) -> Any:
        return SimpleNamespace(overrides=(name,))

    space: Any = SimpleNamespace(
        random_point=lambda rng: point("random"), nearby=lambda near, rng: point(("near", *near.overrides))
    )
    feasible: Any = SimpleNamespace(pool=None, is_feasible=lambda point: True)
    tried = [Tried(point(k), (float(k),)) for k in range(8)] + [Tried(point(8), None)]
    found = Counter(one.overrides[0] for one in Candidates(space, feasible).left(tried, np.random.default_rng(0)))
    assert found == {"random": 500} | {("near", k): 40 for k in range(3, 8)}
