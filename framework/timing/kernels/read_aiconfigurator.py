"""Kernel tables of the package aiconfigurator-core (NVIDIA, Apache-2.0): `pip install '.[kernels]'`.

The package holds `systems/data/<gpu>/<family>/<backend>/<version>/<name>_perf.parquet`, measured under CUDA graphs as
servers replay them. `systems/query_versions.yaml` names the version of each backend with a complete measurement,
`systems/<gpu>.yaml` states the hardware.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.timing.kernels.aiconfigurator_files import FILES, FILLED, File
from framework.timing.kernels.checks import require_plausible, too_fast
from framework.timing.kernels.table import Kernels, Provenance, fastest

BACKENDS = ("vllm", "trtllm", "sglang")
_PACKAGE = "aiconfigurator_core"
_TESTED = "0.12.0"
# TensorRT-LLM multiplies mxfp4 weights by mxfp8 activations on GPUs that can, which are those that were measured.
_MULTIPLIED_AS = {"trtllm": {"mxfp4": "mxfp4_mxfp8"}}
_GPUS = {
    **{gpu: f"{gpu}_sxm" for gpu in ("a100", "h100", "h200", "b200", "b300")},
    **{gpu: gpu for gpu in ("l40s", "gb200", "gb300")},
    "rtx_pro_6000": "rtx_pro_6000_server",
}
# Steps of these GPUs have no separate elementwise kernels: including them improves no comparison with measurements
# (docs/timing_kernels.md).
UNTABLED_ELEMENTWISE = ("a100", "h100", "h200", "b200")
# Beyond its measured sizes attention has the utilisation of the largest size: published comparisons were repeated with
# such steps.
HELD = ("a100",)


def load_package(gpu: str, backend: str, root: Path | None = None) -> Kernels:
    """All kernel tables of a GPU (a name of conf/gpu) and a backend (vllm, trtllm or sglang).

    Each table is of the version that the package calls current for that GPU and backend, else of the newest older one
    that has it, else of the oldest newer one. The fastest of several kernels that measured the same shape counts, and
    the median of repeats: the choice of a backend's heuristics is not recorded. Kernels for experts that several
    backends share count for all of them. Rows of types that the framework does not know, without a positive time or too
    fast for the GPU are left out and counted in `notes`. `root` is the `systems` directory, by default that of the
    installed package. Raises InputError for a package not installed, and for an unknown gpu or backend.
    """
    systems = package_root() if root is None else root
    hardware = package_gpu(gpu, systems)
    if backend not in BACKENDS:
        raise InputError(f"no measured kernel times of backend {backend}: choose one of {', '.join(BACKENDS)}")
    reader = _Reader(systems, hardware, backend)
    left_out = ("elementwise",) if gpu in UNTABLED_ELEMENTWISE else ()
    operations = [operation for operation in FILES if operation not in left_out]
    tables = {operation: table for operation in operations if (table := reader.table(operation)) is not None}
    if not tables:
        raise InputError(f"{systems / 'data' / _GPUS[gpu]}: no table of backend {backend}")
    provenance = Provenance(gpu, backend, reader.current, "aiconfigurator-core", "Apache-2.0", reader.versions)
    multiplied_as = _MULTIPLIED_AS.get(backend, {})
    return Kernels(provenance, tables, tuple(reader.notes), multiplied_as, saturates=gpu not in HELD)


def package_gpu(gpu: str, root: Path | None = None) -> Gpu:
    """The GPU as the package describes it. Raises InputError for a GPU without tables."""
    if gpu not in _GPUS:
        raise InputError(f"no measured kernel times of gpu {gpu}: aiconfigurator-core has {', '.join(sorted(_GPUS))}")
    system = _system(package_root() if root is None else root, gpu)
    chip, node = system["gpu"], system["node"]
    names = {"bf16": "bfloat16_tc_flops", "fp8": "fp8_tc_flops", "fp4": "fp4_tc_flops"}
    return Gpu(
        name=gpu,
        peak_flops={dtype: float(chip[name]) for dtype, name in names.items() if name in chip},
        memory_bytes=float(chip["mem_capacity"]),
        bandwidth_bytes_s=float(chip["mem_bw"]),
        link_bytes_s=float(node["intra_node_bw"]),
        pcie_bytes_s=float(node["pcie_bw"]),
        nic_bytes_s=float(node["inter_node_bw"]),
        tdp_w=float(chip["power"]),
        idle_w=0.0,  # The file states neither this nor the price.
        usd_per_hour=0.0,
    )


def package_root() -> Path:
    """The `systems` directory of the installed package. Raises InputError, with how to install it, if it is missing."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise InputError("measured kernel times need aiconfigurator-core: pip install '.[kernels]'")
    return Path(spec.origin).parent / "systems"


