"""Step times: lookups against plain interpolation, exact sums, and the worked numbers of the closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from framework.errors import InputError
from framework.system.gpu import Gpu, Kernels
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.affine import Affine
from framework.timing.roofline import (
    Roofline,
    all_reduce_s,
    attainable_flops,
    attention_flops,
    ridge_flops_per_byte,
    spread,
)
from framework.timing.table import Curve, StepRow, StepTables, Surface, Timing, base_s, chunk_s, decode_s, stack, step_s
from tests.conftest import ROOT

MS = 1e-3
patient = settings(deadline=None)  # the first call compiles


def load(group: str, name: str) -> Any:
    return instantiate(OmegaConf.load(ROOT / "conf" / group / f"{name}.yaml"))


LLAMA_8B: Model = load("model", "llama3_8b")
LLAMA_70B: Model = load("model", "llama3_70b")
H100: Gpu = load("gpu", "h100")

LINEAR = Curve((1.0, 8.0, 64.0, 100.5, 4096.0), (2.0, 2.0, 5.0, 4.0, 90.0))
ATTENTION = Curve((0.0, 100.0, 1000.0), (0.0, 1.0, 100.0))
LOGITS = Curve((1.0, 256.0), (0.5, 1.5))
DECODE = Surface(
    (1.0, 4.0, 32.0),
    (0.0, 10.0, 1000.0, 1e6),
    ((0.0, 1.0, 2.0, 900.0), (0.5, 1.0, 3.0, 800.0), (1.0, 2.0, 4.0, 1000.0)),
)
FULL = StepRow(
    base_s=0.25,
    per_sequence_s=0.125,
    per_context_token_s=2.0**-10,
    per_sampled_s=2.0**-6,
    linear=LINEAR,
    attention=ATTENTION,
    logits=LOGITS,
    decode=DECODE,
)
TABLES = stack([StepRow(), FULL, Affine(0.5, 0.25, 2.0**-20, 0.125, 2.0**-12).row(LLAMA_8B, H100, Parallelism())])


def interpolated(knots: tuple[float, ...], values: tuple[float, ...], x: float) -> float:
    """Piecewise affine, the first and the last segment going on."""
    i = min(max(int(np.searchsorted(knots, x, side="right")) - 1, 0), len(knots) - 2)
    return values[i] + (values[i + 1] - values[i]) / (knots[i + 1] - knots[i]) * (x - knots[i])


def surface(batch: int, context: int) -> float:
    rows = tuple(interpolated(DECODE.contexts, row, context) for row in DECODE.values)
    return interpolated(DECODE.batches, rows, batch)


@patient
@given(prefill=st.integers(0, 20_000), decodes=st.integers(0, 300), sampled=st.integers(0, 400))
def test_base_is_coefficients_and_curves(prefill: int, decodes: int, sampled: int) -> None:
    want = 0.25 + 0.125 * decodes + 2.0**-6 * sampled
    if prefill + decodes:
        want += interpolated(LINEAR.knots, LINEAR.values, prefill + decodes)
    if sampled:
        want += interpolated(LOGITS.knots, LOGITS.values, sampled)
    assert base_s(TABLES, 1, prefill, decodes, sampled) == pytest.approx(want, rel=1e-13)


@patient
@given(prefix=st.integers(0, 200_000), chunk=st.integers(1, 20_000))
def test_chunk_is_its_share_of_the_whole_prompt(prefix: int, chunk: int) -> None:
    length = prefix + chunk
    whole = interpolated(ATTENTION.knots, ATTENTION.values, length)
    want = whole * float(1 - Fraction(prefix, length) ** 2)
    assert chunk_s(TABLES, 1, prefix, chunk) == pytest.approx(want, rel=1e-12)


@patient
@given(decodes=st.integers(1, 300), context=st.integers(0, 3_000_000))
def test_decode_interpolates_the_surface(decodes: int, context: int) -> None:
    value_s, _, knot = decode_s(TABLES, 1, decodes, context)
    assert value_s == pytest.approx(surface(decodes, context) + context * 2.0**-10, rel=1e-12)
    assert knot == next((k for k in DECODE.contexts[1:] if k > context), math.inf)


@patient
@given(decodes=st.integers(1, 300), context=st.integers(0, 1_100_000), data=st.data())
def test_decode_is_affine_up_to_its_knot(decodes: int, context: int, data: st.DataObject) -> None:
    value_s, slope_s, knot = decode_s(TABLES, 1, decodes, context)
    more = data.draw(st.integers(0, int(min(knot - 1 - context, 10**7))))
    further_s, same_slope_s, same_knot = decode_s(TABLES, 1, decodes, context + more)
    assert further_s == pytest.approx(value_s + slope_s * more, rel=1e-12)
    assert (same_slope_s, same_knot) == (slope_s, knot)


def test_segment_changes_at_the_knot() -> None:
    before, at = decode_s(TABLES, 1, 1, 999), decode_s(TABLES, 1, 1, 1000)
    assert (before[2], at[2]) == (1000.0, 1e6)
    assert before[0] + before[1] == pytest.approx(at[0], rel=1e-13)
    assert before[1] != at[1]


@patient
@given(st.lists(st.integers(2, 10**7), min_size=1, max_size=100, unique=True), st.integers(1, 2 * 10**7))
def test_lookup_finds_any_knots(later: list[int], tokens: int) -> None:
    knots = (1.0, *map(float, sorted(later)))
    curve = Curve(knots, tuple(k**1.5 for k in knots))
    tables = stack([FULL, StepRow(linear=curve)])
    assert base_s(tables, 1, tokens, 0, 0) == pytest.approx(interpolated(knots, curve.values, tokens), rel=1e-9)


def test_absent_tables_cost_nothing() -> None:
    assert base_s(TABLES, 0, 1000, 10, 10) == 0.0
    assert chunk_s(TABLES, 0, 1000, 10) == 0.0
    assert decode_s(TABLES, 0, 10, 1000) == (0.0, 0.0, math.inf)
    assert decode_s(TABLES, 1, 0, 0) == (0.0, 2.0**-10, math.inf)  # nobody decodes


counts = st.integers(0, 5000)


@patient
@given(
    chunks=st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 20_000)), max_size=5),
    decodes=counts,
    context=st.integers(0, 10**7),
    numerators=st.tuples(*[st.integers(0, 255)] * 5),
)
def test_dyadic_coefficients_give_exact_sums(
    chunks: list[tuple[int, int]], decodes: int, context: int, numerators: tuple[int, ...]
) -> None:
    exact = [Fraction(n, 2**e) for n, e in zip(numerators, (8, 10, 12, 8, 12), strict=True)]
    base, token, quadratic, sequence, context_token = exact
    timing = Affine(float(base), float(token), float(quadratic), float(sequence), float(context_token))
    tables = stack([timing.row(LLAMA_8B, H100, Parallelism())])
    want = base + token * sum(c for _, c in chunks) + sequence * decodes + context_token * context
    want += quadratic * sum((p + c) ** 2 - p**2 for p, c in chunks)
    got = step_s(tables, 0, [p for p, _ in chunks], [c for _, c in chunks], decodes, context)
    assert Fraction(got) == want


def test_step_is_the_sum_of_its_parts() -> None:
    want = base_s(TABLES, 1, 30, 7, 8) + chunk_s(TABLES, 1, 5, 10) + chunk_s(TABLES, 1, 0, 20)
    want += decode_s(TABLES, 1, 7, 900)[0]
    assert step_s(TABLES, 1, [5, 0], [10, 20], 7, 900, sampled=8) == pytest.approx(want, rel=1e-15)
    assert step_s(TABLES, 1, [5, 0], [10, 20], 7, 900) == step_s(TABLES, 1, [5, 0], [10, 20], 7, 900, sampled=9)


def test_pools_keep_their_own_tables() -> None:
    swapped: StepTables = stack([FULL, StepRow(), FULL])
    for k in (0, 2):
        assert decode_s(swapped, k, 5, 500) == decode_s(TABLES, 1, 5, 500)
        assert base_s(swapped, k, 5, 500, 5) == base_s(TABLES, 1, 5, 500, 5)
        assert chunk_s(swapped, k, 5, 500) == chunk_s(TABLES, 1, 5, 500)


@pytest.mark.parametrize(
    ("knots", "values", "message"),
    [
        ((1.0,), (1.0,), "at least two increasing knots"),
        ((1.0, 1.0), (1.0, 2.0), "at least two increasing knots"),
        ((1.0, math.nan), (1.0, 2.0), "at least two increasing knots"),
        ((2.0, 3.0), (1.0, 2.0), "first knot must be at most 1"),
        ((1.0, 2.0), (1.0,), "2 knots but 1 values"),
        ((1.0, 2.0), (-1.0, 1.0), "not negative"),
        ((1.0, 2.0), (2.0, 1.0), "not fall after the last knot"),
    ],
)
def test_impossible_curves_are_refused(knots: tuple[float, ...], values: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Curve(knots, values)


def test_impossible_surfaces_are_refused() -> None:
    with pytest.raises(ValueError, match="2 batch knots but 1 rows"):
        Surface((1.0, 2.0), (1.0, 2.0), ((1.0, 1.0),))
    with pytest.raises(ValueError, match="first knot must be at most 1"):
        Surface((2.0, 4.0), (1.0, 2.0), ((1.0, 1.0), (1.0, 1.0)))


def test_affine_refuses_negative_coefficients() -> None:
    with pytest.raises(InputError, match=r"timing.per_sequence_s must be a finite number of at least 0, got -1"):
        Affine(per_sequence_s=-1.0)


@pytest.mark.parametrize("name", ["roofline", "affine"])
def test_configured_sources_make_a_row(name: str) -> None:
    timing: Timing = load("timing", name)
    assert timing.source == name
    tables = stack([timing.row(LLAMA_8B, H100, Parallelism())])
    assert 5 * MS < step_s(tables, 0, [], [], 1, 100) < 8 * MS
    assert 40 * MS < step_s(tables, 0, [0], [2048], 0, 0) < 50 * MS


# Worked numbers of the closed forms.


def test_ridge_points() -> None:
    assert ridge_flops_per_byte(989e12, 3.35e12) == pytest.approx(295, abs=0.5)
    assert ridge_flops_per_byte(312e12, 2e12) == 156
    assert attainable_flops(1.0, 989e12, 3.35e12) == 3.35e12
    assert attainable_flops(1000.0, 989e12, 3.35e12) == 989e12


def test_attention_flops_of_chunks_add_up() -> None:
    chunks = [attention_flops(LLAMA_8B, prefix, 512) for prefix in (0, 512, 1024)]
    assert sum(chunks) == attention_flops(LLAMA_8B, 0, 1536)
    assert attention_flops(LLAMA_8B, 0, 1000) == 4 * 32 * 32 * 128 * 1000**2 / 2


def test_all_reduce_sends_nearly_twice_the_message() -> None:
    assert all_reduce_s(1e9, 1, 1e9) == 0
    assert all_reduce_s(1e9, 2, 1e9) == 1.0
    assert all_reduce_s(1e9, 8, 1e9) == 1.75


# The roofline as a step.


def test_roofline_of_ideal_kernels_is_the_closed_form() -> None:
    tables = stack([Roofline(1.0, 1.0, 0.0).row(LLAMA_8B, H100, Parallelism())])
    # one decode reads all weights but the embedding table, and its KV
    read = LLAMA_8B.weight_bytes - LLAMA_8B.output_parameters * 2
    want = (read + 1000 * LLAMA_8B.kv_bytes_per_token) / H100.bandwidth_bytes_s
    assert step_s(tables, 0, [], [], 1, 1000) == pytest.approx(want, rel=1e-12)
    # a long prefill is compute: 2 FLOP for each weight and token, and attention, without the output projection
    time_s = step_s(tables, 0, [0], [8192], 0, 0, sampled=0)
    flops = 2.0 * LLAMA_8B.active_parameters * 8192 + attention_flops(LLAMA_8B, 0, 8192)
    assert time_s == pytest.approx(flops / H100.peak("bf16"), rel=1e-12)


def test_roofline_turns_at_the_ridge() -> None:
    tables = stack([Roofline(1.0, 1.0, 0.0).row(LLAMA_8B, H100, Parallelism())])
    assert base_s(tables, 0, 1, 0, 0) == base_s(tables, 0, 295, 0, 0)
    assert base_s(tables, 0, 592, 0, 0) == pytest.approx(2 * base_s(tables, 0, 296, 0, 0), rel=1e-12)


def test_chunks_cost_as_much_attention_as_the_whole() -> None:
    tables = stack([Roofline().row(LLAMA_8B, H100, Parallelism())])
    pieces = sum(chunk_s(tables, 0, prefix, 1024) for prefix in range(0, 8192, 1024))
    assert pieces == pytest.approx(chunk_s(tables, 0, 0, 8192), rel=1e-12)


def test_tensor_parallelism_divides_work_and_adds_reductions() -> None:
    one, four = (stack([Roofline(overhead_s=0.0).row(LLAMA_70B, H100, Parallelism(tp))]) for tp in (1, 4))
    reductions = 2 * 80 * (15e-6 + 4096 * all_reduce_s(8192 * 2, 4, 450e9))
    whole_s = step_s(one, 0, [0], [4096], 0, 0)
    assert step_s(four, 0, [0], [4096], 0, 0) == pytest.approx(whole_s / 4 + reductions, rel=1e-9)


KERNELS = Kernels(mfu={"bf16": 0.5, "fp8": 0.25}, mbu=0.5, product_s=2.0**-16, launch_s=2.0**-17, spread=1.5)


def test_a_gpu_may_state_what_its_kernels_reach() -> None:
    """A product reads its matrix and computes, one after the other, after a constant; by hand."""
    tables = stack([Roofline(overhead_s=0.0).row(LLAMA_8B, replace(H100, kernels=KERNELS), Parallelism())])
    floor_s = 32 * (4 * 2.0**-16 + 7 * 2.0**-17)
    read_s = 2 * LLAMA_8B.shared_parameters / (0.5 * H100.bandwidth_bytes_s)
    row_s = 2 * LLAMA_8B.shared_parameters / (0.5 * H100.peak("bf16"))
    for tokens in (1, 100, 10_000):
        assert base_s(tables, 0, tokens, 0, 0) == pytest.approx(floor_s + read_s + tokens * row_s, rel=1e-12)
    kv_s = 1000 * LLAMA_8B.kv_bytes_per_token / (0.5 * H100.bandwidth_bytes_s)
    assert decode_s(tables, 0, 1, 1000)[0] == pytest.approx(kv_s, rel=1e-12)
    assert spread(replace(H100, kernels=KERNELS)) == 1.5
    assert spread(H100) == 2.0


def test_smaller_weights_have_their_share_of_their_peak_and_their_activations_quantised() -> None:
    model = replace(LLAMA_8B, dtype="fp8")
    tables = stack([Roofline(overhead_s=0.0).row(model, replace(H100, kernels=KERNELS), Parallelism())])
    floor_s = 32 * (4 * 2.0**-16 + 11 * 2.0**-17)
    read_s = model.shared_parameters / (0.5 * H100.bandwidth_bytes_s)
    row_s = 2 * model.shared_parameters / (0.25 * H100.peak("fp8"))
    assert base_s(tables, 0, 100, 0, 0) == pytest.approx(floor_s + read_s + 100 * row_s, rel=1e-12)


def test_experts_of_such_a_gpu_are_read_as_far_as_tokens_choose_them_and_computed() -> None:
    model, gpu = load("model", "mixtral_8x7b"), replace(H100, kernels=KERNELS)
    row = Roofline(overhead_s=0.0).row(model, gpu, Parallelism())
    assert row.base_s == 32 * (5 * 2.0**-16 + 7 * 2.0**-17)
    tokens, parameters = 64, model.shared_parameters + model.expert_parameters * (1 - 0.75**64)
    read_s = 2 * parameters / (0.5 * H100.bandwidth_bytes_s)
    row_s = 2 * (model.shared_parameters + model.expert_parameters / 4) / (0.5 * H100.peak("bf16"))
    assert base_s(stack([row]), 0, tokens, 0, 0) == pytest.approx(row.base_s + read_s + tokens * row_s, rel=1e-12)


def test_settings_of_a_roofline_come_before_what_the_gpu_states() -> None:
    gpu = replace(H100, kernels=KERNELS)
    assert Roofline(mfu=0.65, mbu=0.8).row(LLAMA_8B, gpu, Parallelism()) == Roofline().row(
        LLAMA_8B, H100, Parallelism()
    )
    assert Roofline(mbu=0.8).row(LLAMA_8B, gpu, Parallelism()) == Roofline().row(LLAMA_8B, H100, Parallelism())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mfu": {"bf16": 1.5}}, "gpu.kernels.mfu"),
        ({"mbu": 0.0}, "gpu.kernels.mbu"),
        ({"product_s": -1.0}, "gpu.kernels.product_s"),
        ({"spread": 0.9}, "gpu.kernels.spread"),
    ],
)
def test_kernels_out_of_range_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(KERNELS, **change)


@pytest.mark.parametrize("options", [{"mfu": 0.0}, {"mfu": 1.2}, {"mbu": -1.0}, {"overhead_s": -1e-3}])
def test_impossible_rooflines_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"^timing.{next(iter(options))} must be"):
        Roofline(**options)


# Measured kernels of an H100 (vLLM 0.24.0, bf16, tables of aiconfigurator-core 0.12.0), milliseconds: prefill of 2,048
# tokens; decode of 1, 16, 64, 256 sequences at context 512, then at 4,096.
MEASURED = [
    (LLAMA_8B, 1, (43.3, 6.2, 7.0, 8.9, 14.8, 6.3, 10.1, 18.0, 54.2)),
    (LLAMA_8B, 4, (19.5, 2.7, 3.0, 3.5, 6.0, 2.8, 3.7, 6.2, 15.2)),
    (LLAMA_70B, 4, (129.9, 14.9, 16.3, 17.5, 27.2, 15.1, 18.1, 24.1, 52.2)),
]


@pytest.mark.parametrize(("model", "tp", "measured_ms"), MEASURED)
def test_default_roofline_is_near_measured_kernels(model: Model, tp: int, measured_ms: tuple[float, ...]) -> None:
    tables = stack([Roofline().row(model, H100, Parallelism(tp))])
    steps_s = [step_s(tables, 0, [0], [2048], 0, 0)]
    steps_s += [step_s(tables, 0, [], [], b, b * context) for context in (512, 4096) for b in (1, 16, 64, 256)]
    errors = np.asarray(steps_s) / np.asarray(measured_ms) * 1e3 - 1
    assert np.abs(errors).max() < 0.2
    assert np.abs(errors).mean() < 0.1
