"""Steps of made-up models from made-up kernels, in the full tables and by few knots: to the last figure as they were.

That they meet what was measured, and by how much they may miss it, is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from framework.errors import InputError
from framework.system.model import Experts, Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.kernels import tabulate as tabulating
from framework.timing.kernels.step_cost import StepCost, step_cost
from framework.timing.kernels.tabulate import choose_knots, samples, tabulate
from framework.timing.roofline import Roofline
from framework.timing.table import stack, step_s
from tests.helpers.exact_steps import exact_step_s
from tests.helpers.pinned import check, total
from tests.timing.test_mixtures import SENT, sent_s
from tests.timing.test_tabulate import (
    DENSE,
    GPU,
    LATENT,
    LATENT_TABLES,
    MIXTURE,
    SHARED,
    TABLES,
    TOKENS,
    attend_s,
    gemm_s,
    grid,
    heads,
    kernels,
)

KEPT = Path(__file__).with_name("steps.json")
WIDE = replace(MIXTURE, experts=Experts(32, 2, 512))
WINDOWED = replace(DENSE, window=128, windowed_layers=1)
ODD = replace(DENSE, layers=5, hidden=768, heads=16, intermediate=1500, vocab=9000, max_context=20_000)

WINDOWS = {
    "prefill_attention": grid(attend_s, **heads(batch=[1, 64], tokens=[1, 4096], prefix=0, window=128)),
    "decode_attention": grid(lambda **_: 2e-5, **heads(batch=[1, 64], context=[1, 128, 8192], window=128)),
}
MORE: dict[str, dict[str, pl.DataFrame]] = {
    "plain": {},
    "windows": {name: pl.concat([TABLES[name], rows]) for name, rows in WINDOWS.items()},
    "ragged": {
        "gemm": TABLES["gemm"].filter((pl.col("n") * pl.col("m") < 2**21) | (pl.col("k") == 64)),
        "decode_attention": TABLES["decode_attention"].filter(pl.col("batch") * pl.col("context") <= 2**17),
        "prefill_attention": TABLES["prefill_attention"].filter(pl.col("batch") * pl.col("tokens") <= 2**15),
    },
    "measured": {
        "gemm": TABLES["gemm"].filter(pl.col("k") <= 512),
        "elementwise": grid(lambda bytes: 5e-6 + bytes / 2e12, bytes=[2**power for power in range(10, 32)]),
        "sampler": grid(lambda batch, **_: 1e-5 + batch * 1e-6, vocab=DENSE.vocab, batch=[1, 8, 64]),
    },
    "latent": dict(LATENT_TABLES),
    "module": {
        name: LATENT_TABLES[name].with_columns(module=1, latency_s=pl.col("latency_s") + 5e-5)
        for name in ("latent_prefill", "latent_decode")
    },
    "sent": {
        "experts": TABLES["experts"].with_columns(experts=pl.lit(32, pl.Int64)),
        "dispatch": grid(sent_s, phase=["dispatch", "combine"], comm="deepep_ll", **(SENT | {"experts": 32})),
    },
    "fp8": {
        "gemm": pl.concat(
            [
                grid(gemm_s, dtype=dtype, m=TOKENS, n=[64, 512, 4096], k=[64, 512, 4096]).with_columns(
                    latency_s=pl.max_horizontal(pl.col("latency_s"), pl.lit(least_s))
                )
                for dtype, least_s in (("bf16", 0.0), ("fp8", 0.0), ("fp8_block", 8e-5))
            ]
        ),
        "quantize": grid(
            lambda m, k, **_: 1e-6 + m * k * 1e-13, dtype="fp8", m=TOKENS, k=[64, 512, 4096], phase="scale"
        ),
    },
}
CASES: list[tuple[str, Model, str, Parallelism]] = [
    *(("dense", DENSE, "plain", one) for one in (Parallelism(), Parallelism(tp=2, pp=2), Parallelism(dp=2))),
    ("odd", ODD, "ragged", Parallelism(tp=2)),
    ("normed", replace(ODD, norm_across_heads=True), "measured", Parallelism(tp=4)),
    ("windowed", WINDOWED, "windows", Parallelism()),
    ("mixture", MIXTURE, "plain", Parallelism(tp=2)),
    ("mixture", MIXTURE, "measured", Parallelism(dp=2, ep=2)),
    ("shared", SHARED, "plain", Parallelism(tp=2)),
    ("shared", SHARED, "ragged", Parallelism(dp=2, pp=2, ep=2)),
    ("wide", WIDE, "sent", Parallelism(dp=16, ep=16)),
    ("wide", WIDE, "sent", Parallelism(dp=2, ep=2, pp=2)),
    ("latent", LATENT, "latent", Parallelism(tp=2)),
    ("latent", LATENT, "module", Parallelism()),
    ("fp8", replace(DENSE, dtype="fp8"), "fp8", Parallelism()),
    ("fp8_block", replace(DENSE, dtype="fp8_block"), "fp8", Parallelism(tp=2)),
]


def figures(cost: StepCost) -> Iterator[float]:
    """In the full tables: each part over sizes below, between and beyond those that were measured."""
    sizes = np.array([0.5, 1.0, 3.0, 16.0, 17.0, 100.0, 257.0, 3000.0, 9000.0])
    batch, context = sizes[:, None], 37.0 * sizes[None] + 1
    for part in (cost.gemm_s, cost.experts_s, cost.elementwise_s, cost.communication_s, cost.logits_s, cost.linear_s):
        yield total(part(sizes))
    yield total(cost.prefill_s(batch, context))
    yield total(cost.decode_s(batch, batch * context))
    yield total([cost.tokens_limit, cost.sampled_limit, cost.token_steps, cost.context_limits(sizes), cost.copies_s])
    yield 1e3 * exact_step_s(cost, [(0, 100), (50, 50), (7, 300)], 9, 4000, 0)
    yield 1e3 * exact_step_s(cost, [], 70, 9000, 70) + 1e3 * exact_step_s(cost, [(0, 5000)], 0, 0, 1)


def test_steps_in_the_full_tables_are_as_they_were() -> None:
    found: dict[str, list[float]] = {}
    for name, model, tables, parallelism in CASES:
        for saturates in (True, False):
            own = replace(kernels(**MORE[tables]), saturates=saturates)
            cost = step_cost(own, model, GPU, parallelism)
            found[f"{name} {tables} {parallelism} {saturates}"] = list(figures(cost))
        gpu = replace(GPU, link_latency_s=4e-6, peak_flops=dict(GPU.peak_flops) | {"fp8_block": 1.5e14})
        found[f"{name} {tables} {parallelism} roofline"] = [
            total(Roofline(mfu=0.5, mbu=0.6).row(model, gpu, parallelism))
        ]
    check(KEPT, found)


def test_steps_by_few_knots_are_near_what_they_were() -> None:
    """Which knots are chosen may hang on the last digit of a sum; what they come to may not."""
    found: dict[str, list[float]] = {}
    steps: list[tuple[list[int], int, int]] = [
        ([1], 0, 0),
        ([100, 400], 0, 0),
        ([], 3, 900),
        ([], 90, 70_000),
        ([700], 20, 9000),
    ]
    for name, model, tables, parallelism in CASES:
        parts = tabulate(kernels(**MORE[tables]), model, GPU, parallelism)
        whole = parts.row(Calibration(kernel=0.9, communication=1.5, compute=1.2, step_s=1e-4))
        rows = stack([*parts.rows.values(), whole])
        found[f"{name} {tables} {parallelism}"] = [
            1e3 * step_s(rows, k, [0] * len(chunks), chunks, decodes, context)
            for k in range(len(rows.rows))
            for chunks, decodes, context in steps
        ]
    check(KEPT.with_name("few_knots.json"), found, rel=0.02)


def test_knots_are_as_they_were() -> None:
    found: dict[str, list[float]] = {}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        xs = samples(1.0, float(rng.integers(50, 5000)), float(rng.uniform(1.05, 1.5)), also=[7.0, 12.0, 9999.0])
        curves = np.cumsum(rng.random((3, len(xs))), axis=1)
        knots = choose_knots(xs, curves, rng.uniform(0.01, 0.3) * curves, keep=[12.0, float(xs[len(xs) // 2])])
        found[str(seed)] = [len(xs), total(xs), len(knots), total(knots)]
    check(KEPT.with_name("knots.json"), found)


def test_curves_that_cannot_be_are_told_with_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(cost: StepCost) -> None:
        raise ValueError("values must not fall")

    monkeypatch.setattr(tabulating, "_rows", refused)
    with pytest.raises(InputError, match=r"^measured times of toy on toy tp1: values must not fall$"):
        tabulate(kernels(), DENSE, GPU, Parallelism())
