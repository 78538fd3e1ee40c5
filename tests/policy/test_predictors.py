"""Predictors: exact where they say so, wrong as published where they are fitted, whoever asks when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from omegaconf import OmegaConf

from framework.errors import InputError
from framework.policy.predictor import Predictions, Predictor
from framework.workload import Workload
from predictors._noise import normals, request_keys, uniforms
from predictors.bucket import Bucket
from predictors.empirical import Empirical
from predictors.lognormal import LogNormal, relative_mae
from predictors.oracle import Oracle
from tests.conftest import ROOT
from traces.fitted.fitted_trace import load_fitted
from traces.frame import to_workload

Ints = NDArray[np.int64]
MAKERS: dict[str, Callable[[], Predictor]] = {
    "oracle": Oracle,
    "lognormal": LogNormal,
    "persistent": lambda: LogNormal(persistence=0.5),
    "bucket": Bucket,
    "empirical": Empirical,
}
every_predictor = pytest.mark.parametrize("name", MAKERS)
outputs = st.lists(st.integers(1, 40_000), min_size=1, max_size=30)


def workload(output_tokens: Sequence[int] | Ints) -> Workload:
    lengths = np.asarray(output_tokens, np.int64)
    return Workload(np.zeros(len(lengths)), np.ones(len(lengths), np.int64), lengths)


def prepared(predictor: Predictor, output_tokens: Sequence[int] | Ints, seed: int = 0) -> Predictor:
    predictor.prepare(workload(output_tokens), seed)
    return predictor


def everyone(output_tokens: Ints, generated: Ints | int) -> tuple[Ints, Ints]:
    ids = np.arange(len(output_tokens))
    return ids, np.broadcast_to(np.asarray(generated), ids.shape).astype(np.int64)


def mae(predictor: Predictor, output_tokens: Ints, generated: Ints | int) -> float:
    ids, at = everyone(output_tokens, generated)
    remaining, _ = predictor.predict(ids, at)
    return float(np.abs(remaining - (output_tokens - at)).mean())


def overall_mae(predictor: Predictor, output_tokens: Ints, every: int = 100) -> float:
    """The MAE over one prediction every so many tokens of each request."""
    ids = np.repeat(np.arange(len(output_tokens)), -(-output_tokens // every))
    first = np.cumsum(np.bincount(ids)) - np.bincount(ids)
    generated = (np.arange(len(ids)) - first[ids]) * every
    remaining, _ = predictor.predict(ids, generated)
    return float(np.abs(remaining - (output_tokens[ids] - generated)).mean())


# Whatever the predictor


@every_predictor
@settings(max_examples=15)
@given(lengths=outputs, seed=st.integers(0, 2**70), data=st.data())
def test_answers_depend_neither_on_order_nor_on_grouping(name: str, lengths: list[int], seed: int, data: Any) -> None:
    questions = data.draw(
        st.lists(
            st.integers(0, len(lengths) - 1).flatmap(lambda r: st.tuples(st.just(r), st.integers(0, lengths[r] - 1)))
        )
    )
    shuffled = data.draw(st.permutations(questions))
    asked = np.asarray(questions, np.int64).reshape(-1, 2)
    whole = prepared(MAKERS[name](), lengths, seed).predict(asked[:, 0], asked[:, 1])
    answers = dict(zip(questions, zip(*whole, strict=True), strict=True))
    another = prepared(MAKERS[name](), lengths, seed)
    for request, generated in shuffled:
        remaining, spread = another.predict(np.asarray([request]), np.asarray([generated]))
        assert (remaining[0], spread[0]) == answers[request, generated]


@every_predictor
@given(lengths=outputs, data=st.data())
def test_estimates_are_usable_numbers(name: str, lengths: list[int], data: Any) -> None:
    at = np.asarray([data.draw(st.integers(0, length - 1)) for length in lengths])
    remaining, spread = prepared(MAKERS[name](), lengths).predict(*everyone(np.asarray(lengths), at))
    assert remaining.dtype == spread.dtype == np.float64
    assert remaining.shape == spread.shape == at.shape
    assert np.all(np.isfinite(remaining) & (remaining >= 1))
    assert np.all(np.isfinite(spread) & (spread >= 0))


@pytest.mark.parametrize("name", ["lognormal", "persistent", "bucket"])
def test_seeds_differ(name: str) -> None:
    lengths = np.full(200, 5000)
    first, second, again = (
        prepared(MAKERS[name](), lengths, seed).predict(*everyone(lengths, 0))[0] for seed in (0, 1, 0)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", ["lognormal", "bucket", "empirical"])
def test_the_configured_defaults_are_those_of_the_class(name: str) -> None:
    configured = instantiate(OmegaConf.load(ROOT / "conf" / "predictor" / f"{name}.yaml"))
    default = MAKERS[name]()
    for field in OmegaConf.load(ROOT / "conf" / "predictor" / f"{name}.yaml"):
        if field != "_target_":
            assert getattr(configured, str(field)) == getattr(default, str(field))


def test_none_is_no_predictor() -> None:
    assert instantiate(OmegaConf.load(ROOT / "conf" / "predictor" / "none.yaml")) is None


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: LogNormal(sigma=-0.1), "sigma"),
        (lambda: LogNormal(sigma=5.1), "sigma"),
        (lambda: LogNormal(sigma=float("nan")), "sigma"),
        (lambda: LogNormal(decay_tokens=0), "decay_tokens"),
        (lambda: LogNormal(persistence=1.5), "persistence"),
        (lambda: LogNormal(stride=0), "stride"),
        (lambda: Bucket(width=0), "width"),
        (lambda: Bucket(width=1.5), "width"),  # type: ignore[arg-type]
        (lambda: Bucket(accuracy=75), "accuracy"),
        (lambda: Bucket(accuracy="high"), "accuracy"),  # type: ignore[arg-type]
        (lambda: Empirical(prior_tokens=0), "prior_tokens"),
        (lambda: Empirical(prior_weight=0), "prior_weight"),
        (lambda: Empirical(stride=True), "stride"),
    ],
)
def test_impossible_parameters_are_refused_in_one_line(make: Callable[[], Predictor], named: str) -> None:
    with pytest.raises(InputError, match=rf"^predictor\.{named} [^\n]*$"):
        make()


# The memory of a run


class Counting(Predictor):
    """Answers with what it was asked, and keeps it."""

    stride = 10

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.observed: list[tuple[int, int]] = []

    def predict(self, requests: Ints, generated: Ints) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        self.asked += zip(requests.tolist(), generated.tolist(), strict=True)
        return (1000 - generated).astype(np.float64), requests.astype(np.float64)

    def observe(self, request: int, output_tokens: int) -> None:
        self.observed.append((request, output_tokens))


def remembered(predictor: Predictor | None, lengths: Sequence[int], ended: Sequence[int] = ()) -> Predictions:
    return Predictions(predictor, workload(lengths), lambda: np.asarray(ended, np.int64))


def test_a_stride_is_asked_once_and_as_of_its_start() -> None:
    predictor = Counting()
    memory = remembered(predictor, [50, 60, 70])
    ids = np.asarray([2, 0])
    assert memory.remaining(ids, np.asarray([7, 13])).tolist() == [1000, 990]
    assert memory.spread(ids, np.asarray([9, 19])).tolist() == [2, 0]
    assert memory.remaining(ids, np.asarray([10, 12])).tolist() == [990, 990]
    assert predictor.asked == [(2, 0), (0, 10), (2, 10)]
    assert memory.first_total[[2, 0]].tolist() == [1000, 1000]
    assert np.isnan(memory.first_total[1])


def test_who_looked_before_does_not_matter() -> None:
    late, early = remembered(Counting(), [50]), remembered(Counting(), [50])
    ids = np.asarray([0])
    early.remaining(ids, np.asarray([20]))
    assert early.remaining(ids, np.asarray([28])) == late.remaining(ids, np.asarray([28]))


def test_what_has_ended_is_observed_once_and_before_the_next_answer() -> None:
    predictor = Counting()
    memory = remembered(predictor, [50, 60, 70], ended=[2, 0])
    for generated in (0, 10):
        memory.remaining(np.asarray([1]), np.asarray([generated]))
    assert predictor.observed == [(2, 70), (0, 50)]


def test_without_a_predictor_nothing_is_known() -> None:
    memory = remembered(None, [50])
    assert np.isnan(memory.remaining(np.asarray([0]), np.asarray([0]))).all()
    assert np.isnan(memory.spread(np.asarray([0]), np.asarray([0]))).all()


# Random numbers


def splitmix64(state: int) -> int:
    """The output for a state, after the published C code, in Python's unbounded integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6))
