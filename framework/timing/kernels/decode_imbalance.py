"""The additional cost of decodes of unequal context over equal ones, from measured kernels.

A decode kernel ends with its longest sequence. Compared with a batch of the same summed context c in which all b
sequences are equal, an uneven one takes

    skew_s * (b * longest - c)

seconds more: the term `uneven_s` of framework.timing.table. The difference of two measurements is noisy, and its noise
grows with their length, so residuals are relative to the even batch's time. Outliers have less weight (Cauchy loss,
tuned to 95 % efficiency on normal noise: Holland, Welsch, "Robust regression using iteratively reweighted
least-squares", 1977).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import least_squares

from framework.errors import InputError
from framework.system.model import Model
from framework.timing.kernels.table import OPERATIONS, Kernels

_KEYS = OPERATIONS["decode_attention"]
_LAYER = tuple(name for name in _KEYS if name not in ("batch", "context"))
_LEAST_CASES = 4
_RESAMPLES = 200
_LEAST_NOISE = 1e-3  # least relative noise of a measurement; a residual beyond its noise has less weight
_SIGMAS_PER_MEDIAN = 1.4826  # standard deviations of a normal variable in the median of its absolute value
_CAUCHY_SCALE = 2.385  # scale in standard deviations of the noise


@dataclass(frozen=True)
class DecodeImbalance:
    """A fit to the decodes of one layer with uneven contexts.

    `per_token_s` are the seconds of one layer per context token of (batch x longest - summed context), and `error_s` is
    their standard error, from a bootstrap over the `cases` uneven batches. `residual` is the median over these of the
    relative difference between measured and fitted time, and `residual_without` the same without the term.
    """

    per_token_s: float
    error_s: float
    cases: int
    residual: float
    residual_without: float

    def step_s(self, layers: int) -> float:
        """`StepRow.skew_s` of a model with `layers` layers of this kind; 0 if it lies within 2 errors of 0."""
        return layers * self.per_token_s if self.per_token_s > 2 * self.error_s else 0.0


def fit_imbalance(even: pl.DataFrame, uneven: pl.DataFrame, seed: int = 0) -> DecodeImbalance:
    """Fit the term to rows of one layer, with the same heads and types: `even` ones and `uneven` ones.

    They are rows of the tables `decode_attention` and `uneven_decode`. An uneven row counts if there is an even one of
    the same batch and (mean) context. `seed` is that of the bootstrap. Raises InputError for rows of several layers,
    and for fewer than 4 such pairs.
    """
    pairs = _pairs(even, uneven)
    if pairs.height < _LEAST_CASES:
        raise InputError(
            f"decode imbalance: {pairs.height} uneven decode batches with an even one of the same batch and context,"
            f" it takes {_LEAST_CASES}; measure more of them"
        )
    even_s = pairs["latency_s"].to_numpy()
    uneven_s = pairs["uneven_s"].to_numpy()
    spare = (pairs["batch"] * (pairs["longest"] - pairs["context"])).to_numpy().astype(np.float64)
    slowdown = uneven_s / even_s - 1.0
    per_token_s = _robust_slope(spare / even_s, slowdown)
    draws = np.random.default_rng(seed).integers(0, pairs.height, (_RESAMPLES, pairs.height))
    slopes = [_robust_slope((spare / even_s)[draw], slowdown[draw]) for draw in draws]
    return DecodeImbalance(
        per_token_s=per_token_s,
        error_s=float(np.std(slopes, ddof=1)),
        cases=pairs.height,
        residual=float(np.median(np.abs(even_s + per_token_s * spare - uneven_s) / uneven_s)),
        residual_without=float(np.median(np.abs(even_s - uneven_s) / uneven_s)),
    )


def imbalance_s(kernels: Kernels, model: Model, tp: int) -> float:
    """`StepRow.skew_s` of a model on one of `tp` GPUs; 0 if too few uneven batches of its heads were measured.

    It is also 0 if they show no effect. Layers with a window read no more than the window, and are not counted.
    """
    if "uneven_decode" not in kernels.tables or model.latent is not None:
        return 0.0
    heads, kv_heads = model.heads_on(tp)
    layer = {"kv_dtype": model.kv_dtype, "heads": heads, "kv_heads": kv_heads, "head_dim": model.head_dim}
    own = [pl.col(name) == value for name, value in (layer | {"window": 0}).items()]
    even, uneven = (kernels.table(name).filter(own) for name in ("decode_attention", "uneven_decode"))
    if _pairs(even, uneven).height < _LEAST_CASES:
        return 0.0
    return fit_imbalance(even, uneven).step_s(model.full_layers)


def _pairs(even: pl.DataFrame, uneven: pl.DataFrame) -> pl.DataFrame:
    """Even rows joined with `uneven_s` and `longest` of the uneven ones of the same batch and context."""
    layers = pl.concat([even.select(_LAYER), uneven.select(_LAYER)]).unique(maintain_order=True)
    if layers.height > 1:
        described = "; ".join(" ".join(map(str, row)) for row in layers.head(3).iter_rows())
        raise InputError(
            f"decode imbalance: rows of {layers.height} layers ({' '.join(_LAYER)}: {described}), give one layer's"
        )
    return even.select("batch", "context", "latency_s").join(
        uneven.select("batch", "context", "longest", uneven_s="latency_s"), on=["batch", "context"]
    )


def _robust_slope(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Slope through the origin that minimises the Cauchy loss of y - slope * x."""
    scale = float(np.median(np.abs(x)))  # the solver needs numbers near 1
    start = float(np.median(y / x)) * scale
    noise = _CAUCHY_SCALE * _SIGMAS_PER_MEDIAN * float(np.median(np.abs(start * x / scale - y)))
    fit = least_squares(
        lambda slope: slope[0] * x / scale - y, [start], loss="cauchy", f_scale=max(noise, _LEAST_NOISE)
    )
    return float(fit.x[0]) / scale
