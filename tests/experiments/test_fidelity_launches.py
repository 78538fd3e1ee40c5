"""The time to launch a layer, from closed loops and from tails of stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.validation.fidelity import launches
from experiments.validation.fidelity.launches import SECONDS, best, of_tails, soft_l1
from experiments.validation.fidelity.online import Stage, read_stages
from framework.timing.calibration_terms import Calibration, calibration_path, read_calibrations
from framework.timing.shipped.profile_files import shipped_directory

FIRST = read_stages()[0]
FLAT = np.zeros(len(SECONDS))


def test_the_loss_is_quadratic_near_zero_and_linear_far_away() -> None:
    assert soft_l1(np.array([[0.0, 0.01], [-0.01, 0.0]])) == pytest.approx(1e-4, rel=1e-3)
    assert soft_l1(np.array([1000.0])) == pytest.approx(999.0, rel=1e-3)


def test_the_best_time_is_where_losses_of_both_are_least() -> None:
    closed = FLAT + 5.0
    closed[1] = 1.0
    assert best(closed, {}) == SECONDS[1]
    tails = {FIRST: np.where(np.arange(len(SECONDS)) == 4, 0.0, 0.5)}
    assert best(FLAT, tails) == SECONDS[4]
    assert best(closed, tails) == SECONDS[4]
    assert best(closed, {FIRST: 0.1 * tails[FIRST]}) == SECONDS[1]


def test_longer_launches_make_the_tail_of_a_first_stage_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "SECONDS", (1e-4, 2e-3))
    few = replace(FIRST, requests=440)
    short, long = of_tails([few], Calibration())[few]
    assert (1 + long) / (1 + short) > 1.5


def test_the_shipped_fit_has_what_was_found() -> None:
    fits = {fit.selector.kind: fit for fit in read_calibrations(calibration_path(shipped_directory(), "h100", "vllm"))}
    assert fits["dense"].calibration.eager_layer_s in SECONDS
    assert fits["dense"].note.endswith("launches.py")


def test_stages_are_told_apart_by_all_they_say() -> None:
    assert len({FIRST, replace(FIRST, stage=1), Stage(**vars(FIRST))}) == 2
