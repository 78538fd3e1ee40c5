"""Checks of kernel times: their values, and whether a GPU could reach them.

The speed of light of a row is the longer of the time that its FLOPs need at the GPU's peak and the time that its bytes
need at the bandwidth of memory or link (S. Williams et al., "Roofline", CACM 52(4), 2009). A unit mistake, a factor of
1000, puts a row far below it or a whole table far above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES, Gpu
from framework.timing.kernels.table import MAY_BE_ZERO, NAMES, OPERATIONS

# No kernel is shorter: measured tables have none under 1.4 us. A launch on an idle GPU takes about this long.
_SHORTEST_S = 0.2e-6
_LAUNCH_S = 2e-6
# The factor by which a row may be faster than the speed of light: datasheets state peaks below the boost clock
# (measured: up to 0.99), and small tensors that a benchmark reads repeatedly come from the cache (measured: up to 4.7).
_FLOPS_MARGIN = 3.0
_CACHE_MARGIN = 12.0
# The factor by which the median row may exceed launch and speed of light. Measured tables are within a factor of 80.
_SLOW = 300.0
_UNEVEN = 100.0  # between adjacent sizes of one shape
# The size along which step times are interpolated; a single value would leave nothing to interpolate.
_AXIS = {
    "gemm": "m",
    "prefill_attention": "tokens",
    "decode_attention": "batch",
    "experts": "tokens",
    "spread_experts": "tokens",
    "dispatch": "tokens",
    "latent_prefill": "tokens",
    "latent_decode": "batch",
    "latent_bmm": "tokens",
    "sparse_prefill": "tokens",
    "sparse_decode": "batch",
    "linear_attention": "batch",
    "quantize": "m",
    "all_reduce": "bytes",
    "all_gather": "bytes",
    "reduce_scatter": "bytes",
    "all_to_all": "bytes",
    "elementwise": "bytes",
    "sampler": "batch",
}
_LINKED = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch")  # what moves over links
# Heads of multi-head latent attention: 128 + 64 values of a query, 128 of a value, 512 + 64 cached (arXiv 2405.04434).
_NOPE, _ROPE, _VALUE, _RANK = 128, 64, 128, 512


def checked(
    operation: str, rows: pl.DataFrame, where: str, latency: str = "latency_s", unit_s: float = 1.0
) -> pl.DataFrame:
    """The rows with typed columns: names as strings, sizes as int64, `latency_s` in seconds as float64.

    `rows` has all key columns of the operation, the column `latency` in units of `unit_s` seconds, and `row`, which
    says where the row stands in the file `where`. Raises InputError, naming file, operation, row and value, for the
    first size that is not a whole number in its range, the first name that is empty or an unknown type, and the first
    time that is not finite and positive.
    """
    for name in OPERATIONS[operation]:
        rows = named(operation, rows, where, name) if name in NAMES else sized(operation, rows, where, name)
    times = rows[latency].cast(pl.Float64, strict=False)
    valid = times.is_finite() & (times > 0)
    _refuse_first(operation, rows, where, valid, latency, "a time must be finite and above 0")
    return rows.with_columns(latency_s=times * unit_s)


def named(operation: str, rows: pl.DataFrame, where: str, name: str) -> pl.DataFrame:
    """The rows with the column `name` as strings. Raises InputError for the first empty one or unknown data type."""
    rows = rows.with_columns(pl.col(name).cast(pl.String).str.strip_chars())
    if name.endswith("dtype"):
        known = rows[name].is_in(list(DTYPE_BYTES))
        return _refuse_first(operation, rows, where, known, name, f"choose one of {', '.join(DTYPE_BYTES)}")
    return _refuse_first(operation, rows, where, rows[name].str.len_chars() > 0, name, "a name is needed")


def sized(operation: str, rows: pl.DataFrame, where: str, name: str, minimum: int | None = None) -> pl.DataFrame:
    """The rows with the column `name` as int64.

    Raises InputError for the first value that is not a whole number of at least `minimum`.
    """
    if minimum is None:
        minimum = 0 if name in MAY_BE_ZERO else 1
    size = rows[name].cast(pl.Float64, strict=False)
    whole = (size >= minimum) & (size == size.round()) & (size < 2**53)
    _refuse_first(operation, rows, where, whole, name, f"a whole number of at least {minimum} is needed")
    return rows.with_columns(size.cast(pl.Int64).alias(name))


def require_range(operation: str, rows: pl.DataFrame, where: str) -> None:
    """Raise InputError for a table with one value of the size that step times are interpolated along."""
    axis = _AXIS.get(operation)
    if axis is not None and rows[axis].n_unique() < 2:
        raise InputError(
            f"{where}, {operation}, row {rows['row'][0]}: {axis} = {rows[axis][0]} in all {rows.height} rows leaves"
            f" nothing to interpolate, measure several"
        )


def require_consistent(operation: str, rows: pl.DataFrame, where: str) -> None:
    """Raise InputError for two rows of the same shape and kernel with different times."""
    keys = [name for name in (*OPERATIONS[operation], "kernel") if name in rows.columns]
    first = rows.group_by(keys).agg(first_row=pl.col("row").first(), first_s=pl.col("latency_s").first())
    again = rows.join(first, on=keys, nulls_equal=True).filter(pl.col("latency_s") != pl.col("first_s")).sort("row")
    if again.height:
        row = again.row(0, named=True)
        raise InputError(
            f"{where}, {operation}, row {row['row']}: {_shape(operation, row)} took {row['latency_s']:g} s and in row"
            f" {row['first_row']} {row['first_s']:g} s; give one time for each shape, such as the median"
        )


def require_plausible(operation: str, rows: pl.DataFrame, where: str, gpu: Gpu) -> None:
    """Raise InputError for a row that is too fast for the GPU, and for a table that is far too slow."""
    light = _light(operation, rows, gpu)
    too_fast = light.filter(pl.col("too_fast"))
    advice = "seconds, milliseconds and microseconds mixed up, or another gpu?"
    if too_fast.height:
        row = too_fast.sort("row").row(0, named=True)
        raise InputError(
            f"{where}, {operation}, row {row['row']}: {_shape(operation, row)} in {row['latency_s']:.3g} s is"
            f" {_rates(row)}, more than gpu {gpu.name} can do; {advice}"
        )
    slowness = pl.col("latency_s") / (_LAUNCH_S + pl.col("light_s"))
    ranked = light.with_columns(slowness=slowness).sort("slowness")
    row = ranked.row(ranked.height // 2, named=True)
    if row["slowness"] > _SLOW:
        raise InputError(
            f"{where}, {operation}, row {row['row']}: {_shape(operation, row)} in {row['latency_s']:.3g} s is"
            f" {_rates(row)}, and half of the rows are {row['slowness']:.0f} times slower than gpu {gpu.name} could be"
            f" or worse; {advice}"
        )


def require_even(operation: str, rows: pl.DataFrame, where: str, gpu: Gpu) -> None:
    """Raise InputError if one size takes a hundred times what adjacent sizes of the same shape suggest.

    A larger call cannot end a hundred times sooner than a smaller one, nor come a hundred times closer to the speed of
    light; a single row in another unit would.
    """
    axis = _AXIS.get(operation)
    if axis is None:
        return
    others = [name for name in (*OPERATIONS[operation], "kernel") if name in rows.columns and name != axis]
    light = _light(operation, rows, gpu).sort(*others, axis)
    slowness = pl.col("latency_s") / (_LAUNCH_S + pl.col("light_s"))
    uneven = light.with_columns(
        next_s=pl.col("latency_s").shift(-1).over(others),
        jump=slowness / slowness.shift(1).over(others),
    ).filter((pl.col("latency_s") > _UNEVEN * pl.col("next_s")) | (pl.col("jump") > _UNEVEN))
    if uneven.height:
        row = uneven.sort("row").row(0, named=True)
        raise InputError(
            f"{where}, {operation}, row {row['row']}: {_shape(operation, row)} in {row['latency_s']:.3g} s is over"
            f" {_UNEVEN:.0f} times slower than the next {axis} of the same shape lets expect; seconds, milliseconds and"
            " microseconds mixed up?"
        )


def too_fast(operation: str, rows: pl.DataFrame, gpu: Gpu) -> pl.Series:
    """Whether each row is faster than the GPU can be, booleans of shape (rows,)."""
    return _light(operation, rows, gpu)["too_fast"]


def _refuse_first(
    operation: str, rows: pl.DataFrame, where: str, valid: pl.Series, name: str, needed: str
) -> pl.DataFrame:
    """The rows, if all are valid. Raises InputError for the first that is not."""
    bad = rows.filter(~valid.fill_null(False))
    if bad.height:
        value = bad[name][0]
        found = f"{name} is empty" if value is None else f"{name} = {value!r}"
        raise InputError(f"{where}, {operation}, row {bad['row'][0]}: {found}; {needed}")
    return rows


def _light(operation: str, rows: pl.DataFrame, gpu: Gpu) -> pl.DataFrame:
    """The rows with the FLOPs, bytes and speed of light of each, and whether it is too fast."""
    flops, moved = _flops_and_bytes(operation)
    links = operation in _LINKED
    bandwidth = gpu.link_bytes_s if links else gpu.bandwidth_bytes_s
    computed = "dtype" in OPERATIONS[operation] and operation in ("gemm", "experts", "spread_experts", "latent_bmm")
    peak = _by_dtype({name: _peak(gpu, name) for name in DTYPE_BYTES}) if computed else pl.lit(_fastest_peak(gpu))
    return rows.with_columns(flops=flops.cast(pl.Float64), moved=moved.cast(pl.Float64), peak=peak).with_columns(
        light_s=pl.max_horizontal(pl.col("flops") / pl.col("peak"), pl.col("moved") / bandwidth),
        too_fast=(pl.col("latency_s") < _SHORTEST_S)
        | (pl.col("flops") / pl.col("latency_s") > _FLOPS_MARGIN * pl.col("peak"))
        | (pl.col("moved") / pl.col("latency_s") > _CACHE_MARGIN * bandwidth),
    )


def _flops_and_bytes(operation: str) -> tuple[pl.Expr, pl.Expr]:
    """FLOPs, and the bytes that memory or link must move at least, of one call on one GPU."""
    none = pl.lit(0.0)
    weight = _by_dtype(DTYPE_BYTES)
    if operation == "gemm":
        m, n, k = _columns("m", "n", "k")
        return 2.0 * m * n * k, n * k * weight
    if operation in ("experts", "spread_experts"):
        tokens, hidden, inner, routed = _columns("tokens", "hidden", "intermediate", "per_token")
        # Two of three matrices: experts without a gate have no third. A group may have few tokens or none.
        return 4.0 * tokens * routed * hidden * inner / (pl.col("tp") * pl.col("ep")), none
    if operation in ("prefill_attention", "decode_attention", "uneven_decode"):
        return _attention_flops_and_bytes(operation)
    if operation == "latent_prefill":
        heads, batch, tokens, prefix = _columns("heads", "batch", "tokens", "prefix")
        return batch * heads * tokens * (tokens + 2 * prefix) * float(_NOPE + _ROPE + _VALUE), none
    if operation == "latent_decode":
        heads, batch, context = _columns("heads", "batch", "context")
        cached = batch * context * float(_RANK + _ROPE) * _by_dtype(DTYPE_BYTES, "kv_dtype")
        return 2.0 * heads * batch * context * float(2 * _RANK + _ROPE), cached
    if operation in ("sparse_prefill", "sparse_decode"):
        return _sparse_flops_and_bytes(operation)
    if operation == "linear_attention":  # a token's values of all heads, at least
        batch, tokens, heads, size = _columns("batch", "tokens", "value_heads", "value_dim")
        return none, batch * tokens * heads * size * 2.0
    if operation == "latent_bmm":
        heads, tokens = _columns("heads", "tokens")
        return 2.0 * heads * tokens * float(_NOPE * _RANK), heads * float(_NOPE * _RANK) * weight
    if operation == "sampler":
        vocab, batch = _columns("vocab", "batch")
        return none, vocab * batch * 2.0
    if operation == "quantize":
        m, k = _columns("m", "k")
        return none, m * k * 2.0
    if operation == "dispatch":
        tokens, hidden = _columns("tokens", "hidden")
        return none, tokens * hidden * DTYPE_BYTES["nvfp4"]
    return none, pl.col("bytes").cast(pl.Float64)


def _attention_flops_and_bytes(operation: str) -> tuple[pl.Expr, pl.Expr]:
    heads, kv_heads, size, batch, window = _columns("heads", "kv_heads", "head_dim", "batch", "window")
    cached = 2.0 * kv_heads * size * batch * _by_dtype(DTYPE_BYTES, "kv_dtype")
    if operation != "prefill_attention":
        (context,) = _columns("context")
        seen = pl.when(window > 0).then(pl.min_horizontal(context, window)).otherwise(context)
        return 4.0 * heads * size * batch * seen, cached * seen
    tokens, prefix = _columns("tokens", "prefix")
    causal = tokens * (tokens / 2 + prefix)
    seen = pl.when(window > 0).then(pl.min_horizontal(causal, tokens * window / 2)).otherwise(causal)
    return 4.0 * heads * size * batch * seen, cached * tokens


def _sparse_flops_and_bytes(operation: str) -> tuple[pl.Expr, pl.Expr]:
    """Of the projection of outputs alone: what the indexer chooses is not known of a row."""
    heads, batch, hidden = _columns("heads", "batch", "hidden")
    tokens = pl.col("tokens").cast(pl.Float64) if operation == "sparse_prefill" else pl.lit(1.0)
    weights = heads * float(_VALUE) * hidden
    return 2.0 * batch * tokens * weights, weights * _by_dtype(DTYPE_BYTES)


def _columns(*names: str) -> list[pl.Expr]:
    return [pl.col(name).cast(pl.Float64) for name in names]


def _by_dtype(values: Mapping[str, float], name: str = "dtype") -> pl.Expr:
    return pl.col(name).replace_strict(dict(values), return_dtype=pl.Float64)


def _peak(gpu: Gpu, dtype: str) -> float:
    """Dense FLOP/s; the GPU's highest for a type without a stated peak."""
    try:
        return gpu.peak(dtype)
    except InputError:
        return _fastest_peak(gpu)


def _fastest_peak(gpu: Gpu) -> float:
    return max(gpu.peak_flops.values())


def _shape(operation: str, row: Mapping[str, object]) -> str:
    return " ".join(f"{name}={row[name]}" for name in OPERATIONS[operation])


def _rates(row: Mapping[str, float]) -> str:
    kinds: Sequence[tuple[str, str]] = (("flops", "FLOP/s"), ("moved", "B/s"))
    return " and ".join(f"{row[name] / row['latency_s']:.3g} {unit}" for name, unit in kinds if row[name] > 0)
