"""Measured deployments, read from the csv inside the package aiconfigurator-core.

`silicon_sample.csv` lists 5,221 closed-loop load tests: a client kept `silicon_concurrency` requests in flight. Nearly
all come from InferenceX (https://github.com/SemiAnalysisAI/InferenceX; the scripts under its benchmarks/ give the
client's settings: 10 x concurrency prompts sent as fast as the concurrency allows, ends of sequence ignored, lengths
uniform in [0.8, 1] x nominal), many of them up to three times. Rows are left out here, with reasons, before any
prediction; `Reading.excluded` counts them.

Conventions of the csv that its header does not state, each checked on measurements that several of its sources list:

- InferenceX states the GPUs of an instance (TP), the groups of experts (EP) and whether attention is data parallel.
  Two of the sources write this as tp * dp = moe_tp * moe_ep with moe_tp = TP and moe_ep = EP: 8 GPUs with EP = 8 appear
  as tp = 64 or, with data parallel attention, as dp = 64. For vLLM they write TP = EP = n as tp = dp = n and
  moe_ep = n * n, though attention is tensor parallel.
- The concurrency is that of all data-parallel groups together; `batch_size` is it over the csv's own dp.
- DeepSeek-V3 and DeepSeek-R1 name one architecture and, across sources, one measurement.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from experiments.validation.fidelity.recipes import as_they_were
from experiments.validation.fidelity.rows import DENSE, Pool, Row, doubted
from framework.cli.files import write_whole
from framework.errors import InputError
from framework.system.parallelism import Parallelism

PACKAGE, VERSION = "aiconfigurator_core", "0.12.0"
_CSV = Path("systems") / "silicon_sample.csv"
_MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "llama3_8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama3_8b",
    "meta-llama/Llama-3.1-70B": "llama3_70b",
    "Qwen/Qwen3-32B": "qwen3_32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3_32b",
    "openai/gpt-oss-120b": "gpt_oss_120b",
    "deepseek-ai/DeepSeek-R1": "deepseek_v3",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek_v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek_v3",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3_235b",
    "MiniMaxAI/MiniMax-M2.5": "minimax_m25",
    "moonshotai/Kimi-K2.5": "kimi_k25",
}
# Models of which no fit exists: `experiments.validation.given.later_models` reads these alone.
LATER_MODELS = {"Qwen/Qwen3.5-397B-A17B": "qwen35_397b", "zhipuai/GLM-5": "glm_5"}
# Checkpoints released with fp8 weights scaled in blocks of 128 x 128, under any name in the csv.
_BLOCK_SCALED = ("deepseek_v3", "minimax_m25", "qwen3_235b", "qwen35_397b", "glm_5")
# A bf16 checkpoint: its fp8 rows were quantised online. Those of Llama-70B ran nvidia's fp8 checkpoint, whose scales of
# activations are fixed.
_ONLINE = ("Qwen/Qwen3-32B",)
_DTYPES = {"fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4"}
_LARGEST_INSTANCE = 8  # GPUs; aggregated rows above it list all GPUs of a deployment with several roles
_SAME_MS = 2  # decimals to which one of the files rounds


@dataclass(frozen=True)
class Reading:
    """Rows to use and, by reason, how many of the csv's `listed` rows are not used."""

    rows: tuple[Row, ...]
    excluded: Mapping[str, int]
    listed: int

    def header(self) -> list[str]:
        """Lines that say what was read."""
        doubts = Counter(doubt for row in self.rows for doubt in row.doubts)
        return [
            f"{len(self.rows)} of {self.listed} rows of silicon_sample.csv",
            *(f"excluded: {count} {reason}" for reason, count in sorted(self.excluded.items())),
            *(f"doubtful: {count} {reason}" for reason, count in sorted(doubts.items())),
        ]


