"""The parts of a calibration one by one, with values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from framework.calibration import fit as fitting
from framework.calibration.apply import apply, calibrations_of
from framework.calibration.benchmark_files import Benchmark
from framework.calibration.benchmark_values import number
from framework.calibration.command import _note, _rate
from framework.calibration.fit import Groups, calibrate, observe
from framework.calibration.optimise import Fitted, Floats, Term
from framework.calibration.prior import prior
from framework.calibration.replay import Deployment, Served, UnservedError, measured, replay, sent_again
from framework.calibration.surfaces import Box, Surfaces, added_noise, coefficients_of
from framework.calibration.tables import _NONE, _difference
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.policy import Policy
from framework.system.cluster import mixed
from framework.system.parallelism import Parallelism
from framework.timing.affine import Affine
from framework.timing.calibration_terms import COMPUTE_TOKENS, Calibration
from framework.timing.server import Server
from framework.timing.table import Curve, StepRow
from tests.helpers.results import GPU, MODEL

SERVER = Deployment(MODEL, mixed(1, GPU), EngineConfig(), calibrations_of(Affine(base_s=0.5)), Policy)


def benchmark(count: int, **changes: Any) -> Benchmark:
    """Prompts of 1, 2, ... tokens, outputs of 2, sent a second apart from 3 s on."""
    known = {
        "name": "made up",
        "sha256": "0" * 64,
        "input_tokens": np.arange(1, count + 1),
        "output_tokens": np.full(count, 2),
        "ttft_s": np.exp(np.arange(count)),
        "tpot_s": np.exp(-np.arange(count, dtype=float)),
        "start_s": 3.0 + np.arange(count),
    }
    return Benchmark(**(known | changes))


def test_a_standard_error_is_in_the_terms_own_unit() -> None:
    factor = Term("kernel", 1.0, width=0.2, lowest=0.5, highest=4.0, factor=True)
    seconds = Term("step_s", 2.0, width=0.2, lowest=0.0, highest=4.0)
    assert factor.error(3.0, 0.5) == pytest.approx(0.3)  # of a logarithm, hence a share of the value
    assert seconds.error(3.0, 0.5) == pytest.approx(0.1)
    assert [factor.value(1.0), factor.z(math.exp(0.2))] == pytest.approx([math.exp(0.2), 1.0])
    assert [seconds.value(1.0), seconds.z(2.2)] == pytest.approx([2.2, 1.0])
    assert (factor.value(99.0), seconds.value(-99.0)) == (4.0, 0.0)


def test_compute_slows_what_linear_layers_take_beyond_reading_weights() -> None:
    """Up to 128 tokens they read weights; of 256 tokens the further second takes twice as long, and attention does."""
    row = StepRow(
        linear=Curve((1.0, COMPUTE_TOKENS, 2 * COMPUTE_TOKENS), (4.0, 4.0, 5.0)),
        attention=Curve((0.0, 64.0), (0.0, 3.0)),
        logits=Curve((1.0, 64.0), (1.0, 2.0)),
    )
    slower = apply(Calibration(compute=2.0), row, StepRow())
    assert slower.linear == Curve((1.0, 128.0, 256.0), (4.0, 4.0, 6.0))
    assert slower.attention == Curve((0.0, 64.0), (0.0, 6.0))
    assert slower.logits == row.logits


def test_work_of_the_server_is_added_once() -> None:
    found = apply(Calibration(kernel=2.0, prefill_step_s=0.25), StepRow(base_s=1.0), StepRow(base_s=0.5))
    assert (found.base_s, found.prefill_step_s) == (2.5, 0.25)


def test_step_times_under_a_calibration_are_made_once_for_each_setup() -> None:
    asked: list[Any] = []

    class Counting:
        source = "counted"

        def row(self, model: Any, gpu: Any, parallelism: Parallelism) -> StepRow:
            asked.append(parallelism)
            return StepRow(base_s=float(parallelism.tp))

    calibrated = calibrations_of(Counting())(Calibration(kernel=3.0))
    assert calibrated.source == "counted, calibrated"
    for tp in (1, 2, 1, 2):
        assert calibrated.row(MODEL, GPU, Parallelism(tp=tp)).base_s == 3.0 * tp
    assert asked == [Parallelism(tp=1), Parallelism(tp=2)]


@pytest.mark.parametrize(("until", "counted"), [(1.0, 24), (2 / 3, 16)])
def test_only_so_many_of_the_first_requests_are_fitted_to(
    until: float, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are replayed; a change to one of the last third of the measured times tells nothing."""
    targets: list[Floats] = []
    lengths: list[int] = []

    def recorded(predict: Any, target: Floats, terms: Sequence[Term], weights: Floats, points: int) -> Fitted:
        targets.append(target)
        lengths.append(len(predict({"kernel": 1.0})))
        assert len(weights) == len(target)
        raise StopIteration

    monkeypatch.setattr(fitting, "fit", recorded)
    one = benchmark(24)
    for changed in (8, 18, None):
        ttft_s = one.ttft_s.copy()
        if changed is not None:
            ttft_s[changed] *= 2
        with pytest.raises(StopIteration):
            calibrate([observe(replace(one, ttft_s=ttft_s))], SERVER, until)
    assert lengths == [len(target) for target in targets]
    assert (targets[0] != targets[2]).any()
    assert (targets[1] != targets[2]).any() == (counted == 24)


