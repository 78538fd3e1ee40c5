"""Prompts as they were measured elsewhere: met, and the rest of the steps as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve
from framework.timing.published import PublishedPrompts
from framework.timing.roofline import Roofline
from framework.timing.step_row import StepRow
from framework.timing.table import StepTables, chunk_s, decode_s, stack, step_s
from tests.helpers.parts import load as part

A100, YI, TP1 = part("gpu", "a100"), part("model", "yi_6b"), Parallelism()
POINTS = [[256, 0.03], [1024, 0.1], [4096, 0.5]]


def anchored(**changed: Any) -> PublishedPrompts:
    fields = {"measured": "somebody", "model": "yi_6b", "gpu": "a100", "tp": 1, "prompts_s": POINTS}
    return PublishedPrompts(Roofline(), **{**fields, **changed})


def tables(timing: Any) -> StepTables:
    return stack([timing.row(YI, A100, TP1)])


@pytest.mark.parametrize(("tokens", "seconds"), POINTS)
def test_prompts_take_as_long_as_measured(tokens: int, seconds: float) -> None:
    assert step_s(tables(anchored()), 0, [0], [tokens], 0, 0) == pytest.approx(seconds, rel=1e-12)


def test_attention_stays_as_it_was() -> None:
    own, kernels = tables(anchored()), tables(Roofline())
    assert chunk_s(own, 0, 512, 512) == chunk_s(kernels, 0, 512, 512)
    assert decode_s(own, 0, 8, 8000) == decode_s(kernels, 0, 8, 8000)


def test_masked_work_is_of_a_chunk_and_not_of_its_prefix() -> None:
    own, kernels = tables(anchored(masked_s=1e-8)), tables(Roofline())
    for prefix, chunk in ((0, 512), (4096, 512), (0, 4096)):
        longer_s = chunk_s(own, 0, prefix, chunk) - chunk_s(kernels, 0, prefix, chunk)
        assert longer_s == pytest.approx(1e-8 * chunk * chunk)
    assert step_s(own, 0, [0], [4096], 0, 0) == pytest.approx(0.5, rel=1e-12), "of a point it is a part"


def test_short_steps_are_longer_by_the_factor_of_the_shortest_prompt() -> None:
    linear, kernels = anchored().row(YI, A100, TP1).linear, Roofline().row(YI, A100, TP1).linear
    assert linear is not None
    assert kernels is not None
    factor = linear.values[linear.knots.index(256.0)] / np.interp(256.0, kernels.knots, kernels.values)
    for tokens in (1, 64, 200):
        own_s, kernels_s = (np.interp(tokens, curve.knots, curve.values) for curve in (linear, kernels))
        assert own_s == pytest.approx(factor * kernels_s)
    assert factor > 1.5


def test_a_knot_of_the_kernels_at_the_shortest_prompt_is_there_once() -> None:
    linear = anchored()._linear(StepRow(), Curve((1.0, 256.0, 2048.0), (1.0, 2.0, 4.0)))
    assert linear == Curve((1.0, 256.0, 1024.0, 4096.0), (0.015, 0.03, 0.1, 0.5))


def test_beyond_the_longest_prompt_the_last_segment_goes_on() -> None:
    own = tables(anchored())

    def linear_s(tokens: int) -> float:
        return step_s(own, 0, [0], [tokens], 0, 0) - chunk_s(own, 0, 0, tokens)

    assert linear_s(10240) - linear_s(4096) == pytest.approx(2 * (linear_s(4096) - linear_s(1024)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompts_s": [[256, 0.03]]}, "two points or more"),
        ({"prompts_s": [[256, 0.03], [1024, 0.02]]}, "rising"),
        ({"prompts_s": [[256, 0.03, 1.0], [1024, 0.02]]}, "points of tokens and seconds"),
        ({"prompts_s": [[0, 0.03], [1024, 0.05]]}, "tokens"),
        ({"prompts_s": [[256, -0.03], [1024, 0.05]]}, "seconds of 256 tokens"),
        ({"masked_s": -1e-9}, "timing.masked_s must be a finite number of at least 0"),
    ],
)
def test_points_that_are_none_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        anchored(**changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "yi_34b"}, "times of yi_34b on a100 tp 1, not of yi_6b on a100"),
        ({"gpu": "h100"}, "on h100 tp 1"),
        ({"tp": 2}, "tp 2"),
        ({"prompts_s": [[4096, 0.001], [8192, 0.002]]}, "4096 tokens take longer"),
        ({"prompts_s": [[4096, 0.5], [16384, 0.51]]}, "not fall"),
    ],
)
def test_what_was_not_measured_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        anchored(**changed).row(YI, A100, TP1)


def test_times_without_linear_layers_of_their_own_are_refused() -> None:
    class Bare:
        source = "bare"

        def row(self, *_: Any) -> Any:
            return replace(Roofline().row(YI, A100, TP1), linear=None)

    with pytest.raises(InputError, match="bare does not tell linear layers from the rest"):
        replace(anchored(), times=Bare()).row(YI, A100, TP1)