def test_streams_are_splitmix64(key: int, index: int) -> None:
    bits = splitmix64((key + (index + 1) * 0x9E3779B97F4A7C15) % 2**64)
    drawn = uniforms(np.asarray([key], np.uint64), np.asarray([index]))
    assert drawn[0] == ((bits >> 11) + 0.5) / 2**53


def test_the_generator_is_the_published_one() -> None:
    assert splitmix64(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # first output of seed 0


def test_normals_are_standard_and_independent_between_requests_strides_and_seeds() -> None:
    requests, strides = 200, 400
    index = np.tile(np.arange(strides), requests)
    tables = [normals(np.repeat(request_keys(seed, requests), strides), index) for seed in (0, 1)]
    table = tables[0].reshape(requests, strides)
    deviation = 1 / np.sqrt(table.size)
    assert abs(table.mean()) < 4 * deviation
    assert abs(table.var() - 1) < 4 * np.sqrt(2) * deviation
    assert abs((table**4).mean() - 3) < 4 * np.sqrt(96) * deviation
    assert len(np.unique(table)) == table.size
    for one, other in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1]), (tables[0], tables[1])):
        assert abs((one * other).mean()) < 4 * deviation


# Oracle


@given(outputs, st.data())
def test_the_oracle_is_exact_at_every_token_also_from_memory(lengths: list[int], data: Any) -> None:
    memory = remembered(prepared(Oracle(), lengths), lengths)
    ids = np.arange(len(lengths))
    for _ in range(3):
        at = np.asarray([data.draw(st.integers(0, length - 1)) for length in lengths])
        assert np.array_equal(memory.remaining(ids, at), np.asarray(lengths) - at)
        assert not memory.spread(ids, at).any()