def test_groups_are_of_ten_requests_at_least_and_eight_at_most() -> None:
    """By length and by order of sending, TTFT and TPOT: each counts half. Drawn arrivals leave lengths alone."""
    for count, groups in ((12, 1), (19, 1), (20, 2), (80, 8), (99, 8)):
        found = Groups(observe(benchmark(count)), np.arange(count))
        assert found.weights.tolist() == [0.5] * (4 * groups)
    drawn = Groups(observe(benchmark(20, start_s=None, rate=1.0)), np.arange(20))
    assert drawn.weights.tolist() == [1.0] * 4
    single = Groups(observe(benchmark(12, tpot_s=np.full(12, np.nan))), np.arange(12))
    assert len(single.weights) == 2


def test_a_group_is_the_mean_of_the_middle_half_of_log_times() -> None:
    """The log TTFT of 20 requests is 0, 1, ... 19, their order of sending; prompts are longer the earlier they come."""
    one = benchmark(20, input_tokens=np.arange(20, 0, -1))
    found = Groups(observe(one), np.arange(20)).log_times(measured(one))
    assert found == pytest.approx([14.5, 4.5, 4.5, 14.5, -14.5, -4.5, -4.5, -14.5])
    odd = benchmark(15, ttft_s=np.exp(np.arange(15.0) ** 2))
    once = Groups(observe(odd), np.arange(15)).log_times(measured(odd))
    assert once[0] == pytest.approx(np.mean(np.arange(3, 12.0) ** 2))


def test_a_replay_lasts_from_the_first_sending_to_the_last_token() -> None:
    """A step of 0.5 s; 12 requests of two tokens a second apart, from 3 s on: the last one ends at 15 s."""
    served = replay(sent_again(benchmark(12), "recorded"), SERVER, Calibration())
    assert served.duration_s == pytest.approx(12.0)
    assert served.ttft_s == pytest.approx(np.full(12, 0.5))
    assert served.tpot_s == pytest.approx(np.full(12, 0.5))
    assert served.e2e_s == pytest.approx(np.full(12, 1.0))


def test_what_was_measured_lasts_as_the_benchmark_says_or_as_its_requests_do() -> None:
    one = benchmark(12, ttft_s=np.ones(12), tpot_s=np.full(12, 0.5), start_s=np.arange(12.0))
    assert measured(one).duration_s == pytest.approx(11 + 1.5)
    assert measured(replace(one, duration_s=20.0)).duration_s == 20.0
    assert measured(replace(one, start_s=None)).duration_s is None


def test_blocks_of_prompts_are_sent_again() -> None:
    ids = [[7, 8], [], [7]] + [[9]] * 9
    sent = sent_again(benchmark(12, hash_ids=ids, hash_block_tokens=16), "recorded").workload
    assert sent.hash_ids.tolist() == [7, 8, 7] + [9] * 9
    assert [sent.hash_ids_of(r).tolist() for r in range(len(sent))] == ids
    assert sent.hash_block_tokens == 16
    assert sent_again(benchmark(12), "recorded").workload.hash_spans is None


def test_bounds_of_a_term_are_at_least_twice_what_the_server_is_said_to_take() -> None:
    terms = {term.name: term for term in prior(Server("slow", asynchronous=True, host_s=0.04, request_s=0.03))}
    assert (terms["host_s"].centre, terms["host_s"].width, terms["host_s"].highest) == (0.04, 2e-3, 0.08)
    assert (terms["request_s"].highest, terms["request_s"].width) == (10.0, 0.05)
    assert [terms[name].highest for name in ("step_s", "message_s", "host_sequence_s")] == [0.05, 1e-4, 1e-3]
    assert [terms[name].width for name in ("step_s", "message_s", "host_sequence_s")] == [1e-3, 4e-6, 1e-5]
    assert [terms[name].width for name in ("eager_layer_s", "token_s")] == [1e-4, 5e-6]
    assert [terms[name].highest for name in ("eager_layer_s", "token_s")] == [1e-3, 1e-3]
    assert [(terms[name].lowest, terms[name].highest) for name in ("kernel", "compute", "communication")] == [
        (0.3, 3.0),
        (0.5, 2.0),
        (0.2, 5.0),
    ]


def test_a_box_is_shifted_where_it_would_cross_a_bound() -> None:
    lowest, highest = np.array([-1.0, -9.0, 0.0]), np.array([9.0, 1.0, 1.0])
    box = Box.around(np.array([0.0, 0.5, 0.5]), 2.0, lowest, highest)
    assert box.low.tolist() == [-1.0, -3.0, 0.0]
    assert box.high.tolist() == [3.0, 1.0, 1.0]


