"""Step times that others fitted."""

from __future__ import annotations

from typing import Any

import pytest

from framework.errors import InputError
from framework.system.parallelism import Parallelism
from framework.timing.published import Published, PublishedFit
from framework.timing.table import stack, step_s
from tests.timing.test_timing import H100, LLAMA_8B, LLAMA_70B

FIT: dict[str, Any] = {
    "model": "llama3_8b",
    "gpu": "h100",
    "tp": 2,
    "prefill_base_s": 3.0,
    "prefill_per_token_s": 0.5,
    "prefill_quadratic_s": 0.25,
    "prefill_curve_s": [[4, 0.0], [8, 2.0]],
    "decode_s": [[1, 2.0, 0.125], [3, 4.0, 0.25]],
}


def seconds(timing: Any, parallelism: Parallelism, *step: Any) -> float:
    return step_s(stack([timing.row(LLAMA_8B, H100, parallelism)]), 0, *step)


@pytest.mark.parametrize(
    ("step", "expected_s"),
    [
        (([0], [4], 0, 0), 3 + 4 * 0.5 + 16 * 0.25),  # a prompt: the curve is 0 up to 4 tokens
        (([0], [6], 0, 0), 3 + 6 * 0.5 + 36 * 0.25 + 1),  # half way up the curve
        (([0, 0], [3, 3], 0, 0), 3 + 6 * 0.5 + 2 * 9 * 0.25 + 1),  # the square is of each prompt
        (([4], [2], 0, 0), 3 + 2 * 0.5 + (36 - 16) * 0.25),  # a chunk after 4 tokens
        (([], [], 1, 8), 2 + 8 * 0.125),
        (([], [], 2, 8), 3 + 8 * 0.1875),  # half way between the rows
        (([], [], 3, 8), 4 + 8 * 0.25),
        (([0], [3], 1, 8), 3 + 3 * 0.5 + 9 * 0.25 + 8 * 0.125),  # one step's cost, the dearer, not both
    ],
)
def test_a_step_costs_what_its_fit_says(step: Any, expected_s: float) -> None:
    assert seconds(Published("a test", [FIT]), Parallelism(2), *step) == expected_s


@pytest.mark.parametrize(
    ("step", "expected_s"),
    [
        (([0], [8], 0, 0), 3 + 4 * 0.5 + 64 * 0.25 / 2),  # two micro-batches of four tokens
        (([], [], 1, 8), 2 + 4 * 0.125),  # one decode passes both stages
        (([], [], 6, 16), 4 + 8 * 0.25),  # two micro-batches of three
    ],
)
def test_stages_run_equal_micro_batches(step: Any, expected_s: float) -> None:
    assert seconds(Published("a test", [FIT]), Parallelism(2, 2), *step) == expected_s


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        ({"tp": 4}, ["no times of llama3_8b on h100 tp 2", "llama3_8b on h100 tp 4", "timing=roofline"]),
        ({"decode_s": [[1, 2.0]]}, ["decode_s must have rows of 3 numbers"]),
        ({"decode_s": [[1, 2.0, 0.0]]}, ["two increasing knots"]),
        ({"decode_s": [[2, 2.0, 0.0], [4, 3.0, 0.0]]}, ["first knot must be at most 1"]),
        ({"prefill_base_s": -1}, ["prefill_base_s", "-1"]),
        ({"prefill_curve_s": [[8, 2.0], [4, 3.0]]}, ["increasing knots"]),
        ({"speed": 1}, ["speed"]),
    ],
)
def test_what_is_no_fit_is_refused(fit: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        seconds(Published("a test", [FIT | fit]), Parallelism(2), [0], [4], 0, 0)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_fits_are_of_one_model_and_know_no_data_parallelism() -> None:
    with pytest.raises(InputError, match="no times of llama3_70b"):
        Published("a test", [FIT]).row(LLAMA_70B, H100, Parallelism(2))
    with pytest.raises(InputError, match="tp and pp only"):
        Published("a test", [FIT]).row(LLAMA_8B, H100, Parallelism(2, dp=2))


def test_a_fit_needs_no_curve_and_may_have_been_read() -> None:
    straight = PublishedFit(**{name: value for name, value in FIT.items() if name != "prefill_curve_s"})
    assert seconds(Published("a test", [straight]), Parallelism(2), [0], [6], 0, 0) == 3 + 6 * 0.5 + 36 * 0.25
