"""`servelab predictors`: errors worked out by hand, what a learned predictor may know, what the table prints."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.predictors.score import Constant, mae_after, scores
from framework.policy.predictor import Floats, Integers, Predictor
from framework.workload import Workload
from predictors.bucket import Bucket
from predictors.by_prompt import ByPrompt
from predictors.lognormal import LogNormal
from predictors.oracle import Oracle
from tests.helpers.launcher import typed


def workload(prompts: list[int], outputs: list[int]) -> Workload:
    return Workload(np.arange(len(prompts), dtype=np.float64), np.array(prompts), np.array(outputs))


class Twice(Predictor):
    """Expects twice what is left; its spread is 30 tokens."""

    stride = 1

    def prepare(self, workload: Workload, seed: int) -> None:
        self._output_tokens = workload.output_tokens

    def predict(self, requests: Integers, generated: Integers) -> tuple[Floats, Floats]:
        return np.float64(2.0) * (self._output_tokens[requests] - generated), np.full(len(requests), 30.0)


def test_errors_of_the_second_half_by_hand() -> None:
    start, _, half, late = scores(Twice(), workload([5] * 6, [7, 7, 7, 20, 40, 60]), width=25)
    assert (start.mae, start.bias, start.rank) == (40.0, 40.0, 1.0)
    assert start.bucket == 0.0  # 40, 80 and 120 for 20, 40 and 60
    assert start.within == 1 / 3
    assert half.mae == 20.0  # 10, 20 and 30 are left
    assert half.within == 1.0
    assert late.mae == 10.0
    assert late.bucket == 1.0  # 25, 50 and 75 for 20, 40 and 60


def test_the_median_is_that_of_the_first_half() -> None:
    start, _, _, late = scores(Constant(), workload([5] * 6, [10, 30, 20, 40, 40, 40]), width=200)
    assert (start.mae, start.bias) == (20.0, -20.0)
    assert np.isnan(start.rank)
    assert late.mae == 9.0  # 1 is expected where 10 are left


def test_the_oracle_makes_no_error() -> None:
    rng = np.random.default_rng(0)
    made = workload([100] * 200, rng.integers(1, 900, 200).tolist())
    assert all((one.mae, one.bucket, one.within) == (0.0, 1.0, 1.0) for one in scores(Oracle(), made, 200))


def test_published_figures_are_met_where_they_were_fitted() -> None:
    """18,256 tokens from the prompt and 2,929 after 8,000 (ARES); 74.9 % of buckets of 200 tokens (TetriInfer)."""
    rng = np.random.default_rng(1)
    long = workload([100] * 4000, rng.integers(30_000, 32_001, 4000).tolist())
    assert mae_after(LogNormal(), long, 0) == pytest.approx(18_256, rel=0.04)
    assert mae_after(LogNormal(), long, 8_000) == pytest.approx(2_929, rel=0.04)
    short = workload([100] * 8000, rng.integers(1, 2000, 8000).tolist())
    assert scores(Bucket(), short, 200)[0].bucket == pytest.approx(0.749, abs=0.02)


def test_by_prompt_answers_from_its_bin_and_its_training_requests_alone() -> None:
    prompts = [10, 1000] * 100
    outputs = [20, 400] * 50 + [900, 900] * 50  # what comes in the second half is not known
    made = workload(prompts, outputs)
    predictor = ByPrompt(bins=2)
    predictor.prepare(made, 0)
    estimate, spread = predictor.predict(np.array([100, 101, 101]), np.array([0, 0, 100]))
    assert estimate.tolist() == [20.0, 400.0, 300.0]
    assert spread.tolist() == [0.0, 0.0, 0.0]


def test_by_prompt_asks_all_where_its_bin_has_few_and_ends_at_the_longest() -> None:
    prompts = [10] * 90 + [1000] * 10 + [1000] * 100
    outputs = [50] * 90 + [400] * 10 + [70] * 100
    predictor = ByPrompt(bins=10)
    predictor.prepare(workload(prompts, outputs), 0)
    assert predictor.predict(np.array([150]), np.array([0]))[0].tolist() == [50.0]
    assert predictor.predict(np.array([150, 150]), np.array([60, 400]))[0].tolist() == [340.0, 1.0]


def test_the_command_prints_every_predictor(capfd: pytest.CaptureFixture[str]) -> None:
    assert typed("predictors")(["synthetic", "trace.requests=400", "predictor.sigma=0"]) == 0
    shown = capfd.readouterr().out
    for name in ("oracle", "bucket", "lognormal", "empirical", "by_prompt", "median"):
        assert f"\n{name} " in shown
    row = next(line.split() for line in shown.splitlines() if line.startswith("lognormal "))
    assert row[1] == "0"  # without an error from the prompt; then estimates are as old as the stride
    assert "published 18,256" in shown


def test_an_unknown_predictor_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert typed("predictors")(["synthetic", "only=crystal"]) == 2
    assert "there is no such predictor; there are bucket, by_prompt" in capfd.readouterr().err