def silicon_csv() -> Path:
    """The csv of the installed package. Raises InputError if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError("the measured deployments are part of aiconfigurator-core: pip install '.[fidelity]'")
    path = Path(spec.submodule_search_locations[0]) / _CSV
    if not path.is_file():
        raise InputError(f"{path}: not in this version of aiconfigurator-core; {VERSION} has it")
    return path


def read_rows(path: Path | None = None, models: Mapping[str, str] = _MODELS) -> Reading:
    """Rows of `models` (ours by the csv's names) that can be used, in its order, and what was left out.

    Raises InputError if columns are missing.
    """
    table = _load(silicon_csv() if path is None else path)
    excluded: Counter[str] = Counter()
    once = table.unique(subset=[name for name in table.columns if name != "id"], keep="first", maintain_order=True)
    excluded["exact duplicates"] += len(table) - len(once)
    apart = _one_listing_each(once)
    excluded["the same measurement listed again by another file"] += len(once) - len(apart)
    rows = []
    for line in apart.iter_rows(named=True):
        try:
            rows.append(_row(line, models))
        except _UnusableError as reason:
            excluded[str(reason)] += 1
    return Reading(tuple(doubted(as_they_were(rows))), +excluded, len(table))


def write_keys(reading: Reading, path: Path) -> None:
    """Write the keys of the rows used, one a line, under a header that names the omitted rows."""
    lines = [*(f"# {line}" for line in reading.header()), *sorted(row.key for row in reading.rows)]
    write_whole(path, ("\n".join(lines) + "\n").encode())


def read_keys(path: Path) -> frozenset[str]:
    """Keys that `write_keys` wrote."""
    return frozenset(line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#")


def key_difference(rows: Iterable[Row], path: Path) -> str:
    """A line on the differences between `rows` and the keys at `path`; empty if they are the same."""
    present, expected = frozenset(row.key for row in rows), read_keys(path)
    if present == expected:
        return ""
    return (
        f"the measured rows are not those of {path.name}: {len(present - expected)} new,"
        f" {len(expected - present)} gone; the installed aiconfigurator-core is another version"
    )


class _UnusableError(Exception):
    """Why a line of the csv is left out."""


_SIZES = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
_COLUMNS = (
    *("silicon_data_source", "backend", "backend_version", "model_path", "system", "precision", "mode", "isl", "osl"),
    *("gemm_quant_mode", "batch_size", "silicon_ttft_ms", "silicon_tpot_ms"),
    *("prefill_num_workers", "decode_num_workers"),
    *(role + size for role in ("", "prefill_", "decode_") for size in _SIZES),
)


def _load(path: Path) -> pl.DataFrame:
    """The csv with our own columns `key`, `concurrency`, `family`, `date`, `known` next to its own."""
    table = pl.read_csv(path, infer_schema_length=None)
    missing = [name for name in _COLUMNS if name not in table.columns]
    if missing:
        raise InputError(f"{path}: column {missing[0]} is missing; aiconfigurator-core {VERSION} has it")
    content = [pl.col(name).cast(pl.String).fill_null("") for name in table.columns if name != "id"]
    source = pl.col("silicon_data_source")
    return table.with_columns(
        key=pl.concat_str(content, separator="|").map_elements(_digest, return_dtype=pl.String),
        concurrency=source.str.extract(r"silicon_concurrency=(\d+)").cast(pl.Int64),
        date=source.str.extract(r"measured=(\d{4}-\d\d-\d\d)").fill_null(""),
        family=pl.when(source.str.contains("auto-gap-analysis"))
        .then(pl.lit("gap analysis"))
        .otherwise(pl.lit("InferenceX")),
        written_as=pl.when(source.str.contains("source_file=2026-04-06|db-dump"))
        .then(pl.lit("product"))
        .otherwise(pl.lit("plain")),
        known=2 * pl.col("prefill_num_workers").is_not_null().cast(pl.Int8)
        + pl.col("backend_version").is_not_null().cast(pl.Int8),
    )


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _one_listing_each(table: pl.DataFrame) -> pl.DataFrame:
    """One of the lines that list one measurement, the most complete one; order kept."""
    # The same times to 0.01 ms under the same load are one measurement; _MODELS joins the names of one architecture.
    same = [
        pl.col("model_path").replace(_MODELS).alias("_model"),
        pl.col("silicon_ttft_ms").round(_SAME_MS).alias("_ttft"),
        pl.col("silicon_tpot_ms").round(_SAME_MS).alias("_tpot"),
    ]
    load = ["_model", "system", "backend", "mode", "isl", "osl", "concurrency", "_ttft", "_tpot"]
    return (
        table.with_row_index("_line")
        .with_columns(same)
        .sort("known", "written_as", "_line", descending=[True, False, False])
        .unique(subset=load, keep="first", maintain_order=True)
        .sort("_line")
        .drop("_line", "_model", "_ttft", "_tpot")
    )


_Line = Mapping[str, object]


def _row(line: _Line, models: Mapping[str, str]) -> Row:
    """The row of one line. Raises _UnusableError, with the reason, if there is none."""
    model = models.get(str(line["model_path"]))
    if model is None:
        raise _UnusableError("of models that this study leaves out")
    concurrency, mode = _number(line, "concurrency"), str(line["mode"])
    if not concurrency:
        raise _UnusableError("without a concurrency")
    if mode == "agg":
        prefill = decode = Pool(1, _aggregated(line, model))
        if concurrency != _number(line, "batch_size") * max(1, _number(line, "attention_dp_size")):
            raise _UnusableError("aggregated over an unknown number of instances (batch and concurrency disagree)")
    else:
        prefill, decode = (_pool(line, role, model) for role in ("prefill", "decode"))
    dtype, expert_dtype = _dtypes(line, model)
    inferencex = line["family"] == "InferenceX"
    return Row(
        key=str(line["key"]),
        model=model,
        gpu=str(line["system"]).removesuffix("_sxm"),
        backend=str(line["backend"]),
        version=str(line["backend_version"] or ""),
        dtype=dtype,
        expert_dtype=expert_dtype,
        mode=mode,
        prefill=prefill,
        decode=decode,
        isl=_number(line, "isl"),
        osl=_number(line, "osl"),
        concurrency=concurrency,
        prompts=10 * concurrency,
        shortest=0.8 if inferencex else 1.0,
        ttft_s=float(str(line["silicon_ttft_ms"])) / 1e3,
        tpot_s=float(str(line["silicon_tpot_ms"])) / 1e3,
        family=str(line["family"]),
        date=str(line["date"]),
    )


def _number(line: _Line, name: str) -> int:
    """An integer field, 0 if it is empty."""
    value = line[name]
    return value if isinstance(value, int) else 0


def _sizes(line: _Line, prefix: str) -> tuple[int, int, int, int]:
    """The csv's attention tp and dp, expert tp and ep; empty fields count as 1."""
    tp, dp, expert_tp, ep = (max(1, _number(line, prefix + size)) for size in _SIZES)
    return tp, dp, expert_tp, ep


def _aggregated(line: _Line, model: str) -> Parallelism:
    """The parallelism of an aggregated row, in whichever form its source writes it (see the module)."""
    tp, dp, expert_tp, ep = _sizes(line, "")
    if model in DENSE:
        expert_tp, ep = tp, 1
    elif line["written_as"] == "product":
        if expert_tp == 1 and tp == dp > 1 and ep == tp * dp:
            dp, ep = 1, dp
        elif tp * dp == expert_tp * ep and ep > 1:
            tp, dp = (1, expert_tp) if dp > 1 else (expert_tp, 1)
            expert_tp = expert_tp // ep
    return _checked(tp, dp, expert_tp, ep)


def _pool(line: _Line, role: str, model: str) -> Pool:
    """One role of a disaggregated row."""
    workers = _number(line, f"{role}_num_workers")
    if not workers:
        raise _UnusableError("disaggregated without worker counts")
    tp, dp, expert_tp, ep = _sizes(line, f"{role}_")
    if model in DENSE:
        expert_tp, ep = tp * dp, 1
    return Pool(workers, _checked(tp, dp, expert_tp, ep, largest=64))


def _checked(tp: int, dp: int, expert_tp: int, ep: int, largest: int = _LARGEST_INSTANCE) -> Parallelism:
    if tp * dp != expert_tp * ep:
        raise _UnusableError("with inconsistent parallelism (attention and experts on different numbers of GPUs)")
    if tp * dp > largest:
        raise _UnusableError("with the GPUs of several instances as one tensor-parallel group (tp over 8)")
    return Parallelism(tp=tp, dp=dp, ep=ep)


def _dtypes(line: _Line, model: str) -> tuple[str, str]:
    """Types of the weights outside and inside the experts, by checkpoint if the csv is less precise."""
    if model == "gpt_oss_120b":  # released in one form only
        return "bf16", "mxfp4"
    if line["precision"] is None or line["precision"] == "bf16":  # unset: the checkpoint's own, and that is bf16
        return "bf16", "bf16"
    dtype = _DTYPES.get(str(line["gemm_quant_mode"]))
    if dtype is None:
        raise _UnusableError("with a precision of another name")
    if dtype == "int4":  # Kimi-K2.5 quantises its routed experts alone
        return "bf16", "int4"
    if dtype == "fp8" and model in _BLOCK_SCALED:
        dtype = "fp8_block"
    if dtype == "fp8" and line["model_path"] in _ONLINE:
        dtype = "fp8_dynamic"
    return dtype, dtype
