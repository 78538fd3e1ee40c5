"""Kernel tables of the package aiconfigurator-core (NVIDIA, Apache-2.0): `pip install 'servelab[kernels]'`.

The package holds `systems/data/<gpu>/<family>/<backend>/<version>/<name>_perf.parquet`, measured under CUDA graphs as
servers replay them. Latencies are milliseconds (microseconds for expert-parallel dispatch), messages count elements.
`systems/query_versions.yaml` names the version of each backend whose measurement is complete.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import yaml

from framework.errors import InputError
from framework.timing.kernels import NAMES, OPERATIONS, Kernels, Provenance

BACKENDS = ("vllm", "trtllm", "sglang")
_PACKAGE = "aiconfigurator_core"
_GPUS = {
    **{gpu: f"{gpu}_sxm" for gpu in ("a100", "h100", "h200", "b200", "b300")},
    **{gpu: gpu for gpu in ("l40s", "gb200", "gb300")},
}
# Left out are 8-bit integers (int8_wo, sq) and 4-bit weights times 8-bit activations (w4afp8, w4a8_mxfp4_mxfp8):
# framework.hardware has no such types.
_DTYPES = {
    "bfloat16": "bf16",
    "half": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "int4_wo": "int4",
}
_MS = 1e-3
_BF16_BYTES = 2


@dataclass(frozen=True)
class _File:
    """One kind of file: where it lies, the column or expression of each key, which rows count and in which unit."""

    family: str
    name: str
    columns: Mapping[str, str | pl.Expr]
    keep: pl.Expr | None = None
    unit_s: float = _MS
    folder: str | None = None  # instead of the backend


_HEADS = {
    "kv_dtype": "kv_cache_dtype",
    "heads": "num_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "window": "window_size",
    "batch": "batch_size",
}
_ELEMENTS = pl.col("message_size") * _BF16_BYTES


def _nccl(name: str) -> _File:
    columns: dict[str, str | pl.Expr] = {"dtype": "nccl_dtype", "gpus": "num_gpus", "bytes": _ELEMENTS}
    keep = (pl.col("op_name") == name) & (pl.col("nccl_dtype") == "half")
    return _File("comm", "nccl", columns, keep, folder="nccl")


# The files of each operation. The first that has a group of GPUs measured counts for it; elsewhere all are joined.
_FILES: Mapping[str, Sequence[_File]] = {
    "gemm": [_File("gemm", "gemm", {"dtype": "gemm_dtype", "m": "m", "n": "n", "k": "k"})],
    "prefill_attention": [
        _File("attention", "context_attention", {**_HEADS, "tokens": "isl", "prefix": "step"}),
    ],
    "decode_attention": [
        _File("attention", "generation_attention", {**_HEADS, "context": pl.col("isl") + pl.col("step")}),
    ],
    "experts": [
        _File(
            "moe",
            "moe",
            {
                "dtype": "moe_dtype",
                "tokens": "num_tokens",
                "hidden": "hidden_size",
                "intermediate": "inter_size",
                "experts": "num_experts",
                "per_token": "topk",
                "tp": "moe_tp_size",
                "ep": "moe_ep_size",
                "distribution": "distribution",
            },
            # Experts without a gate do two thirds of the work: they are no faster kernel of the same operation.
            keep=~pl.col("kernel_source").str.contains("nongated"),
        )
    ],
    "all_reduce": [
        _File(
            "comm",
            "custom_allreduce",
            {"dtype": "allreduce_dtype", "gpus": "num_gpus", "bytes": _ELEMENTS},
            keep=~pl.col("kernel_source").str.ends_with("_eager"),
        ),
        _nccl("all_reduce"),
    ],
    "all_gather": [_nccl("all_gather")],
    "reduce_scatter": [_nccl("reduce_scatter")],
    "all_to_all": [_nccl("alltoall")],
}


def load_package(gpu: str, backend: str, root: Path | None = None) -> Kernels:
    """All tables of a GPU (a name of conf/gpu) and a backend (vllm, trtllm or sglang).

    Each table is of the version that the package calls current for that GPU and backend, else of the newest older one
    that has it, else of the oldest newer one. Of several kernels that measured the same shape the fastest counts, of
    repeats their median. `root`: the `systems` directory, None: of the installed package. Raises InputError for a
    package not installed and for an unknown gpu or backend.
    """
    if gpu not in _GPUS:
        raise InputError(f"no measured kernel times of gpu {gpu}: aiconfigurator-core has {', '.join(sorted(_GPUS))}")
    if backend not in BACKENDS:
        raise InputError(f"no measured kernel times of backend {backend}: choose one of {', '.join(BACKENDS)}")
    reader = _Reader(package_root() if root is None else root, gpu, backend)
    tables = {operation: reader.table(operation) for operation in _FILES}
    found = {operation: table for operation, table in tables.items() if table is not None}
    if not found:
        raise InputError(f"{reader.root / 'data' / _GPUS[gpu]}: no table of backend {backend}")
    provenance = Provenance(
        gpu, backend, reader.current, "aiconfigurator-core", "Apache-2.0", versions=dict(reader.versions)
    )
    return Kernels(provenance, found, tuple(reader.notes))


def package_root() -> Path:
    """The `systems` directory of the installed package; InputError, with how to install it, where there is none."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise InputError("measured kernel times need aiconfigurator-core: pip install 'servelab[kernels]'")
    return Path(spec.origin).parent / "systems"


