"""The arithmetic behind kernel times, against its formulas written out once more: FLOPs, bytes, the speed of light of
each operation, and the interpolation of utilisation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.interpolate import RegularGridInterpolator

from framework.system.gpu import DTYPE_BYTES, Gpu
from framework.system.model import Experts, LatentAttention, LinearAttention, Model
from framework.timing.kernels.attention_gqa import GroupedQuery
from framework.timing.kernels.attention_linear import DeltaRule
from framework.timing.kernels.attention_mla import MlaKernels, MlaModule, mla_attention
from framework.timing.kernels.checks import _flops_and_bytes, _light
from framework.timing.kernels.interpolate import Interpolated, estimated, interpolate, nearest
from framework.timing.kernels.measured_rows import Shard
from framework.timing.kernels.operations import Operations
from framework.timing.kernels.table import Kernels, Provenance

GPU = Gpu("toy", {"bf16": 1e14, "fp8": 2e14}, 80e9, 1e12, 1e11, 1e10, 1e10, 500.0, 50.0, 1.0)
ORIGIN = Provenance("toy", "vllm", "1", "a test", "none", {})
EXPERTS = Experts(16, 2, 1024)


def measured(**tables: pl.DataFrame) -> Operations:
    return Operations(Kernels(ORIGIN, tables, saturates=False), GPU)


def of_the_datasheet(gpu: Gpu = GPU) -> Operations:
    return Operations(Kernels(ORIGIN, {}, estimated=set()), gpu)


# --- FLOPs and bytes of rows ------------------------------------------------------------------------------------------

HEADS = {"heads": 8, "kv_heads": 2, "head_dim": 64, "kv_dtype": "fp8", "batch": 3}
ROUTED = {"tokens": 5, "hidden": 32, "intermediate": 16, "per_token": 2, "tp": 2, "ep": 4}
SPARSE = {"heads": 8, "batch": 3, "hidden": 32, "dtype": "fp8"}
WORK: list[tuple[str, dict[str, Any], float, float]] = [
    ("gemm", {"dtype": "bf16", "m": 3, "n": 5, "k": 7}, 2 * 105, 70),
    ("gemm", {"dtype": "fp8", "m": 3, "n": 5, "k": 7}, 2 * 105, 35),
    ("experts", ROUTED, 4 * 5 * 2 * 32 * 16 / 8, 0),
    ("spread_experts", ROUTED, 4 * 5 * 2 * 32 * 16 / 8, 0),
    ("prefill_attention", HEADS | {"tokens": 10, "prefix": 4, "window": 0}, 4 * 8 * 64 * 3 * 90, 2 * 2 * 64 * 3 * 10),
    ("prefill_attention", HEADS | {"tokens": 10, "prefix": 4, "window": 6}, 4 * 8 * 64 * 3 * 30, 2 * 2 * 64 * 3 * 10),
    ("prefill_attention", HEADS | {"tokens": 10, "prefix": 0, "window": 60}, 4 * 8 * 64 * 3 * 50, 2 * 2 * 64 * 3 * 10),
    ("decode_attention", HEADS | {"context": 10, "window": 0}, 4 * 8 * 64 * 3 * 10, 2 * 2 * 64 * 3 * 10),
    ("decode_attention", HEADS | {"context": 10, "window": 4}, 4 * 8 * 64 * 3 * 4, 2 * 2 * 64 * 3 * 4),
    ("uneven_decode", HEADS | {"context": 10, "window": 40}, 4 * 8 * 64 * 3 * 10, 2 * 2 * 64 * 3 * 10),
    ("latent_prefill", {"heads": 8, "batch": 3, "tokens": 10, "prefix": 4}, 3 * 8 * 10 * 18 * 320, 0),
    ("latent_decode", {"heads": 8, "batch": 3, "context": 10, "kv_dtype": "bf16"}, 2 * 8 * 30 * 1088, 30 * 576 * 2),
    ("sparse_prefill", SPARSE | {"tokens": 10}, 2 * 3 * 10 * 8 * 128 * 32, 8 * 128 * 32),
    ("sparse_decode", SPARSE | {"tokens": 10}, 2 * 3 * 8 * 128 * 32, 8 * 128 * 32),
    ("latent_bmm", {"heads": 8, "tokens": 10, "dtype": "fp8"}, 2 * 8 * 10 * 128 * 512, 8 * 128 * 512),
    ("sampler", {"vocab": 100, "batch": 3}, 0, 600),
    ("quantize", {"m": 5, "k": 7}, 0, 70),
    ("dispatch", {"tokens": 5, "hidden": 32}, 0, 160 * DTYPE_BYTES["nvfp4"]),
    *((name, {"bytes": 77}, 0.0, 77.0) for name in ("all_reduce", "all_gather", "reduce_scatter", "elementwise")),
]


@pytest.mark.parametrize(("operation", "row", "flops", "moved"), WORK)
def test_flops_and_bytes_of_a_row(operation: str, row: dict[str, Any], flops: float, moved: float) -> None:
    found = pl.DataFrame([row]).select(
        *(one.alias(name) for one, name in zip(_flops_and_bytes(operation), "fb", strict=True))
    )
    assert found.row(0) == pytest.approx((flops, moved))


def test_the_speed_of_light_is_the_longer_of_computing_and_moving() -> None:
    """A product of 2e9 FLOPs or of 2e6 bytes on 1e14 FLOP/s (2e14 in fp8) and 1e12 B/s; links have 1e11 B/s."""
    rows = pl.DataFrame(
        {"dtype": ["bf16", "fp8", "nvfp4"], "m": 1000, "n": 1000, "k": 1000, "latency_s": [2e-5, 1e-6, 1e-7]}
    )
    light = _light("gemm", rows, GPU)
    assert light["light_s"].to_list() == pytest.approx([2e-5, 1e-5, 1e-5])
    assert light["too_fast"].to_list() == [False, True, True]
    thin = _light("gemm", rows.with_columns(m=1), GPU)
    assert thin["light_s"].to_list() == pytest.approx([2e-6, 1e-6, DTYPE_BYTES["nvfp4"] * 1e-6])
    sent = pl.DataFrame({"dtype": "bf16", "gpus": 2, "bytes": [10**6, 10**6], "latency_s": [1e-5, 0.8e-6]})
    light = _light("all_reduce", sent, GPU)
    assert light["light_s"].to_list() == pytest.approx([1e-5, 1e-5])
    assert light["too_fast"].to_list() == [False, True]


@pytest.mark.parametrize(
    ("latency_s", "m", "n", "too_fast"),
    [
        *((0.19e-6, 1, 1, True), (0.21e-6, 1, 1, False)),
        *((2e9 / 3.1e14, 1000, 1000, True), (2e9 / 2.9e14, 1000, 1000, False)),
        *((2e7 / 12.1e12, 1, 10_000, True), (2e7 / 11.9e12, 1, 10_000, False)),
    ],
)
def test_what_is_too_fast(latency_s: float, m: int, n: int, too_fast: bool) -> None:
    """Shorter than 0.2 us, at more than three times the peak, or at more than twelve times the bandwidth."""
    rows = pl.DataFrame([{"dtype": "bf16", "m": m, "n": n, "k": 1000, "latency_s": latency_s}])
    assert _light("gemm", rows, GPU)["too_fast"].to_list() == [too_fast]


# --- the speed of light of operations: what is not measured is taken to reach 70 % of it ------------------------------


def longer(flops: float, peak: float, moved: float) -> float:
    return max(flops / peak, moved / 1e12) / 0.7


@pytest.mark.parametrize(("n", "k", "m"), [(512, 256, 4), (4096, 4096, 4096), (512, 16, 8192)])
def test_products_of_the_datasheet(n: int, k: int, m: int) -> None:
    for dtype, peak in (("bf16", 1e14), ("fp8", 2e14)):
        moved = n * k * DTYPE_BYTES[dtype] + (n + k) * m * 2
        found = of_the_datasheet().gemm(dtype).seconds(float(n), float(k), float(m))
        assert found == pytest.approx(longer(2.0 * n * k * m, peak, moved))


@pytest.mark.parametrize("gate", [False, True])
def test_projections_of_grouped_queries_compute_the_gate_of_the_output_too(gate: bool) -> None:
    model = replace(Model("toy", 4, 512, 8, 2, 64, 1024, 1000, 100_000), output_gate=gate)
    tokens, product = np.array(300.0), of_the_datasheet().gemm("bf16")
    columns = (8 if gate else 4) + 2  # of queries, gates, keys and values on one of two GPUs
    expected = 4 * (product.seconds(columns * 64.0, 512.0, 300.0) + product.seconds(512.0, 4 * 64.0, 300.0))
    assert GroupedQuery(of_the_datasheet(), model, 2).projections_s(tokens) == pytest.approx(expected)


def test_projections_of_linear_attention_are_three_products() -> None:
    """Queries, keys, values and the gate of the output; the gates of the rule; the output."""
    model = replace(
        Model("toy", 4, 512, 8, 2, 64, 1024, 1000, 100_000), linear=LinearAttention(3, 2, 4, 64, 32, kernel=4)
    )
    product = of_the_datasheet().gemm("bf16")
    shapes = (2 * 64 + 2 * 2 * 32, 512), (2 * 2, 512), (512, 2 * 32)
    expected = 3 * sum(product.seconds(float(n), float(k), 300.0) for n, k in shapes)
    assert DeltaRule(of_the_datasheet(), model, 2).projections_s(np.array(300.0)) == pytest.approx(expected)


@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (2, 4)])
def test_experts_of_the_datasheet(tp: int, ep: int) -> None:
    for tokens in (1, 3, 50_000):
        matrices = 3 * 512 * 1024 * 16 / (tp * ep)
        moved = matrices * (1 - (14 / 16) ** tokens) * 2 + 2 * tokens * 2 * 512 / (tp * ep) * 2
        found = of_the_datasheet().experts("bf16", 512, EXPERTS, tp, ep).seconds(float(tokens))
        assert found == pytest.approx(longer(2 * matrices * 2 / 16 * tokens, 1e14, moved))


@pytest.mark.parametrize(("operation", "rounds"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_collectives_of_the_datasheet(operation: str, rounds: int) -> None:
    """A round of 15 us for each GPU after the first, and (p - 1) / p of the message; across nodes by the network."""
    sent = 2.0**20

    def seconds(gpus: int, **changes: Any) -> float:
        return float(of_the_datasheet(replace(GPU, **changes)).collective_s(operation, gpus, np.asarray(sent)))

    for gpus in (2, 8):
        ring_s = rounds * (gpus - 1) / gpus * sent / 1e11
        assert seconds(gpus) == pytest.approx(15e-6 * (gpus - 1) + ring_s)
        slower = seconds(gpus, link_efficiency=0.5, link_latency_s=1e-6)
        assert slower == pytest.approx(1e-6 * (gpus - 1) + 2 * ring_s)
    for gpus, nodes in ((16, 2), (20, 3)):
        across_s = sent / 8 * (nodes - 1) / nodes / 1e10 + 15e-6
        assert seconds(gpus) == pytest.approx(seconds(8) + rounds * across_s)
    assert seconds(4, linked_gpus=2) == pytest.approx(
        15e-6 + rounds / 2 * sent / 1e11 + rounds * (sent / 2 / 2 / 1e10 + 15e-6)
    )
    assert seconds(1) == 0.0


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(("batch", "length"), [(1, 16), (4, 1024), (64, 4096)])
def test_attention_of_the_datasheet(window: int, batch: int, length: int) -> None:
    shard = Shard(8, 2, 64, "fp8", window)
    seen = min(length, window) if window else length
    pairs = length * seen - seen**2 / 2
    prefill = of_the_datasheet().prefill_attention(shard).seconds(float(batch), float(length))
    wide = batch * length * 2 * (8 + 2) * 64 * 2
    assert prefill == pytest.approx(longer(4 * batch * 8 * 64 * pairs, 1e14, wide))
    decode = of_the_datasheet().decode_attention(shard).seconds(float(batch), float(length))
    cached = batch * (seen * 2 * 2 * 64 + 2 * 8 * 64 * 2)
    assert decode == pytest.approx(longer(4 * batch * 8 * 64 * seen, 1e14, cached))


def test_what_is_taken_from_the_datasheet_is_noted() -> None:
    operations = of_the_datasheet()
    operations.gemm("bf16"), operations.decode_attention(Shard(8, 2, 64, "bf16"))
    assert operations.kernels.estimated == {"gemm", "decode_attention"}
    known = estimated(2, lambda a, b: a * b, 0.5)
    assert known.seconds(3.0, 5.0) == pytest.approx(30.0)
    assert [float(known.limit(3.0)), known.largest(1)] == [2.0**17, 2.0**17]


def test_layers_with_a_window_and_without_add_up() -> None:
    model = Model("toy", 5, 512, 8, 2, 64, 1024, 4096, 8192, window=100, windowed_layers=2)
    operations = of_the_datasheet()
    attention = GroupedQuery(operations, model, 2)
    whole, near = Shard(4, 1, 64, "bf16"), Shard(4, 1, 64, "bf16", 100)
    sizes = (np.asarray(4.0), np.asarray(1024.0))
    for method, of in (
        (attention.prefill_s, operations.prefill_attention),
        (attention.decode_s, operations.decode_attention),
    ):
        assert method(*sizes) == pytest.approx(3 * of(whole).seconds(*sizes) + 2 * of(near).seconds(*sizes))
    gemm = operations.gemm("bf16")
    projected = gemm.seconds(6 * 64.0, 512.0, 7.0) + gemm.seconds(512.0, 4 * 64.0, 7.0)
    assert attention.projections_s(np.asarray(7.0)) == pytest.approx(5 * projected)
    assert (attention.copies, attention.copied_bytes) == (10, 5 * 2 * (4 + 1 + 2) * 64 * 2)
    plain = GroupedQuery(operations, replace(model, window=0, windowed_layers=0), 2)
    assert plain.decode_s(*sizes) == pytest.approx(5 * operations.decode_attention(whole).seconds(*sizes))


# --- latent attention -------------------------------------------------------------------------------------------------

LATENT = Model("toy", 3, 512, 8, 8, 64, 1024, 4096, 8192, latent=LatentAttention(128, 64, 48, 32, 40))
SIZES = [1, 16, 256, 4096]


def table(seconds: Callable[..., float], **columns: Any) -> pl.DataFrame:
    frame = pl.DataFrame({"latency_s": [0.0]})
    for name, values in columns.items():
        frame = frame.join(pl.DataFrame({name: values if isinstance(values, list) else [values]}), how="cross")
    rows = [
        row | {"latency_s": seconds(**{k: v for k, v in row.items() if k != "latency_s"})} for row in frame.to_dicts()
    ]
    return pl.DataFrame(rows)


def latent_tables(module: int) -> dict[str, pl.DataFrame]:
    known = {"kv_dtype": "bf16", "dtype": "bf16", "heads": 4, "batch": SIZES, "module": module}
    return {
        "latent_prefill": table(
            lambda batch, tokens, **_: 1e-5 + 1e-7 * batch * tokens, tokens=SIZES, prefix=0, **known
        ),
        "latent_decode": table(lambda batch, context, **_: 1e-5 + 1e-7 * batch * context, context=SIZES, **known),
        "latent_bmm": table(
            lambda tokens, **_: 1e-5 + 1e-7 * tokens, dtype="bf16", heads=4, tokens=SIZES, phase=["pre", "post"]
        ),
        "gemm": table(lambda m, n, k, **_: 1e-6 + m * n * k / 1e13, dtype="bf16", m=SIZES, n=SIZES, k=SIZES),
    }


def light(flops: float, moved: float) -> float:
    return max(flops / 1e14, moved / 1e12)


def weights(heads: int) -> int:
    return 512 * 128 + 128 * heads * 80 + 512 * 96 + 64 * heads * 88 + heads * 40 * 512


def latent_prefill_light(heads: int, module: int, batch: int, tokens: int) -> float:
    of = weights(heads) * module
    pairs = 2 * heads * 120 * tokens / 2
    return light(batch * tokens * (pairs + 2 * of), 2 * of + batch * tokens * 2 * heads * 120 * 2)


def latent_decode_light(heads: int, module: int, batch: int, context: int) -> float:
    of = weights(heads) * module
    return light(batch * (context * 2 * heads * 160 + 2 * of), 2 * of + batch * context * 96 * 2)


def as_measured(wanted: float, own: float, latency_s: float) -> float:
    """At the utilisation that was measured, which is 1 at most."""
    return wanted / min(own / latency_s, 1.0)


@pytest.mark.parametrize("module", [0, 1])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (16, 256), (256, 16), (4096, 4096)])
def test_latent_attention_of_twice_the_heads(module: int, batch: int, length: int) -> None:
    attention = (MlaModule if module else MlaKernels)(measured(**latent_tables(module)), LATENT, 1)
    latency_s = 1e-5 + 1e-7 * batch * length
    for fit, of in ((attention._prefill(), latent_prefill_light), (attention._decode(), latent_decode_light)):
        expected = as_measured(of(8, module, batch, length), of(4, module, batch, length), latency_s)
        assert fit.seconds(float(batch), float(length)) == pytest.approx(expected)


def test_latent_attention_kernel_by_kernel() -> None:
    operations = measured(**latent_tables(0))
    attention = mla_attention(operations, LATENT, 2)  # four heads, as measured
    assert isinstance(attention, MlaKernels)
    gemm, at = operations.gemm("bf16"), np.asarray(256.0)
    expected = gemm.seconds(128 + 96.0, 512.0, at) + gemm.seconds(4 * 80.0, 128.0, at) + gemm.seconds(512.0, 160.0, at)
    assert attention.projections_s(at) == pytest.approx(3 * expected)
    up_s = gemm.seconds(4 * 88.0, 64.0, 16 * at)
    assert attention.prefill_s(np.asarray(16.0), at) == pytest.approx(3 * (up_s + 1e-5 + 1e-7 * 16 * 256))
    absorb_s = 2 * (1e-5 + 1e-7 * 16)
    assert attention.decode_s(np.asarray(16.0), at) == pytest.approx(3 * (absorb_s + 1e-5 + 1e-7 * 16 * 256))
    assert (attention.copies, attention.copied_bytes) == (6, 3 * 2 * (5 * 32 + 96) * 2)
    assert [attention.length_limit(), float(attention.context_limit(np.asarray(16.0)))] == [4096.0, 4096.0]
    wide = MlaKernels(measured(**latent_tables(0)), LATENT, 1)  # eight heads: products by the speed of light of each
    for phase, width in (("pre", 48), ("post", 40)):
        own, wanted = (
            light(2 * heads * width * 64 * 256, heads * width * 64 * 2 + 256 * heads * (width + 64) * 2)
            for heads in (4, 8)
        )
        assert wide._absorb(phase).seconds(256.0) == pytest.approx(as_measured(wanted, own, 1e-5 + 256e-7))


def test_latent_attention_as_a_module() -> None:
    """Flat is the least of a sequence, of sequences of 16 tokens, and of decodes of nothing: here all 1e-5 + 1e-7 n."""
    tables = latent_tables(1)
    attention = mla_attention(measured(**{k: v for k, v in tables.items() if k != "latent_bmm"}), LATENT, 2)
    assert isinstance(attention, MlaModule)
    assert (attention.copies, attention.copied_bytes) == (0, 0.0)
    flat_s = 1e-5 + 1e-7 * 256
    assert attention.projections_s(np.asarray(256.0)) == pytest.approx(3 * flat_s)
    assert attention.prefill_s(np.asarray(16.0), np.asarray(256.0)) == pytest.approx(0.0, abs=1e-12)
    expected = 3 * (1e-7 * 16 * 255)
    assert attention.decode_s(np.asarray(16.0), np.asarray(256.0)) == pytest.approx(expected)
    short = tables["latent_prefill"].with_columns(
        latency_s=pl.when(pl.col("tokens") > 16).then(1.0).otherwise("latency_s")
    )
    slow = {"latent_prefill": short, "latent_decode": tables["latent_decode"].with_columns(latency_s=pl.lit(1.0))}
    found = mla_attention(measured(gemm=tables["gemm"], **slow), LATENT, 2).projections_s(np.asarray([16.0, 256.0]))
    assert found == pytest.approx([3 * (1e-5 + 16e-7), 3 * flat_s])
    launched = {
        name: tables[name].with_columns(latency_s=pl.col("latency_s") + 1e-3)
        for name in ("latent_prefill", "latent_decode")
    }
    operations = measured(**tables | launched)
    bare = MlaKernels(operations, LATENT, 2)
    one_s = float(bare.projections_s(np.ones(())) + bare.absorb_s(np.ones(())))
    excess_s = 3 * (1e-3 + 1e-5 + 1e-7) - one_s - 4 * 3 * 3e-6
    assert mla_attention(operations, LATENT, 2).projections_s(np.asarray(256.0)) == pytest.approx(
        3 * (1e-3 + flat_s) - excess_s
    )


def test_projections_of_four_bits_run_in_bf16() -> None:
    for dtype, own in (("nvfp4", "bf16"), ("mxfp4", "bf16"), ("int4", "bf16"), ("fp8", "fp8"), ("bf16", "bf16")):
        assert MlaKernels(measured(), replace(LATENT, dtype=dtype), 1)._dtype == own
    eight = MlaKernels(measured(**latent_tables(0)), replace(LATENT, dtype="fp8"), 2)  # the kernels between them, too
    assert eight._decode().seconds(16.0, 256.0) == pytest.approx(1e-5 + 1e-7 * 16 * 256)
    tables = {name: rows.with_columns(dtype=pl.lit("fp8")) for name, rows in latent_tables(1).items()}
    module = MlaModule(measured(**tables), replace(LATENT, dtype="fp8"), 2)  # a module has the type of its projections
    assert module._decode().seconds(16.0, 256.0) == pytest.approx(1e-5 + 1e-7 * 16 * 256)


# --- interpolation ----------------------------------------------------------------------------------------------------


def ideal(first: Any, second: Any) -> Any:
    return np.asarray(first) * second * 1e-9


def drawn(seed: int, stretch: float) -> tuple[Interpolated, RegularGridInterpolator, np.ndarray]:
    rng = np.random.default_rng(seed)
    axes = tuple(np.cumsum(rng.uniform(0.5, 2.0, count)) for count in (3, 4))
    values = rng.uniform(-5.0, 0.0, (3, 4))
    limits = 2.0 ** rng.choice(axes[1], 3)
    return Interpolated(axes, values, limits, ideal, stretch), RegularGridInterpolator(axes, values), limits


@pytest.mark.parametrize("stretch", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_utilisation_is_interpolated_in_logarithms(seed: int, stretch: float) -> None:
    fit, plain, limits = drawn(seed, stretch)
    (low, high), (least, most) = ((axis[0], axis[-1]) for axis in fit.axes)

    def utilisation(first: float, second: float) -> float:
        return float(plain([np.clip(np.log2(first), low, high), np.clip(np.log2(second), least, most)])[0])

    rng = np.random.default_rng(seed)
    for first, second in 2.0 ** rng.uniform(-1.0, 9.0, (20, 2)):
        held = max(first, 2.0**low / min(stretch, 1.0)), max(second, 2.0**least)
        expected = utilisation(held[0] * stretch, held[1])
        if stretch > 1:
            expected = max(expected, utilisation(*held))
        assert fit.seconds(first, second) == pytest.approx(float(ideal(*held)) * 2.0**-expected)
        at = np.searchsorted(fit.axes[0], np.log2(first * min(stretch, 1.0)))
        around = limits[max(at - 1, 0) : at + 1]
        assert fit.limit(first) == around.min()
    firsts = 2.0 ** fit.axes[0] / min(stretch, 1.0)
    assert fit.limit(firsts).tolist() == pytest.approx(limits.tolist())
    assert [fit.largest(axis) for axis in (0, 1)] == pytest.approx([2.0**high, 2.0**most])


def test_of_rows_equally_near_the_smaller_ones_count() -> None:
    rows = pl.DataFrame({"heads": [16, 4, 16, 4], "batch": [1, 1, 2, 2], "latency_s": [4.0, 1.0, 5.0, 2.0]})
    assert nearest(rows, {"heads": 8.0})["latency_s"].to_list() == [1.0, 2.0]
    assert nearest(rows, {"heads": 9.0})["latency_s"].to_list() == [4.0, 5.0]


def test_measured_points_are_met_and_gaps_take_what_is_before_them() -> None:
    """Three rows of which the second ends early and the third begins late; the utilisation is 1e-9 b n over time."""
    points = {(1, 1): 2e-9, (1, 4): 8e-9, (1, 16): 64e-9, (2, 1): 8e-9, (2, 4): 16e-9, (4, 16): 512e-9}
    rows = pl.DataFrame([{"b": b, "n": n, "latency_s": time_s} for (b, n), time_s in points.items()])
    fit = interpolate(rows, ("b", "n"), ideal)
    for (b, n), time_s in points.items():
        assert fit.seconds(float(b), float(n)) == pytest.approx(time_s)
    assert fit.limit(np.array([1.0, 2.0, 4.0])).tolist() == [16.0, 4.0, 16.0]
    assert fit.seconds(2.0, 16.0) == pytest.approx(64e-9)  # as at 4: half of light
    assert fit.seconds(4.0, 1.0) == pytest.approx(32e-9)  # as at 16: an eighth
    half = interpolate(rows, ("b", "n"), ideal, lambda b, n: 3 * ideal(b, n))
    assert half.seconds(1.0, 4.0) == pytest.approx(24e-9)
    quick = rows.with_columns(latency_s=pl.col("latency_s") / 4)
    assert interpolate(quick, ("b", "n"), ideal).seconds(1.0, 1.0) == pytest.approx(1e-9)
    assert interpolate(quick, ("b", "n"), ideal, capped=False).seconds(1.0, 1.0) == pytest.approx(0.5e-9)
