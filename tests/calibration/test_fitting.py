"""Fits to predictions whose parameters are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest

from framework.calibration import optimise
from framework.calibration.optimise import Floats, Term, fit
from framework.errors import InputError

PRIOR = (
    Term("kernel", 1.0, width=0.15, lowest=0.3, highest=3.0, factor=True),
    Term("step_s", 0.0, width=1e-3, lowest=0.0, highest=0.05),
    Term("request_s", 0.0, width=0.05, lowest=0.0, highest=10.0),
)
TRUTH = {"kernel": 0.85, "step_s": 1.2e-3, "request_s": 0.03}
TOKENS = np.linspace(100, 8000, 12)
BATCHES = np.linspace(1, 200, 12)


def times(values: Mapping[str, float]) -> Floats:
    """Log times of prefills and decode steps: kernel x work + overheads."""
    prefill_s = values["kernel"] * 2e-5 * TOKENS + values["step_s"] + values["request_s"]
    decode_s = values["kernel"] * (6e-3 + 4e-5 * BATCHES) + values["step_s"]
    return np.log(np.concatenate([prefill_s, decode_s]))


def measured(noise: float, seed: int = 0, truth: Mapping[str, float] = TRUTH) -> Floats:
    return times(truth) + noise * np.random.default_rng(seed).standard_normal(24)


def jumping(size: float) -> Callable[[Mapping[str, float]], Floats]:
    """Predictions that jump by `size` whenever a value changes at all, as a scheduler's do."""

    def predict(values: Mapping[str, float]) -> Floats:
        seed = abs(hash(tuple(values.values())))  # of floats: the same in every process
        return times(values) + size * np.random.default_rng(seed).standard_normal(24)

    return predict


def test_terms_are_recovered_without_noise():
    fitted = fit(times, measured(0.0), PRIOR)
    for name, true in TRUTH.items():
        assert fitted.values[name] == pytest.approx(true, rel=0.01)
    assert np.abs(fitted.after).max() < 5e-3
    assert np.abs(fitted.before).max() > 0.15
    assert all(fitted.known.values())
    assert fitted.idle == ()


@pytest.mark.parametrize(("noise", "jumps"), [(0.03, 0.0), (0.0, 0.03), (0.05, 0.02)])
def test_errors_say_how_far_the_terms_are_off(noise, jumps):
    """Truths are drawn from the prior: then the fit's errors, prior included, are those of the terms."""
    off = []
    for seed in range(16):
        drawn = np.random.default_rng(100 + seed).standard_normal(3)
        truth = {term.name: term.value(z) for term, z in zip(PRIOR, (drawn[0], *abs(drawn[1:])), strict=True)}
        fitted = fit(jumping(jumps) if jumps else times, measured(math.hypot(noise, jumps), seed, truth), PRIOR)
        off.append([(fitted.values[name] - truth[name]) / fitted.errors[name] for name in truth])
    assert np.abs(off).max() < 4
    assert 0.5 < np.sqrt(np.mean(np.square(off))) < 1.5
    assert np.abs(np.mean(off, axis=0)).max() < 1


def test_outliers_hardly_pull():
    spoiled = measured(0.01)
    spoiled[[2, 17]] += 3.0
    fitted = fit(times, spoiled, PRIOR)
    assert fitted.values["kernel"] == pytest.approx(TRUTH["kernel"], rel=0.03)
    assert fitted.values["request_s"] == pytest.approx(TRUTH["request_s"], rel=0.1)


def test_a_term_far_from_its_prior_is_found():
    truth = {"kernel": 1.9, "step_s": 8e-3, "request_s": 0.4}  # 4, 8 and 8 widths away, where the prior still pulls
    fitted = fit(times, times(truth), PRIOR)
    assert fitted.values["kernel"] == pytest.approx(truth["kernel"], rel=0.1)
    assert fitted.values["request_s"] == pytest.approx(truth["request_s"], rel=0.1)
    assert np.abs(fitted.after).max() < 0.1


def test_a_term_without_effect_stays():
    prior = (*PRIOR, Term("communication", 1.0, width=0.3, lowest=0.2, highest=5.0, factor=True))
    fitted = fit(times, measured(0.01), prior)
    assert fitted.values["communication"] == 1.0
    assert fitted.errors["communication"] == pytest.approx(0.3)
    assert fitted.idle == ("communication",)
    assert not fitted.known["communication"]
    assert "communication: has no effect" in fitted.warnings()[0]
    assert fitted.values["kernel"] == pytest.approx(TRUTH["kernel"], rel=0.05)


