"""Tables of measured kernel times of one GPU and one backend, in one schema for all sources.

A table holds one row for each measured shape of one operation: the key columns of `OPERATIONS` and `latency_s`, the
seconds of one call. Two columns are optional: `spread_s`, the interquartile range of repeats in seconds, and `kernel`,
the kernel's name.

The operations, each on one GPU:

- gemm: (m, k) x (k, n); `dtype` of the weights;
- prefill_attention: `batch` sequences of `tokens` new tokens each behind `prefix` cached ones; `window` 0: none;
- decode_attention: one new token for each of `batch` sequences of `context` tokens, the new one included;
- uneven_decode: the same for sequences of unequal length, `context` on average and `longest` at most;
- experts: `tokens` tokens, of all GPUs that share the layer, enter a mixture of `experts` experts, `per_token` each;
  whole experts are spread over `ep` groups, each expert (`hidden` x `intermediate`) is split over `tp` GPUs;
  `distribution` of the tokens over the experts;
- spread_experts: the same by kernels made for experts that are spread over the GPUs of several nodes;
- all_reduce, all_gather, reduce_scatter, all_to_all: a message of `bytes` among `gpus`;
- dispatch: `tokens` of each GPU to those of their experts and back (`phase` dispatch, combine), by the library `comm`;
- latent_prefill, latent_decode: multi-head latent attention; `module` 1: with its projections, which have `dtype`;
- sparse_prefill, sparse_decode: latent attention with an indexer and its projections, of a model of that `hidden`;
- linear_attention: `tokens` of each of `batch` sequences through the convolution and the gated delta rule (`phase`
  conv_prefill, prefill, conv_decode, decode) of `key_heads` and `value_heads` of `key_dim` and `value_dim`;
- latent_bmm: its products around a decode's attention that absorb the up-projections (`phase` pre, post);
- elementwise: a kernel that reads and writes `bytes` in all, which stay in the cache where they fit;
- sampler: choosing a token of `vocab` for each of `batch` sequences, after the projection to the vocabulary;
- quantize: finding the scale of (m, k) activations (`phase` scale) and scaling them to `dtype` (`phase` apply). The
  times of fp8 GEMMs contain both: scales known beforehand save the former, activations scaled before save the latter.

Dtypes are named as in framework.system.model.DTYPE_BYTES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from framework.errors import InputError

_ATTENTION = ("kv_dtype", "heads", "kv_heads", "head_dim", "window", "batch")
_MESSAGE = ("dtype", "gpus", "bytes")
_EXPERTS = ("dtype", "tokens", "hidden", "intermediate", "experts", "per_token", "tp", "ep", "distribution")
# The key columns of each operation's table.
OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("dtype", "m", "n", "k"),
    "prefill_attention": (*_ATTENTION, "tokens", "prefix"),
    "decode_attention": (*_ATTENTION, "context"),
    "uneven_decode": (*_ATTENTION, "context", "longest"),
    "experts": _EXPERTS,
    "spread_experts": _EXPERTS,
    "all_reduce": _MESSAGE,
    "all_gather": _MESSAGE,
    "reduce_scatter": _MESSAGE,
    "all_to_all": _MESSAGE,
    "dispatch": ("phase", "comm", "tokens", "hidden", "per_token", "experts", "ep", "nodes"),
    "latent_prefill": ("kv_dtype", "dtype", "heads", "batch", "tokens", "prefix", "module"),
    "latent_decode": ("kv_dtype", "dtype", "heads", "batch", "context", "module"),
    "sparse_prefill": ("kv_dtype", "dtype", "hidden", "heads", "batch", "tokens", "prefix"),
    "sparse_decode": ("kv_dtype", "dtype", "hidden", "heads", "batch", "context"),
    "linear_attention": ("phase", "key_heads", "value_heads", "key_dim", "value_dim", "batch", "tokens"),
    "latent_bmm": ("dtype", "heads", "tokens", "phase"),
    "elementwise": ("bytes",),
    "sampler": ("vocab", "batch"),
    "quantize": ("dtype", "m", "k", "phase"),
}
# Key columns that hold names; all others hold whole numbers, those of MAY_BE_ZERO at least 0.
NAMES = ("dtype", "kv_dtype", "distribution", "phase", "comm")
MAY_BE_ZERO = ("window", "prefix", "module")


@dataclass(frozen=True)
class Provenance:
    """The origin of tables. `version` is that of the backend, and `versions` are those of each table."""

    gpu: str
    backend: str
    version: str
    source: str
    licence: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Kernels:
    """Measured kernel times of one GPU and backend, a table for each operation that was measured.

    `notes` say what was left out of the source, and why. `estimated` collects the operations that are taken from the
    datasheet because they were not measured; None: such are refused. `multiplied_as` has the types of experts' weights
    that the backend multiplies as another type if that was measured. With `saturates`, the utilisation of attention
    keeps rising beyond the largest measured size (framework.timing.kernels.interpolate); else it is constant there.
    """

    provenance: Provenance
    tables: Mapping[str, pl.DataFrame]
    notes: tuple[str, ...] = ()
    multiplied_as: Mapping[str, str] = field(default_factory=dict)
    estimated: set[str] | None = None
    saturates: bool = True

    def table(self, operation: str) -> pl.DataFrame:
        """The table of an operation, sorted by its key columns. Raises InputError if nothing was measured."""
        if operation not in self.tables:
            origin = self.provenance
            raise InputError(
                f"no {operation} times for gpu {origin.gpu}, backend {origin.backend} in {origin.source};"
                f" it has {', '.join(self.tables) or 'none'}"
            )
        return self.tables[operation]


def fastest(operation: str, rows: pl.DataFrame) -> pl.DataFrame:
    """One row for each key, sorted by the keys.

    It has the median of repeats with one kernel, and among several kernels the fastest. `rows` has the operation's key
    columns, `kernel`, `latency_s` and maybe `spread_s`, which the spread of repeats replaces.
    """
    keys = list(OPERATIONS[operation])
    if rows.select(keys).is_unique().all():
        return rows.sort(keys)
    spread = pl.col("latency_s").quantile(0.75) - pl.col("latency_s").quantile(0.25)
    medians = rows.group_by([*keys, "kernel"]).agg(pl.col("latency_s").median(), spread_s=spread)
    return medians.sort("latency_s").unique(keys, keep="first", maintain_order=True).sort(keys)
