"""The cost of uneven decode batches, fitted to kernels of known truth."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from framework.errors import InputError
from framework.timing.kernels import decode_imbalance
from framework.timing.kernels.decode_imbalance import DecodeImbalance, fit_imbalance

TRUE_S = 2.5e-11


def tables(
    skew_s: float = TRUE_S, noise: float = 0.0, seed: int = 0, outliers: int = 0
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Even and uneven batches of a kernel that reads 4 KiB a token at 3.5 TB/s, with relative noise."""
    rng = np.random.default_rng(seed)
    layer = {"kv_dtype": "bf16", "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}
    even, uneven = [], []
    for batch in (8, 32, 64, 128, 256):
        for context in (512, 2048, 8192):
            true_s = 3e-6 + batch * context * 4096 / 3.5e12
            row = {**layer, "batch": batch, "context": context}
            even.append({**row, "latency_s": true_s * (1 + noise * rng.standard_normal())})
            for ratio in (1.5, 2.0, 4.0):
                longest = int(ratio * context)
                more_s = true_s + skew_s * batch * (longest - context)
                more_s *= 1 + noise * rng.standard_normal()
                uneven.append({**row, "longest": longest, "latency_s": more_s})
    for i in rng.choice(len(uneven), outliers, replace=False):
        uneven[i]["latency_s"] *= 3
    return pl.DataFrame(even), pl.DataFrame(uneven)


def test_the_truth_is_found_where_nothing_is_noisy() -> None:
    skew = fit_imbalance(*tables())
    assert skew.per_token_s == pytest.approx(TRUE_S, rel=1e-6)
    assert skew.error_s < 1e-6 * TRUE_S
    assert skew.cases == 45
    pairs = tables()[0].join(tables()[1], on=["batch", "context"], suffix="_uneven")
    missed = pairs.select(1 - pl.col("latency_s") / pl.col("latency_s_uneven")).to_series().median()
    assert skew.residual < 1e-6
    assert skew.residual_without == pytest.approx(missed)


def test_the_error_covers_the_truth_as_often_as_it_should() -> None:
    fits = [fit_imbalance(*tables(noise=0.01, seed=seed)) for seed in range(4)]
    distances = [abs(fit.per_token_s - TRUE_S) / fit.error_s for fit in fits]
    assert np.mean([distance < 2 for distance in distances]) > 0.75
    assert max(distances) < 6
    assert np.mean([fit.per_token_s for fit in fits]) == pytest.approx(TRUE_S, rel=0.03)


def test_outliers_hardly_move_it() -> None:
    """A quarter of the uneven batches took three times as long: least squares would find over ten times as much."""
    for seed in (0, 4):
        skew = fit_imbalance(*tables(noise=0.005, outliers=12, seed=seed))
        assert skew.per_token_s == pytest.approx(TRUE_S, rel=0.1)


def test_the_error_is_that_of_fits_to_batches_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_imbalance, "_RESAMPLES", 3)
    even, uneven = tables(noise=0.05)
    four = uneven.head(4)
    draws = np.random.default_rng(7).integers(0, 4, (3, 4))
    slopes = [fit_imbalance(even, four[draw.tolist()]).per_token_s for draw in draws]
    assert fit_imbalance(even, four, seed=7).error_s == pytest.approx(np.std(slopes, ddof=1))


def test_it_is_per_layer_and_nothing_where_nothing_is_seen() -> None:
    skew = fit_imbalance(*tables(noise=0.005))
    assert skew.step_s(32) == 32 * skew.per_token_s
    assert fit_imbalance(*tables(skew_s=0.0, noise=0.01, seed=3)).step_s(32) == 0.0
    assert DecodeImbalance(-1e-11, 1e-13, 9, 0.0, 0.0).step_s(32) == 0.0
    assert [DecodeImbalance(slope, 1.0, 9, 0.0, 0.0).step_s(3) for slope in (2.0, 2.5)] == [0.0, 7.5]


def test_batches_without_an_even_one_are_ignored() -> None:
    even, uneven = tables(noise=0.01)
    short = even.filter(pl.col("batch") != 256)
    assert fit_imbalance(short, uneven) == fit_imbalance(short, uneven.filter(pl.col("batch") != 256))
    assert fit_imbalance(short, uneven).cases == 36


def test_too_few_pairs_are_refused() -> None:
    even, uneven = tables()
    with pytest.raises(InputError, match="decode imbalance: 3 uneven decode batches with an even one"):
        fit_imbalance(even.head(1), uneven)


def test_rows_of_several_layers_are_refused() -> None:
    even, uneven = tables()
    other = even.with_columns(heads=pl.lit(64, pl.Int64))
    with pytest.raises(InputError, match=r"decode imbalance: rows of 2 layers .*bf16 32 8 128 0; bf16 64 8 128 0"):
        fit_imbalance(pl.concat([even, other]), uneven)
    more = pl.concat([even.with_columns(heads=pl.lit(heads, pl.Int64)) for heads in (32, 64, 96, 128)])
    with pytest.raises(
        InputError, match=r"decode imbalance: rows of 4 layers .*: bf16 32 .*; bf16 64 [^;]*; bf16 96 8 128 0\), "
    ):
        fit_imbalance(more, uneven)
