"""All-reduces by a link model: where it applies, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from framework.system.gpu import Gpu
from framework.system.parallelism import Parallelism
from framework.timing.link_model import applies, with_link_model
from framework.timing.measured import Measured
from framework.timing.roofline import Roofline
from tests.helpers.parts import load, made_up, put, seconds_of

TP2 = Parallelism(tp=2)


def linked(**changes: Any) -> Gpu:
    gpu: Gpu = load("gpu", "h100")
    stated = {"link_bytes_s": 64e9, "link_efficiency": 0.25, "link_latency_s": 17e-6}
    return replace(gpu, **(stated | changes))


def test_an_all_reduce_is_a_latency_for_each_further_gpu_and_a_ring() -> None:
    """16,000 tokens of 4,096 values of 2 bytes: 131 MB, of which a ring of two sends 131 MB in all at 16 GB/s."""
    model = load("model", "llama3_8b")
    parts = with_link_model(made_up(parallelism=TP2), model, linked())
    curve = parts["communication"].linear
    assert curve is not None
    for tokens, seconds in zip(curve.knots, curve.values, strict=True):
        assert seconds == pytest.approx(65 * (17e-6 + tokens * 8192 / 16e9))
    four = with_link_model(made_up(parallelism=Parallelism(tp=4)), model, linked())["communication"].linear
    assert four is not None
    assert four.values[0] == pytest.approx(65 * (3 * 17e-6 + 1.5 * four.knots[0] * 8192 / 16e9))


@pytest.mark.parametrize(
    ("parallelism", "changes", "expected"),
    [
        (TP2, {}, True),
        (TP2, {"link_latency_s": None}, False),
        (Parallelism(), {}, False),
        (Parallelism(tp=2, pp=2), {}, False),
        (Parallelism(tp=16), {}, False),
        (Parallelism(tp=16), {"linked_gpus": 72}, True),
    ],
)
def test_it_is_of_tensor_parallelism_in_a_node(
    parallelism: Parallelism, changes: dict[str, Any], expected: bool
) -> None:
    assert applies(made_up(parallelism=parallelism), linked(**changes)) is expected


def test_a_gpu_that_states_a_latency_gets_it_and_the_source_says_so(tmp_path: Path) -> None:
    put(tmp_path, "llama3_8b", "h100", "own", made_up(parallelism=TP2))
    model = load("model", "llama3_8b")
    timing = Measured("own", profiles=str(tmp_path))
    parts = timing.entry(model, linked(link_bytes_s=450e9), TP2).parts
    timing.row(model, linked(link_bytes_s=450e9), TP2)
    assert timing.source == "measured (h100, own 0.1, all-reduce by a link model)"
    plain = Measured("own", profiles=str(tmp_path), link_model=False).entry(model, linked(link_bytes_s=450e9), TP2)
    assert (seconds_of(parts, "communication") != seconds_of(plain.parts, "communication")).all()


def test_a_roofline_has_the_larger_latency_and_what_is_reached_of_the_link() -> None:
    model = load("model", "llama3_8b")
    fast, slow = (Roofline().row(model, linked(link_latency_s=latency), TP2) for latency in (1e-6, 20e-6))
    assert slow.base_s - fast.base_s == pytest.approx(64 * 5e-6)  # two in each of 32 layers, 20 for 15 us
    half = Roofline().row(model, linked(link_efficiency=0.125), TP2)
    assert half.linear is not None
    assert fast.linear is not None
    assert half.linear.values[-1] > fast.linear.values[-1]


def test_parts_without_a_curve_of_reductions_get_one() -> None:
    parts = made_up(parallelism=TP2)
    none = replace(parts, rows=dict(parts.rows) | {"communication": replace(parts["communication"], linear=None)})
    curve = with_link_model(none, load("model", "llama3_8b"), linked())["communication"].linear
    assert curve is not None
    assert curve.values == pytest.approx([65 * (17e-6 + tokens * 8192 / 16e9) for tokens in (1, 2)])
