"""Other ways of running a mixture of experts, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framework.errors import InputError
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.expert_parallel import with_expert_load
from framework.timing.measured import Measured
from framework.timing.profile import StepParts
from framework.timing.table import StepRow, base_s, stack
from tests.helpers.parts import load, made_up, seconds_of

PLAIN = Calibration()
WIDE = Parallelism(ep=16, dp=16)


def linear_s(parts: StepParts, tokens: int, calibration: Calibration = PLAIN) -> float:
    """Seconds that a prefill of so many tokens costs, attention apart."""
    row = replace(parts.row(calibration), base_s=0.0, prefill_step_s=0.0, logits=None)
    return base_s(stack([row]), 0, tokens, 0, 0)


def flat(compute_s: float, per_token_s: float, communication_s: float) -> StepParts:
    """Compute that takes `compute_s` and so much a token more, and communication a token."""
    tokens = np.array([1.0, 64.0, 2048.0, 4096.0])
    zeros = np.zeros(4)
    curves = {"gemm_s": compute_s + per_token_s * tokens, "experts_s": zeros, "elementwise_s": zeros}
    return made_up(communication_s=communication_s * tokens, **curves)


def in_two(parts: StepParts) -> StepParts:
    """The same step as two micro-batches."""
    return replace(parts, two_batches=True)


@pytest.mark.parametrize("tokens", [2, 5, 64, 1000, 4096, 10_000])
def test_the_longer_of_compute_and_communication_counts(tokens: int) -> None:
    """Two micro-batches read the weights twice, and hide all of the shorter."""
    assert linear_s(in_two(flat(0.5, 0.25, 0.125)), tokens) == 2 * 0.5 + 0.25 * tokens
    slow = in_two(flat(0.0, 0.125, 0.25))
    assert linear_s(slow, tokens) == 0.25 * tokens


def test_one_token_is_not_split() -> None:
    parts = flat(0.5, 0.25, 0.125)
    assert linear_s(in_two(parts), 1) == linear_s(parts, 1) == 0.875


def test_what_is_hidden_is_told_with_calibrated_times() -> None:
    calibration = Calibration(kernel=2.0, communication=8.0)
    parts = in_two(flat(0.0, 0.25, 0.125))
    assert linear_s(parts, 100, calibration) == 8 * 0.125 * 100


def test_load_stretches_experts_and_what_crosses_nodes() -> None:
    parts = made_up(experts_s=np.array([1.0, 2.0, 3.0, 4.0]))
    same = with_expert_load(parts, 1.5)
    assert seconds_of(same, "experts").tolist() == [1.5, 3.0, 4.5, 6.0]
    assert np.array_equal(seconds_of(same, "communication"), seconds_of(parts, "communication"))
    wide = with_expert_load(replace(parts, setup=replace(parts.setup, parallelism=WIDE)), 1.5)
    assert np.array_equal(seconds_of(wide, "communication"), 1.5 * seconds_of(parts, "communication"))


def test_both_are_settings_of_measured_times() -> None:
    model, gpu = load("model", "deepseek_v3"), load("gpu", "h200")
    times = {
        name: base_s(stack([Measured("sglang", **more).row(model, gpu, WIDE)]), 0, 16384, 0, 0)  # type: ignore[arg-type]
        for name, more in {"plain": {}, "load": {"expert_load": 1.5}, "two": {"two_batches": True}}.items()
    }
    assert times["two"] < times["plain"] < times["load"]


@pytest.mark.parametrize("wrong", [{"expert_load": 0}, {"expert_load": "even"}, {"two_batches": "yes"}])
def test_values_that_make_no_sense_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"timing.{next(iter(wrong))}"):
        Measured(**wrong)  # type: ignore[arg-type]


def test_what_is_hidden_may_grow_faster_than_communication() -> None:
    compute, sent = np.array([0.0, 0.0, 1.0, 8.0]), np.array([2.0, 2.0, 2.0, 2.0])
    zeros = np.zeros(4)
    parts = in_two(made_up(gemm_s=compute, experts_s=zeros, elementwise_s=zeros, communication_s=sent))
    curve = parts.calibrated(PLAIN)["communication"].linear
    assert curve is not None
    assert curve.values[-1] >= curve.values[-2]
    assert linear_s(parts, 100_000) >= linear_s(parts, 8192)


def test_experts_popularity_needs_even_routing() -> None:
    timing = Measured(backend="sglang", experts={"skew": 1.0})
    v3, h200 = load("model", "deepseek_v3"), load("gpu", "h200")
    with pytest.raises(InputError, match="times of ep = 8 are of uneven routing"):
        timing.row(v3, h200, Parallelism(dp=8, ep=8))
    wide, even = Parallelism(dp=32, ep=32), Measured(backend="sglang")
    assert linear(timing.row(v3, h200, wide)) > linear(even.row(v3, h200, wide))


def linear(row: StepRow) -> float:
    assert row.linear is not None
    return row.linear.values[-1]