def test_nothing_has_an_effect():
    fitted = fit(lambda values: np.zeros(3), np.ones(3), PRIOR)
    assert dict(fitted.values) == {term.name: term.centre for term in PRIOR}
    assert fitted.idle == tuple(term.name for term in PRIOR)


def test_terms_that_are_the_same_thing_are_told_of():
    def alike(values: Mapping[str, float]) -> Floats:
        return np.log(5e-3 + values["step_s"] + 0.02 * values["request_s"] + np.zeros(10))

    fitted = fit(alike, np.log(np.full(10, 7e-3)), PRIOR)
    assert fitted.values["step_s"] + 0.02 * fitted.values["request_s"] == pytest.approx(2e-3, rel=0.02)
    assert not fitted.known["step_s"]
    assert fitted.idle == ("kernel",)
    assert any("step_s and request_s: hardly distinguishable" in line for line in fitted.warnings())


def test_terms_stay_within_bounds():
    fitted = fit(times, times({"kernel": 0.1, "step_s": 0.0, "request_s": 0.0}), PRIOR)
    assert fitted.values["step_s"] == 0.0
    for term in PRIOR:
        assert term.lowest <= fitted.values[term.name] <= term.highest


def test_weights_decide_between_measurements_that_disagree():
    def predict(values: Mapping[str, float]) -> Floats:
        return np.full(8, np.log(values["kernel"]))

    split = np.log(np.repeat([0.9, 1.2], 4))
    for weights, expected in ((np.repeat([50.0, 1.0], 4), 0.9), (np.repeat([1.0, 50.0], 4), 1.2)):
        assert fit(predict, split, PRIOR[:1], weights).values["kernel"] == pytest.approx(expected, rel=0.08)


def test_the_same_data_give_the_same_fit():
    first, second = (fit(times, measured(0.05), PRIOR) for _ in range(2))
    assert first.values == second.values
    assert first.errors == second.errors


@pytest.mark.parametrize("bad", [np.asarray([np.nan]), np.asarray([]), np.asarray([np.inf])])
def test_bad_measurements(bad):
    with pytest.raises(InputError, match="calibration: "):
        fit(lambda values: np.zeros(len(bad)), bad, PRIOR)


def constant(predicted: Floats, values: Mapping[str, float]) -> Floats:
    return predicted


def test_bad_predictions():
    for predicted in (np.asarray([np.nan, 0.0]), np.zeros(3)):
        with pytest.raises(InputError, match="predicted log times must be finite, and as many"):
            fit(partial(constant, predicted), np.zeros(2), PRIOR)
    with pytest.raises(InputError, match="nothing to fit"):
        fit(times, np.zeros(24), ())
    with pytest.raises(InputError, match="points must be at least 2, got 1"):
        fit(times, np.zeros(24), PRIOR, points=1)


@pytest.mark.parametrize(
    "bad",
    [
        {"width": 0.0},
        {"width": math.nan},
        {"centre": 4.0},
        {"lowest": -1.0},
        {"lowest": 0.0, "factor": True},
    ],
)
def test_bad_terms(bad):
    with pytest.raises(InputError, match="kernel: "):
        Term(**({"name": "kernel", "centre": 1.0, "width": 0.1, "lowest": 0.5, "highest": 2.0} | bad))


@pytest.mark.parametrize("moves", [1, 2])
def test_a_search_simulates_as_often_as_its_boxes_have_points(moves: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The centre, a step for each of three terms, 2 for each of 10 coefficients of each box, and the end."""
    monkeypatch.setattr(optimise, "_MOVES", moves)
    fitted = fit(times, times({"kernel": 2.9, "step_s": 0.04, "request_s": 5.0}), PRIOR, points=2)
    assert fitted.evaluations == 1 + 3 + 20 * moves + 1


def test_what_is_known_and_what_is_alike_is_said_by_errors_and_correlations() -> None:
    names = ("a", "b", "c")
    correlation = np.array([[1.0, 0.951, -0.2], [0.951, 1.0, -0.949], [-0.2, -0.949, 1.0]])
    none = np.zeros(0)
    known, values = {"a": True, "b": False, "c": False}, dict.fromkeys(names, 1.0)
    found = optimise.Fitted(values, values, known, ("c",), none, none, none, 0.0, correlation, 1)
    assert found.warnings() == (
        "c: has no effect here and stays what it was",
        "b: these measurements hardly tell it; it is near what was assumed",
        "a and b: hardly distinguishable (correlation 0.95)",
    )