def test_points_of_a_box_are_a_latin_hypercube() -> None:
    box = Box(np.array([0.0, 10.0]), np.array([1.0, 30.0]))
    points = box.points(8, seed=3)
    for column, low, high in zip(points.T, box.low, box.high, strict=True):
        assert sorted(((column - low) / (high - low) * 8).astype(int)) == list(range(8))
    assert (points == box.points(8, seed=3)).all()
    assert (points != box.points(8, seed=4)).any()


@pytest.mark.parametrize(("terms", "coefficients"), [(1, 3), (2, 6), (3, 10), (7, 36)])
def test_coefficients_of_a_quadratic_surface(terms: int, coefficients: int) -> None:
    assert coefficients_of(terms) == coefficients


def test_a_surface_through_a_quadratic_function_is_that_function() -> None:
    """Two residuals over two terms, without scatter; with the points they are known all the same."""

    def plain(z: Floats) -> Floats:
        x, y = z
        return np.array([1 + 2 * x - y + 3 * x * y + y * y, x * x - 4.0])

    points = np.random.default_rng(0).uniform(-1, 1, (20, 2))
    surfaces = Surfaces.through(points, np.array([plain(point) for point in points]), np.array([0.25, -0.5]))
    for z in (np.array([0.0, 0.0]), np.array([0.7, -0.9])):
        assert surfaces.residuals(z) == pytest.approx(plain(z))
        step = 1e-6
        slopes = [(plain(z + step * unit) - plain(z - step * unit)) / (2 * step) for unit in np.eye(2)]
        assert surfaces._change(z) @ surfaces.coefficients == pytest.approx(np.array(slopes), abs=1e-6)
    assert surfaces.scatter == pytest.approx([0.0, 0.0], abs=1e-7)


def test_the_scatter_of_a_surface_is_that_of_what_it_is_laid_through() -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform(-1, 1, (4000, 1))
    surfaces = Surfaces.through(points, points + np.array([0.1, 0.3]) * rng.standard_normal((4000, 2)), np.zeros(1))
    assert surfaces.scatter == pytest.approx([0.1, 0.3], rel=0.04)


@pytest.mark.parametrize(("scatter", "terms"), [(0.0, 0), (0.3, 0), (0.0, 200)])
def test_the_noise_is_what_residuals_have_with_the_scatter(scatter: float, terms: int) -> None:
    """Of a unit normal distribution times 0.5; of 400 residuals 200 terms have taken half of the variance."""
    residuals = 0.5 * np.random.default_rng(2).standard_normal(400)
    found = added_noise(residuals, np.full(400, scatter), np.ones(400), terms)
    whole = 0.5 if terms == 0 else 0.5 * 2**0.5 * 1.05  # a cut distribution loses less of its variance
    assert found == pytest.approx(math.sqrt(whole**2 - scatter**2), rel=0.08)


def test_served_times_of_single_tokens_have_no_tpot() -> None:
    served: Served = replay(
        sent_again(benchmark(12, output_tokens=np.ones(12, int)), "recorded"), SERVER, Calibration()
    )
    assert np.isnan(served.tpot_s).all()
    assert served.e2e_s.tolist() == served.ttft_s.tolist()


def test_a_number_may_be_the_least_and_the_most_that_is_allowed() -> None:
    assert number("x", "2.5", least=2.5, most=2.5) == 2.5
    for value, words in (
        (2.0, "at least 2.5"),
        (3, "at most 2.5"),
        (True, "a finite number"),
        ("x", "a finite number"),
    ):
        with pytest.raises(InputError, match=f"x must be {words}"):
            number("x", value, least=2.5, most=2.5)


def test_a_difference_is_relative_to_what_was_measured() -> None:
    assert _difference(1.1, 1.0) == "+10.0 %"
    assert _difference(0.5, 2.0) == "-75.0 %"
    assert {_difference(1.0, 0.0), _difference(None, 1.0), _difference(1.0, None)} == {_NONE}


def test_a_server_that_refuses_requests_says_how_many() -> None:
    error = UnservedError("it refuses 3", 3)
    assert (str(error), error.unserved) == ("it refuses 3", 3)


def test_the_note_of_a_fit_names_the_loads_and_the_errors_of_what_the_data_told() -> None:
    observed: Any = [SimpleNamespace(sent=SimpleNamespace(by=by)) for by in ("closed 4", "rate 2", "closed 4")]
    fitted: Any = SimpleNamespace(errors={"kernel": 0.125, "host_s": 0.5}, known={"kernel": True, "host_s": False})
    assert _note(observed, SERVER, fitted).endswith("arrivals closed 4, rate 2; standard errors: kernel 0.12")
    fitted.known["kernel"] = False
    assert _note(observed, SERVER, fitted).endswith("standard errors: nothing was determined")


def test_a_rate_may_be_less_than_one_a_second_and_without_limit() -> None:
    assert [_rate("0.5"), _rate("inf")] == [0.5, math.inf]
    with pytest.raises(InputError, match="rate must be a number of requests/s above 0, or inf; got '0'"):
        _rate("0")