# Log-normal


LONG = np.random.default_rng(1).integers(30_000, 32_000, 200_000, endpoint=True)


@pytest.mark.parametrize("persistence", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(("generated", "published"), [(0, 18_256), (8_000, 2_929)])
def test_lognormal_has_the_published_errors_on_long_outputs(generated: int, published: int, persistence: float) -> None:
    assert mae(prepared(LogNormal(persistence=persistence), LONG), LONG, generated) == pytest.approx(
        published, rel=0.01
    )


def test_lognormal_parameters_are_the_solution_for_the_published_errors() -> None:
    default = LogNormal()
    assert relative_mae(default.sigma) * 31_000 == pytest.approx(18_256, rel=1e-3)
    assert relative_mae(default.sigma * np.exp(-8_000 / default.decay_tokens)) * 23_000 == pytest.approx(
        2_929, rel=1e-3
    )


def test_lognormal_errors_over_whole_lives_are_those_that_are_documented() -> None:
    uniform = np.random.default_rng(2).integers(1, 32_000, 2_000, endpoint=True)
    assert overall_mae(prepared(LogNormal(), uniform), uniform) == pytest.approx(2_200, rel=0.05)
    cliff = np.where(np.arange(32_000) < 8_000, relative_mae(0.6421), relative_mae(0.1583))
    lives = [cliff[:n] @ np.arange(n, 0, -1.0) for n in uniform]
    assert sum(lives) / uniform.sum() == pytest.approx(4_200, rel=0.05)


def test_the_published_overall_error_is_more_than_the_mean_remaining_length_of_the_reasoning_twin() -> None:
    lengths = to_workload(load_fitted("reasoning").sample(5_000, seed=3)).output_tokens
    mean_remaining = (lengths * (lengths + 1.0)).sum() / 2 / lengths.sum()
    assert overall_mae(prepared(LogNormal(), lengths), lengths) < mean_remaining < 3_873


@pytest.mark.parametrize("generated", [0, 2_000, 10_000])
def test_lognormal_errs_either_way_as_often_and_by_less_with_progress(generated: int) -> None:
    lengths = np.full(50_000, 12_000)
    model = prepared(LogNormal(), lengths)
    remaining, spread = model.predict(*everyone(lengths, generated))
    true = 12_000 - generated
    assert (remaining > true).mean() == pytest.approx(0.5, abs=0.01)
    logarithms = np.log(remaining / true)
    assert logarithms.std() == pytest.approx(0.6421 * np.exp(-generated / 5713), rel=0.02)
    # The reported spread is that of truth about an estimate: truth = estimate * exp(error).
    assert spread[0] == pytest.approx(np.exp(logarithms).std() * remaining[0], rel=0.05)


@pytest.mark.parametrize("persistence", [0.0, 0.5, 1.0])
def test_persistence_is_the_correlation_of_a_requests_errors(persistence: float) -> None:
    lengths = np.full(20_000, 10**9)
    model = prepared(LogNormal(decay_tokens=1e12, persistence=persistence), lengths)
    errors = [np.log(model.predict(*everyone(lengths, at))[0]) for at in (0, 19, 20, 4_000)]
    assert np.corrcoef(errors[0], errors[1])[0, 1] == pytest.approx(1)  # one stride
    for other in errors[2:]:
        assert np.corrcoef(errors[0], other)[0, 1] == pytest.approx(persistence, abs=0.03)


# Bucket


@pytest.mark.parametrize(("width", "accuracy"), [(100, 0.589), (200, 0.749), (400, 0.85)])
def test_buckets_are_right_as_often_as_published_and_else_next_to_it(width: int, accuracy: float) -> None:
    lengths = np.random.default_rng(4).integers(1, 2_000, 40_000, endpoint=True)
    remaining, spread = prepared(Bucket(width, accuracy), lengths).predict(*everyone(lengths, 0))
    guessed, inside = np.divmod(remaining, width)
    off = guessed - (lengths - 1) // width
    assert np.all(inside == width / 2)
    assert guessed.min() == 0
    assert (off == 0).mean() == pytest.approx(accuracy, abs=0.01)
    assert np.abs(off).max() == 1
    middle = lengths > width
    assert (off[middle] == 1).mean() == pytest.approx((1 - accuracy) / 2, abs=0.01)
    assert spread[0] == pytest.approx((remaining - lengths)[middle].std(), rel=0.03)


@given(st.integers(1, 3_000), st.integers(1, 500), st.integers(0, 50))
def test_a_bucket_is_guessed_once_and_counted_down_to_one(length: int, width: int, seed: int) -> None:
    model = prepared(Bucket(width, 0.5), [length], seed)
    at = np.arange(length)
    whole = model.predict(np.zeros(1, np.int64), np.zeros(1, np.int64))[0][0]
    remaining, _ = model.predict(np.zeros_like(at), at)
    assert np.array_equal(remaining, np.maximum(max(whole, 1) - at, 1))


def test_a_sure_bucket_is_off_by_half_a_width_at_most() -> None:
    lengths = np.arange(1, 5_000)
    remaining, _ = prepared(Bucket(100, 1.0), lengths).predict(*everyone(lengths, 0))
    assert np.abs(remaining - lengths).max() <= 50


# Empirical


def residual_life(finished: list[int], generated: int, prior_tokens: float, prior_weight: float) -> tuple[float, float]:
    """Mean and deviation of what finished requests that got this far had left, one by one, with the prior."""
    lives = [length - generated for length in finished if length > generated]
    weight = len(lives) + prior_weight
    mean = (sum(lives) + prior_weight * prior_tokens) / weight
    second = (sum(life**2 for life in lives) + prior_weight * 2 * prior_tokens**2) / weight
    return mean, (second - mean**2) ** 0.5


@given(
    finished=st.lists(st.integers(1, 3_000) | st.sampled_from([255, 256, 257, 511, 512, 513, 100_000]), max_size=40),
    asked=st.lists(st.integers(0, 3_500) | st.sampled_from([255, 256, 257, 511, 512, 99_999, 10**6]), min_size=1),
    prior_tokens=st.floats(1, 5_000),
    prior_weight=st.floats(1e-3, 100),
)
def test_empirical_is_the_mean_residual_life(
    finished: list[int], asked: list[int], prior_tokens: float, prior_weight: float
) -> None:
    model = prepared(Empirical(prior_tokens, prior_weight), [1])
    for request, length in enumerate(finished):
        model.observe(request, length)
    remaining, spread = model.predict(np.zeros(len(asked), np.int64), np.asarray(asked))
    expected = [residual_life(finished, generated, prior_tokens, prior_weight) for generated in asked]
    assert remaining == pytest.approx([mean for mean, _ in expected], rel=1e-9)
    assert spread == pytest.approx([deviation for _, deviation in expected], rel=1e-6, abs=0.05)


@given(st.lists(st.integers(1, 5_000), min_size=2, max_size=20), st.data())
def test_empirical_does_not_mind_the_order_of_ends(finished: list[int], data: Any) -> None:
    answers = []
    for order in (finished, data.draw(st.permutations(finished))):
        model = prepared(Empirical(), [1])
        for length in order:
            model.observe(0, length)
        answers.append(model.predict(np.zeros(5_000, np.int64), np.arange(5_000)))
    assert np.array_equal(answers[0], answers[1])


def test_empirical_never_looks_at_the_truth_and_starts_each_run_afresh() -> None:
    model = prepared(Empirical(prior_tokens=300), [10, 10_000])
    model.observe(0, 10)
    remaining, spread = prepared(model, [10, 10_000]).predict(np.arange(2), np.zeros(2, np.int64))
    assert remaining.tolist() == [300, 300]
    assert spread.tolist() == [300, 300]


def test_empirical_finds_the_law_it_is_shown() -> None:
    lengths = np.random.default_rng(5).geometric(1 / 800, 20_000)  # memoryless: always 800 to go
    model = prepared(Empirical(prior_tokens=1), [1])
    for length in lengths.tolist():
        model.observe(0, length)
    remaining, spread = model.predict(np.zeros(3, np.int64), np.asarray([0, 400, 1_600]))
    assert remaining == pytest.approx(np.full(3, 800), rel=0.05)
    assert spread == pytest.approx(np.full(3, 800), rel=0.05)
