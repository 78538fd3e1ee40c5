"""The measured times that stand for an operation of a layer: of its own shape, or of the most similar one.

Functions raise InputError, naming operation and shape, if the tables have no usable rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from framework.errors import InputError
from framework.system.model import Experts
from framework.timing.curves import FloatArray
from framework.timing.kernels.interpolate import nearest
from framework.timing.kernels.table import Kernels

_LAUNCH_BOUND_S = 30e-6  # the smallest product takes 3 us on a GPU
_LEAST_PRODUCT = 0.4  # least share of a measured time after subtracting the search for scales


@dataclass(frozen=True)
class Shard:
    """One GPU's part of a layer's attention: its heads, and the data type of cached keys and values."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype: str
    window: int = 0

    def seen(self, context: FloatArray) -> FloatArray:
        """The number of tokens to which the last one of `context` tokens attends."""
        return np.minimum(context, self.window) if self.window else context


def rows_of(kernels: Kernels, operation: str, wanted: dict[str, Any]) -> pl.DataFrame:
    """The rows of a table with the wanted values in the columns. Raises InputError if there are none."""
    table = kernels.table(operation)
    rows = table.filter(*(pl.col(name) == value for name, value in wanted.items()))
    if rows.is_empty():
        shape = ", ".join(f"{name} {value}" for name, value in wanted.items())
        origin = kernels.provenance
        raise InputError(
            f"no {operation} times with {shape} for gpu {origin.gpu}, backend {origin.backend} in {origin.source}"
        )
    return rows


def has_rows(kernels: Kernels, operation: str, wanted: dict[str, Any]) -> bool:
    """Whether a table holds rows with the wanted values in the columns."""
    table = kernels.tables.get(operation)
    return table is not None and not table.filter(*(pl.col(name) == value for name, value in wanted.items())).is_empty()


def expert_shape(kernels: Kernels, dtype: str, hidden: int, experts: Experts) -> dict[str, Any]:
    """The measured shape that stands for these experts: the same, or matrices of the same size in up to twice or
    half the number, which keep the GPU as busy with as many tokens.
    """
    size = {"dtype": dtype, "hidden": hidden, "intermediate": experts.intermediate}
    numbers = {"experts": experts.count, "per_token": experts.per_token}
    if not has_rows(kernels, "experts", size | numbers) and has_rows(kernels, "experts", size):
        found = nearest(rows_of(kernels, "experts", size), {"experts": experts.count, "per_token": experts.per_token})
        other = {name: int(found[name][0]) for name in numbers}
        if all(0.5 <= other[name] / number <= 2.0 for name, number in numbers.items()):
            return size | other
    return size | numbers


def multiplied_as(kernels: Kernels, dtype: str) -> str:
    """The type of weights by which the backend multiplies them, if that is faster and was measured."""
    faster = kernels.multiplied_as.get(dtype, dtype)
    return faster if faster in kernels.table("experts")["dtype"].unique() else dtype


def gemm_rows(kernels: Kernels, dtype: str) -> pl.DataFrame:
    """Rows of a data type as a server runs it.

    Rows of fp8 contain the search for the scale of the activations; it is subtracted if scales are fixed. If
    fp8_block rows measured the host's launches instead of the kernel, those of fp8 replace them: a product of 32 x
    32 matrices that takes tens of microseconds was not replayed from a CUDA graph, as servers do; up to twice that
    time, times say little of the GPU. The same kernels in other tables take as long as fp8 with one scale.
    """
    rows = rows_of(kernels, "gemm", {"dtype": "fp8" if dtype == "fp8_dynamic" else dtype})
    if dtype == "fp8":
        return _with_fixed_scales(kernels, rows)
    if dtype != "fp8_block" or "fp8" not in kernels.table("gemm")["dtype"].unique():
        return rows
    by_kernel = "kernel" if "kernel" in rows.columns else "dtype"
    launch = pl.col("latency_s").min().over(by_kernel)
    plain = rows_of(kernels, "gemm", {"dtype": "fp8"}).select("m", "n", "k", plain_s="latency_s")
    bound = (launch > _LAUNCH_BOUND_S) & (pl.col("latency_s") < 2 * launch)
    corrected = pl.when(bound).then(pl.min_horizontal("latency_s", "plain_s")).otherwise("latency_s")
    return rows.join(plain, on=("m", "n", "k"), how="left").with_columns(latency_s=corrected)


def _with_fixed_scales(kernels: Kernels, rows: pl.DataFrame) -> pl.DataFrame:
    """Times of products without the search for the scale of their activations, if that was measured separately."""
    if "quantize" not in kernels.tables:
        return rows
    searches = rows_of(kernels, "quantize", {}).filter((pl.col("phase") == "scale") & (pl.col("dtype") == "fp8"))
    search = searches.select("m", "k", search_s="latency_s")
    rest = pl.max_horizontal(pl.col("latency_s") - pl.col("search_s"), _LEAST_PRODUCT * pl.col("latency_s"))
    known = pl.when(pl.col("search_s").is_null()).then("latency_s").otherwise(rest)
    return rows.join(search, on=("m", "k"), how="left").with_columns(latency_s=known)


def attention_rows(kernels: Kernels, operation: str, shard: Shard) -> pl.DataFrame:
    """Rows of the heads, or of the most similar ones.

    A batch of n sequences keeps the GPU as busy with h heads as one of n / 2 with 2 h.
    """
    rows = rows_of(kernels, operation, {"kv_dtype": shard.kv_dtype})
    windowed = rows.filter(pl.col("window") == 0 if shard.window == 0 else pl.col("window") > 0)
    if windowed.is_empty():
        rows_of(kernels, operation, {"kv_dtype": shard.kv_dtype, "window": shard.window})  # raises with what is missing
    wanted: dict[str, float] = {"head_dim": shard.head_dim, "kv_heads": shard.kv_heads, "heads": shard.heads}
    return nearest(windowed, wanted | ({"window": shard.window} if shard.window else {}))


def shard_of(rows: pl.DataFrame) -> Shard:
    """The shard to which rows of one shard belong."""
    first = rows.row(0, named=True)
    return Shard(first["heads"], first["kv_heads"], first["head_dim"], first["kv_dtype"], first["window"])


def distribution_of(rows: pl.DataFrame, preferred: Sequence[str]) -> pl.DataFrame:
    """Rows of the most likely measured distribution of tokens over experts."""
    measured = set(rows["distribution"].unique())
    chosen = next((name for name in preferred if name in measured), rows["distribution"][0])
    return rows.filter(pl.col("distribution") == chosen)
