"""Rows and models wider than those of scenarios: every term of a row, every kind of model and of split."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from framework.system.model import Experts, LatentAttention, LinearAttention, Model, SparseAttention
from framework.system.parallelism import Parallelism
from framework.timing.table import Curve, StepRow, Surface
from tests.helpers.drawing import Draw


def full_rows(draw: Draw) -> StepRow:
    """A row with every term, of curves with many knots: dense ones and such that lie far apart."""
    numbers = (
        *("base_s", "per_prefill_token_s", "prefill_step_s", "per_sequence_s", "per_sampled_s", "masked_s"),
        *("prefill_quadratic_s", "per_context_token_s", "skew_s"),
    )
    limits = {name: draw.real(1.0, 500.0) for name in ("tokens_limit", "length_limit", "sampled_limit")}
    curves = {name: _curve(draw) for name in ("linear", "logits", "attention", "waste", "decode_limits")}
    coefficients = {name: draw.real(0.001, 3.0) for name in numbers}
    arguments: dict[str, Any] = {**coefficients, **limits, **curves, "decode": _surface(draw)}
    arguments["bounded"] = _curve(draw).rising()
    return StepRow(**arguments)


def _knots(draw: Draw, most: int) -> tuple[float, ...]:
    knots = [draw.one([0.0, 0.5, 1.0, 1.0, draw.share()])]
    for _ in range(draw.integer(1, most)):
        x = knots[-1]
        knots.append(
            x + draw.one([1.0, draw.real(0.01, 1.0), x * draw.real(0.01, 0.2) + 0.01, x * draw.real(1, 4) + 1])
        )
    return tuple(knots)


def _values(draw: Draw, count: int) -> tuple[float, ...]:
    """Above 0, up and down, but not down at the end."""
    values = [draw.real(0.5, 9.0) for _ in range(count)]
    return (*values[:-2], *sorted(values[-2:]))


def _curve(draw: Draw) -> Curve:
    knots = _knots(draw, draw.one([1, 5, 40]))
    return Curve(knots, _values(draw, len(knots)))


def _surface(draw: Draw) -> Surface:
    batches, contexts = _knots(draw, 6), _knots(draw, draw.one([1, 5, 30]))
    return Surface(batches, contexts, tuple(_values(draw, len(contexts)) for _ in batches))


def counts_at(draw: Draw, table: Curve | Surface | None, axis: str = "batches") -> int:
    """A whole number: 0, 1, at a knot of the table or with it, between knots, or beyond the last one."""
    knots = (1.0, 99.0) if table is None else table.knots if isinstance(table, Curve) else getattr(table, axis)
    near = math.ceil(draw.one(knots)) + draw.integer(-1, 1)
    far = math.ceil(knots[-1] * draw.real(1.0, 5.0)) + 1
    return max(0, min(draw.one([0, 1, near, near, near, draw.integer(0, math.ceil(knots[-1])), far]), 10**7))


def wide_models(draw: Draw) -> Model:
    """Of any attention, MLP and types."""
    kv_heads = draw.integer(1, 8)
    model = Model(
        *("drawn", draw.integer(1, 9), draw.integer(1, 64), kv_heads * draw.integer(1, 4), kv_heads),
        *(draw.integer(1, 16), draw.integer(1, 128), draw.integer(1, 200), 1000),
        tied_embeddings=draw.chance(0.5),
        mlp_matrices=draw.integer(2, 3),
        dtype=draw.one(["fp32", "bf16", "fp8", "nvfp4", "mxfp4", "int4"]),
        kv_dtype=draw.one(["bf16", "fp8", "nvfp4"]),
    )
    if draw.chance(0.3):
        model = replace(model, latent=LatentAttention(*draw.integers(1, 16, 5)))
    if draw.chance(0.3):
        model = (
            replace(model, window=4, windowed_layers=draw.integer(1, model.layers - 1)) if model.layers > 1 else model
        )
    if draw.chance(0.5):
        count, dense_layers = draw.integer(1, 8), draw.integer(0, model.layers)
        experts = Experts(count, draw.integer(1, count), draw.integer(1, 32), draw.integer(0, 16), dense_layers)
        model = replace(model, experts=replace(experts, dtype=draw.one([None, "fp8", "mxfp4"])))
    model = replace(model, output_gate=draw.chance(0.3))
    if model.latent is not None:
        return replace(model, sparse=SparseAttention(*draw.integers(1, 32, 3))) if draw.chance(0.5) else model
    if model.full_layers > 1 and draw.chance(0.5):
        key_heads, kernel = draw.integer(1, 4), draw.integer(1, 5)
        heads = (key_heads, key_heads * draw.integer(1, 3), draw.integer(1, 8), draw.integer(1, 8))
        linear = LinearAttention(draw.integer(1, model.full_layers - 1), *heads, kernel, draw.one(["bf16", "fp32"]))
        model = replace(model, linear=linear)
    return model


def parallelisms(draw: Draw) -> Parallelism:
    """Any split, of experts too."""
    tp, dp = draw.integer(1, 16), draw.integer(1, 4)
    return Parallelism(tp, draw.integer(1, 4), draw.one([ep for ep in range(1, 65) if tp * dp % ep == 0]), dp)