@dataclass
class _Reader:
    """Reads the tables of one GPU and backend, and notes the version of each and what it left out."""

    root: Path
    gpu: Gpu
    backend: str
    current: str = field(init=False)
    gpus_per_node: int = field(init=False)
    versions: dict[str, str] = field(init=False, default_factory=dict)
    notes: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        slots = _yaml(self.root / "query_versions.yaml")
        chosen = {**slots["defaults"], **slots.get("overrides", {}).get(_GPUS[self.gpu.name], {})}
        self.current = str(chosen[self.backend]["current"])
        self.gpus_per_node = int(_system(self.root, self.gpu.name)["node"]["num_gpus_per_node"])

    def table(self, operation: str) -> pl.DataFrame | None:
        """The table of an operation, None if the package has none."""
        parts: list[pl.DataFrame] = []
        versions: list[str] = []
        for file in FILES[operation]:
            fills = file.fills or FILLED.get(operation, ())
            for path in self._paths(file):
                part = self._rows(operation, file, path)
                if fills and parts:
                    before = pl.concat(parts).filter(pl.col("kernel").str.contains(file.unless))
                    part = part.join(before, on=fills, how="anti")
                if part.is_empty():
                    continue
                parts.append(part)
                versions.append(path.parent.name if file.folder is None else f"{file.folder} {path.parent.name}")
                if not fills:
                    break
        if not parts:
            return None
        self.versions[operation] = ", ".join(dict.fromkeys(versions))
        return fastest(operation, pl.concat(parts).drop("row"))

    def _paths(self, file: File) -> list[Path]:
        """The file in each version that has it, the preferred one first."""
        folder = self.root / "data" / _GPUS[self.gpu.name] / file.family / (file.folder or self.backend)
        if file.folder == self.backend:
            return []
        paths = sorted(folder.glob(f"*/{file.name}_perf.parquet"), key=lambda path: _order(path.parent.name))
        if file.folder is not None:
            return paths[::-1]
        older = [path for path in paths if _order(path.parent.name) <= _order(self.current)]
        return older[::-1] + paths[len(older) :]

    def _rows(self, operation: str, file: File, path: Path) -> pl.DataFrame:
        """The usable rows of a file."""
        raw = file.rows(_parquet(path).with_columns(gpus_per_node=pl.lit(self.gpus_per_node)), str(path))
        known = raw.drop_nulls()
        timed = known.filter(pl.col("latency_s").is_finite() & (pl.col("latency_s") > 0))
        usable = timed.filter(~too_fast(operation, timed, self.gpu))
        counts = (
            (raw.height - known.height, "of types without a name in DTYPE_BYTES"),
            (known.height - timed.height, "without a positive time"),
            (timed.height - usable.height, "faster than the GPU can be"),
        )
        name = path.relative_to(self.root / "data")
        self.notes.extend(f"{operation}: {count} rows {why} ({name})" for count, why in counts if count)
        if 2 * usable.height < known.height:  # the remaining rows are not a grid
            self.notes.append(f"{operation}: the other {usable.height} rows ({name})")
            return usable.clear()
        if usable.height:
            require_plausible(operation, usable, str(path), self.gpu)
        return usable


def _system(root: Path, gpu: str) -> dict[str, Any]:
    return _yaml(root / f"{_GPUS[gpu]}.yaml")


def _yaml(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{path}: cannot be read ({error}); is it aiconfigurator-core {_TESTED}?") from None
    return found


def _parquet(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: cannot be read ({error}); is it aiconfigurator-core {_TESTED}?") from None


def _order(version: str) -> tuple[tuple[int, int, str], ...]:
    """The order of versions: numbers compare as numbers, 1.3.0rc20 precedes 1.3.0 and that precedes 1.3.0.post1."""
    parts = re.findall(r"\d+|[a-z]+", version)
    ranked = [(1, int(part), "") if part.isdigit() else (2 if part == "post" else 0, 0, part) for part in parts]
    return (*ranked, (1, -1, ""))
