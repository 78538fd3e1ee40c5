"""Stretched step times, and the widths of classes of deployments."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from framework.cli.arguments import configured
from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.affine import Affine
from framework.timing.curves import Curve
from framework.timing.measured import Measured
from framework.timing.step_row import StepRow
from framework.timing.table import base_s, host_s, stack
from framework.timing.uncertainty.stretched import Stretched
from framework.timing.uncertainty.widths import width_of

ONE = Parallelism()


@cache
def model(name: str) -> Model:
    made: Model = configured([f"model={name}"], ("model",))["model"]
    return made


@cache
def gpu(name: str) -> Gpu:
    made: Gpu = configured([f"gpu={name}"], ("gpu",))["gpu"]
    return made


class Fixed:
    """Gives one row."""

    source = "fixed"

    def __init__(self, row: StepRow) -> None:
        self._row = row

    def row(self, model: object, gpu: object, parallelism: object) -> StepRow:
        return self._row


def test_all_seconds_are_stretched_and_limits_are_not() -> None:
    row = StepRow(
        linear=Curve((1.0, 2.0), (0.5, 1.0)),
        base_s=1.0,
        host_s=2.0,
        host_sequence_s=0.25,
        eager_s=4.0,
        graph_tokens=8.0,
        tokens_limit=64.0,
        request_s=3.0,
        intake_s=0.5,
        intake_token_s=0.125,
        late_share=0.25,
        late_s=2.0,
    )
    twice = Stretched(Fixed(row), 2.0).row(model("llama3_8b"), gpu("h100"), ONE)
    before, after = stack([row]), stack([twice])
    assert base_s(after, 0, 1, 1, 1) == 2 * base_s(before, 0, 1, 1, 1)
    assert host_s(after, 0, 9, 2) == 2 * host_s(before, 0, 9, 2)
    assert (twice.request_s, twice.intake_s, twice.intake_token_s) == (6.0, 1.0, 0.25)
    assert (twice.late_share, twice.late_s) == (0.25, 4.0)
    assert (twice.graph_tokens, twice.tokens_limit) == (8.0, 64.0)
    assert Stretched(Fixed(row), 1.5).source == "fixed x 1.5"
    with pytest.raises(InputError, match=r"stretched\.factor"):
        Stretched(Fixed(row), 0.0)


def test_widths_are_those_of_kind_and_fit() -> None:
    fitted, alone = Measured(), Measured(calibrated=False)
    dense, experts, h100 = model("llama3_8b"), model("gpt_oss_120b"), gpu("h100")
    assert width_of(fitted, dense, h100, ONE).of == "dense models with a fit"
    assert width_of(alone, dense, h100, ONE).of == "dense models without a fit"
    assert width_of(alone, experts, h100, ONE).of == "mixtures of experts without a fit"
    assert width_of(Measured(backend="trtllm"), dense, h100, ONE).of == "models on other servers than vLLM"
    narrow, wide = (width_of(one, dense, h100, ONE) for one in (fitted, alone))
    assert (narrow.steps, narrow.ttft) < (wide.steps, wide.ttft)
    assert width_of(fitted, dense, gpu("a100"), ONE).of == "dense models without a fit"


@pytest.mark.parametrize("timing", [Affine(base_s=1.0), Measured(missing="roofline")])
def test_sources_whose_errors_nobody_counted_have_no_width(timing: Affine | Measured) -> None:
    with pytest.raises(InputError, match="errors of these step times are unknown"):
        width_of(timing, model("llama3_8b"), replace(gpu("mi300x"), kernels=None), ONE)


def test_a_card_without_measured_kernels_states_its_error() -> None:
    found = width_of(Measured(missing="roofline"), model("llama3_8b"), gpu("mi300x"), ONE)
    assert found.steps == pytest.approx(0.3)
    assert (found.ttft, found.of) == (1.3, "")
