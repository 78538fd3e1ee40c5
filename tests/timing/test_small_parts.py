"""Rows of ranks, sums of rows, datasheets that agree, plans of profiles, lookups: each by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.errors import InputError
from framework.system.parallelism import Parallelism
from framework.timing.curves import Curve, Surface, curve_at, packed_axis, packed_lines
from framework.timing.published import PublishedPrompts
from framework.timing.rank_row import rank_row
from framework.timing.roofline import Roofline, _experts
from framework.timing.shipped.profile_files import read_profile, shipped_directory
from framework.timing.shipped.scale import same_speed
from framework.timing.shipped.shipped_setups import PLANS, Types, _fits, parallelisms, plan_of
from framework.timing.step_row import StepRow
from framework.timing.table import stack, uneven_s
from framework.timing.uncertainty.lateness import lateness_s
from tests.helpers.parts import load


def test_one_rank_has_the_steps_of_all_and_each_of_four_a_quarter_of_their_sizes() -> None:
    row = StepRow(
        base_s=1.0,
        linear=Curve((1.0, 64.0), (2.0, 3.0)),
        decode=Surface((1.0, 8.0), (1.0, 64.0), ((1.0, 2.0), (3.0, 4.0))),
        attention=Curve((0.0, 64.0), (0.0, 2.0)),
        per_context_token_s=0.5,
        tokens_limit=64.0,
        length_limit=64.0,
    )
    assert rank_row(row, 1) is row
    assert rank_row(row, 4) == replace(
        row,
        linear=Curve((0.25, 16.0), (2.0, 3.0)),
        decode=Surface((0.25, 2.0), (0.25, 16.0), ((1.0, 2.0), (3.0, 4.0))),
        attention=Curve((0.0, 64.0), (0.0, 8.0)),
        per_context_token_s=2.0,
        tokens_limit=16.0,
    )


def test_sums_of_rows_have_the_nearer_limit_and_the_larger_tile() -> None:
    one = StepRow(base_s=1.0, tokens_limit=64.0, decode_rows=16.0, head_group=1.0, linear=Curve((1.0, 2.0), (1.0, 2.0)))
    other = StepRow(base_s=0.5, tokens_limit=32.0, head_group=4.0, waste=Curve((1.0, 2.0), (2.0, 1.0 + 1.0)))
    for found in (one + other, other + one):
        assert (found.base_s, found.tokens_limit, found.decode_rows, found.head_group) == (1.5, 32.0, 16.0, 4.0)
        assert (found.linear, found.waste) == (one.linear, other.waste)
    assert (one + one).linear == Curve((1.0, 2.0), (2.0, 4.0))
    with pytest.raises(ValueError, match="only one of the rows may have waste"):
        other + other


def test_uneven_decodes_pay_for_what_each_lacks_to_the_longest() -> None:
    """Contexts of 10, 20 and 40: 30 and 20 short of the longest."""
    assert uneven_s(stack([StepRow(skew_s=0.25)]), 0, 3, 70, 40) == 0.25 * 50
    assert uneven_s(stack([StepRow(skew_s=0.25)]), 0, 3, 120, 40) == 0.0


def test_datasheets_agree_in_all_that_step_times_depend_on() -> None:
    gpu: Any = load("gpu", "h100")
    assert same_speed(gpu, replace(gpu, name="other", usd_per_hour=99.0))
    assert not same_speed(gpu, replace(gpu, bandwidth_bytes_s=1e12))
    assert not same_speed(gpu, replace(gpu, link_bytes_s=1e9))
    slower = replace(gpu, peak_flops=dict(gpu.peak_flops) | {"bf16": 1e12})
    assert not same_speed(gpu, slower)
    assert not same_speed(slower, gpu)
    fewer = replace(gpu, peak_flops={"bf16": gpu.peak_flops["bf16"]})
    assert same_speed(gpu, fewer)


def test_a_model_that_does_not_ship_is_made_for_its_own_types_on_1_to_8_gpus() -> None:
    dense, experts = (
        replace(load("model", "llama3_8b"), name="mine"),
        replace(load("model", "mixtral_8x7b"), name="mine"),
    )
    assert plan_of(dense) == ((Types("bf16", "bf16"),), parallelisms("tp1 tp2 tp4 tp8"))
    assert plan_of(experts)[1] == parallelisms("tp1 tp2 tp4 tp8 tp2-ep2 tp4-ep4 tp8-ep8")
    assert parallelisms("tp1-dp4-ep4 tp8-pp2") == (Parallelism(tp=1, dp=4, ep=4), Parallelism(tp=8, pp=2))


def test_what_ships_is_what_was_planned() -> None:
    """On two GPUs that have nearly all of it: of some models other GPUs have more parallelisms, or types."""
    parallel: dict[str, set[Parallelism]] = {}
    typed: dict[str, set[tuple[str, str]]] = {}
    for path in (path for gpu in ("h200", "b200") for path in (shipped_directory() / gpu).glob("*/*.json.gz")):
        for entry in read_profile(path).entries:
            name, setup = path.name.partition(".")[0], entry.setup
            parallel.setdefault(name, set()).add(setup.parallelism)
            typed.setdefault(name, set()).add((setup.dtype, setup.kv_dtype))
    assert set(parallel) == set(PLANS)
    for name, (types, planned) in PLANS.items():
        known = {(one.dtype, one.kv_dtype) for one in types}
        assert parallel[name] == set(planned) or (
            name in ("qwen3_235b", "deepseek_v3") and parallel[name] < set(planned)
        )
        assert typed[name] == known or (name in ("llama3_8b", "llama3_70b") and typed[name] < known)


def test_a_share_of_the_requests_is_late_by_times_drawn_by_the_seed() -> None:
    row = StepRow(late_share=0.25, late_s=0.5)
    late_s = lateness_s(row, 200, seed=0)
    assert 30 < (late_s > 0).sum() < 70
    assert late_s[late_s > 0].mean() == pytest.approx(0.5, rel=0.4)
    assert lateness_s(row, 200, seed=1).tolist() != late_s.tolist()
    assert lateness_s(row, 200, seed=-1).tolist() == lateness_s(row, 200, seed=2**32 - 1).tolist()
    for none in (StepRow(late_share=0.25), StepRow(late_s=0.5)):
        assert len(lateness_s(none, 200, seed=0)) == 0


def test_a_lookup_has_a_bucket_for_each_eighth_of_an_octave_up_to_its_last_knot() -> None:
    """From 1 to 16, four octaves: 33 buckets, which say behind which knot they begin."""
    found = packed_axis((1.0, 1.5, 16.0))
    assert found.tolist() == [33, *[0] * 4, *[1] * 28, 2, 1.0, 1.5, 16.0, np.inf]
    assert packed_axis((0.0, 0.5)).tolist() == [1, 0, 0.0, 0.5, np.inf]


@pytest.mark.parametrize(
    "points", [[[256, 0.1]], [[256, 0.1], [256, 0.2]], [[256, 0.1], [512, 0.1]], [[512, 0.1], [256, 0.2]]]
)
def test_published_points_must_rise_in_both(points: list[list[float]]) -> None:
    with pytest.raises(InputError, match="two points or more, with rising tokens and seconds"):
        PublishedPrompts(Roofline(), "somebody", "yi_6b", "a100", 1, points)
    PublishedPrompts(Roofline(), "somebody", "yi_6b", "a100", 1, [[256, 0.1], [512, 0.2]])


def test_a_setup_fits_where_weights_and_some_kv_do() -> None:
    small, large, gpu = load("model", "llama3_8b"), load("model", "llama3_70b"), load("gpu", "h100")
    assert [_fits(model, gpu, Parallelism()) for model in (small, large)] == [True, False]
    assert _fits(large, gpu, Parallelism(tp=4))
    assert not _fits(replace(small, dtype="nvfp4"), gpu, Parallelism())  # which an H100 does not compute in


def test_experts_are_read_as_far_as_tokens_choose_them() -> None:
    """Mixtral-8x7B on slow memory: one token reads two of eight experts, two tokens 1 - (6 / 8)^2 of all."""
    model, gpu = load("model", "mixtral_8x7b"), replace(load("gpu", "h100"), bandwidth_bytes_s=1e9)
    curve = _experts(model, gpu, Parallelism(), Roofline(mfu=1.0, mbu=1.0)._reach(gpu))
    read_all_s = model.expert_parameters * 2 / 1e9
    assert curve.values[:2] == pytest.approx((read_all_s * 2 / 8, read_all_s * (1 - (6 / 8) ** 2)))


def test_knots_within_an_eighth_of_an_octave_are_told_apart() -> None:
    """The lookup begins at the last knot up to 1,024, the next buckets at 1,152."""
    knots, values = (1.0, 1024.0, 1030.0, 1040.0, 2048.0), np.array([1.0, 2.0, 8.0, 9.0, 10.0])
    data = np.concatenate([packed_axis(knots), packed_lines(knots, values)])
    for x in (0.5, 512.0, 1027.0, 1035.0, 1100.0, 1500.0):
        expected = np.interp(x, knots, values) if x > 1 else 1.0 + (x - 1.0) / 1023
        assert curve_at(data, 0, len(knots) + 1, x) == pytest.approx(float(expected))