@dataclass
class _Reader:
    """Reads the tables of one GPU and backend, remembering the version of each and what it left out."""

    root: Path
    gpu: str
    backend: str
    current: str = field(init=False)
    versions: dict[str, str] = field(init=False, default_factory=dict)
    notes: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        slots = yaml.safe_load((self.root / "query_versions.yaml").read_text())
        chosen = {**slots["defaults"], **slots.get("overrides", {}).get(_GPUS[self.gpu], {})}
        self.current = str(chosen[self.backend]["current"])

    def table(self, operation: str) -> pl.DataFrame | None:
        """The table of an operation, None where the package has none."""
        parts: list[pl.DataFrame] = []
        versions: list[str] = []
        measured: set[int] = set()
        for file in _FILES[operation]:
            for path in self._paths(file):
                part = self._read(operation, file, path)
                if "gpus" in part.columns:  # a version may have measured fewer GPUs than another
                    part = part.filter(~pl.col("gpus").is_in(sorted(measured)))
                    measured.update(part["gpus"].unique())
                if part.is_empty():
                    continue
                parts.append(part)
                versions.append(f"nccl {path.parent.name}" if file.folder == "nccl" else path.parent.name)
                if "gpus" not in part.columns:
                    break
        if not parts:
            return None
        self.versions[operation] = ", ".join(versions)
        return fastest(operation, pl.concat(parts))

    def _paths(self, file: _File) -> list[Path]:
        """The file in each version that has it, the one to prefer first."""
        folder = self.root / "data" / _GPUS[self.gpu] / file.family / (file.folder or self.backend)
        paths = folder.glob(f"*/{file.name}_perf.parquet")
        if file.folder is not None:
            return sorted(paths, key=lambda path: _order(path.parent.name), reverse=True)
        current = _order(self.current)
        versioned = sorted((_order(path.parent.name), path) for path in paths)
        older = [path for order, path in versioned if order <= current]
        newer = [path for order, path in versioned if order > current]
        return older[::-1] + newer

    def _read(self, operation: str, file: _File, path: Path) -> pl.DataFrame:
        """Rows of a file under the names of the schema, those of unknown types left out."""
        raw = pl.read_parquet(path)
        if file.family == "attention" and "window_size" not in raw.columns:  # older than windows
            raw = raw.with_columns(window_size=pl.lit(0, pl.Int64))
        if file.keep is not None:
            raw = raw.filter(file.keep)
        frame = raw.select(
            *(_key(name, column) for name, column in file.columns.items()),
            kernel=pl.col("kernel_source"),
            latency_s=pl.col("latency").cast(pl.Float64) * file.unit_s,
        )
        known = frame.drop_nulls()
        if dropped := frame.height - known.height:
            self.notes.append(f"{operation}: {dropped} rows of types without a name in DTYPE_BYTES")
        return known


def _key(name: str, column: str | pl.Expr) -> pl.Expr:
    source = pl.col(column) if isinstance(column, str) else column
    if name.endswith("dtype"):
        source = source.replace_strict(_DTYPES, default=None, return_dtype=pl.String)
    return source.cast(pl.String if name in NAMES else pl.Int64).alias(name)


def _order(version: str) -> tuple[tuple[int, int, str], ...]:
    """A version's place: numbers compare as numbers, and 1.3.0rc20 comes before 1.3.0."""
    parts = re.findall(r"\d+|[a-z]+", version)
    ranked = [(1, int(part), "") if part.isdigit() else (0 if part != "post" else 2, 0, part) for part in parts]
    return (*ranked, (1, -1, ""))


def fastest(operation: str, frame: pl.DataFrame) -> pl.DataFrame:
    """One row for each key, sorted: the median of repeats of a kernel, the fastest of several kernels."""
    keys = list(OPERATIONS[operation])
    if frame.select(keys).is_unique().all():
        return frame.sort(keys)
    medians = frame.group_by([*keys, "kernel"]).agg(pl.col("latency_s").median())
    return medians.sort("latency_s").unique(keys, keep="first", maintain_order=True).sort(keys)
