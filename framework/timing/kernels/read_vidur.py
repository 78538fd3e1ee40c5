"""Kernel tables from the profiles of the simulator Vidur (A. Agrawal et al., MLSys 2024, github.com/microsoft/vidur).

Its profilers write, in milliseconds and float16: `mlp.csv`, the layers of a model by tokens and tensor-parallel degree;
`attention.csv`, attention by cached and new tokens; `all_reduce.csv`, messages in bytes. A file is recognised by its
columns. Operations without a table here (norms, activations, rope, embedding) use the model of bytes over bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.timing.kernels.checks import checked, named, require_plausible, require_range, sized
from framework.timing.kernels.read_csv import read_text
from framework.timing.kernels.table import OPERATIONS, Kernels, Provenance, fastest

_MS = 1e-3
_DTYPE = pl.lit("bf16")  # float16: as many bytes and FLOP/s as bfloat16
_TP = pl.col("num_tensor_parallel_workers")


def load_vidur(source: Path | Sequence[Path], gpu: Gpu, backend: str) -> Kernels:
    """The kernel tables of a directory or of files, converted from milliseconds to seconds.

    They are gemm, prefill_attention, decode_attention and all_reduce, as far as there are files. The median of repeats
    counts. Raises InputError for other files, for a missing column, value or positive time, and for times that `gpu`
    cannot reach.
    """
    paths = sorted(source.rglob("*.csv")) if isinstance(source, Path) and source.is_dir() else source
    files = [(path, read_text(path)) for path in ([paths] if isinstance(paths, Path) else paths)]
    parts: dict[str, list[pl.DataFrame]] = {}
    for path, rows in files:
        for marker, read in _READERS.items():
            if _median(marker) in rows.columns:
                for operation, table in read(rows, str(path)).items():
                    require_plausible(operation, table, str(path), gpu)
                    require_range(operation, table, str(path))
                    parts.setdefault(operation, []).append(table.select(*OPERATIONS[operation], "kernel", "latency_s"))
    if not parts:
        looked = ", ".join(str(path) for path, _ in files) or str(source)
        needed = ", ".join(_median(marker) for marker in _READERS)
        raise InputError(f"{looked}: no profile of Vidur; its files have one of the columns {needed}")
    tables = {
        operation: fastest(operation, pl.concat(parts[operation])) for operation in OPERATIONS if operation in parts
    }
    versions = dict.fromkeys(tables, "unstated")
    return Kernels(Provenance(gpu.name, backend, "unstated", "Vidur profiles", "unstated", versions), tables)


def is_vidur(rows: pl.DataFrame) -> bool:
    """Whether the rows of a file have the columns of a profile of Vidur."""
    return any(_median(marker) in rows.columns for marker in _READERS)


def _layers(rows: pl.DataFrame, where: str) -> dict[str, pl.DataFrame]:
    """The four projections of a layer as GEMMs (vidur/profiling/mlp/mlp_impl.py)."""
    sizes = ("num_tokens", "n_embd", "n_expanded_embd", "n_head", "n_kv_head", "num_tensor_parallel_workers")
    projections = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
    rows = _with_sizes("mlp", rows, where, sizes, [*map(_median, projections), "use_gated_mlp"])
    rows = named("mlp", rows, where, "use_gated_mlp")
    hidden, inner, heads = pl.col("n_embd"), pl.col("n_expanded_embd"), pl.col("n_head")
    up = pl.when(pl.col("use_gated_mlp").str.to_lowercase() == "true").then(2).otherwise(1) * inner
    shapes = {
        "attn_pre_proj": ((heads + 2 * pl.col("n_kv_head")) * hidden / heads / _TP, hidden),
        "attn_post_proj": (hidden, hidden / _TP),
        "mlp_up_proj": (up / _TP, hidden),
        "mlp_down_proj": (hidden, inner / _TP),
    }
    tables = []
    for projection, (n, k) in shapes.items():
        table = rows.with_columns(dtype=_DTYPE, m="num_tokens", n=n, k=k, kernel=pl.lit(""))
        typed = checked("gemm", table, where, _median(projection), _MS)
        tables.append(typed.select(*OPERATIONS["gemm"], "kernel", "latency_s", "row"))
    return {"gemm": pl.concat(tables)}


def _attention(rows: pl.DataFrame, where: str) -> dict[str, pl.DataFrame]:
    """Rows of one prompt's chunk, and rows of decodes (vidur/profiling/attention/attention_wrapper.py).

    `kv_cache_size` is what was cached before the step, for each sequence.
    """
    sizes = ("n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers", "batch_size")
    needed = [_median("attn_prefill"), _median("attn_decode"), "is_prefill"]
    rows = _with_sizes("attention", rows, where, sizes, [*needed, "prefill_chunk_size", "kv_cache_size"])
    for name in ("prefill_chunk_size", "kv_cache_size"):
        rows = sized("attention", rows, where, name, minimum=0)
    rows = named("attention", rows, where, "is_prefill").with_columns(
        kv_dtype=_DTYPE,
        heads=pl.col("n_q_head") / _TP,
        # With more GPUs than KV heads each holds a copy of one.
        kv_heads=pl.max_horizontal(pl.col("n_kv_head") / _TP, pl.lit(1.0)),
        head_dim=pl.col("n_embd") / pl.col("n_q_head"),
        window=pl.lit(0),
        batch="batch_size",
        tokens="prefill_chunk_size",
        prefix="kv_cache_size",
        context=pl.col("kv_cache_size") + 1,
        kernel=pl.col("attention_backend") if "attention_backend" in rows.columns else pl.lit(""),
    )
    prefills = pl.col("is_prefill").str.to_lowercase() == "true"
    parts = {
        "prefill_attention": (rows.filter(prefills), "attn_prefill"),
        "decode_attention": (rows.filter(~prefills), "attn_decode"),
    }
    return {
        operation: checked(operation, part, where, _median(timer), _MS)
        for operation, (part, timer) in parts.items()
        if part.height
    }


def _collective(rows: pl.DataFrame, where: str) -> dict[str, pl.DataFrame]:
    """All-reduces; among several placements of equally many GPUs the one on the fewest nodes."""
    rows = _with_sizes("all_reduce", rows, where, ("num_workers", "size", "devices_per_node"), [_median("all_reduce")])
    packed = rows.filter(pl.col("devices_per_node") == pl.col("devices_per_node").max().over("num_workers"))
    table = packed.with_columns(dtype=_DTYPE, gpus="num_workers", bytes="size", kernel=pl.lit(""))
    return {"all_reduce": checked("all_reduce", table, where, _median("all_reduce"), _MS)}


def _with_sizes(kind: str, rows: pl.DataFrame, where: str, sizes: Sequence[str], others: Sequence[str]) -> pl.DataFrame:
    """The rows with `sizes` as whole numbers. Raises InputError for a missing column or another value."""
    for name in (*sizes, *others):
        if name not in rows.columns:
            raise InputError(f"{where}, {kind}, row 1: no column {name}; needed are {', '.join((*sizes, *others))}")
    for name in sizes:
        rows = sized(kind, rows, where, name)
    return rows


def _median(timer: str) -> str:
    return f"time_stats.{timer}.median"


_READERS: dict[str, Callable[[pl.DataFrame, str], dict[str, pl.DataFrame]]] = {
    "mlp_up_proj": _layers,
    "attn_decode": _attention,
    "all_reduce": _collective,
}
