"""Predictions of the measured deployments by the vendor's own predictor (NVIDIA aiconfigurator, Apache-2.0).

    python -m experiments.validation.fidelity.vendor        # in an environment with aiconfigurator; writes vendor.csv

The predictor composes the tables of our profiles into a closed form, without a simulation. Its answers, for the package
version in the file's header, lie next to this module, so the study runs without it. It is asked about the fixed
deployment of every row, at the nominal lengths, uncalibrated, with its default options; without a table of the measured
version of a backend it uses its newest one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import io
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from experiments.validation.fidelity.csv_file import VERSION, read_rows
from experiments.validation.fidelity.rows import Pool, Row
from framework.cli.files import user_cache, write_whole
from framework.cli.reading import parquet_of
from framework.cli.terminal import progress_line
from framework.errors import InputError
from framework.system.parallelism import Parallelism

PACKAGE = "aiconfigurator"
STORED = Path(__file__).with_name("vendor.csv")
_PROCESSES = 2
_MOST_KEPT = 100_000
_SCHEMA = {"key": pl.String, "ttft_s": pl.Float64, "tpot_s": pl.Float64, "failure": pl.String}
_PATHS = {
    "llama3_8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama3_70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3_32b": "Qwen/Qwen3-32B",
    "gpt_oss_120b": "openai/gpt-oss-120b",
    "deepseek_v3": "deepseek-ai/DeepSeek-V3",
    "qwen3_235b": "Qwen/Qwen3-235B-A22B-FP8",
    "minimax_m25": "MiniMaxAI/MiniMax-M2.5",
    "kimi_k25": "moonshotai/Kimi-K2.5",
}
_NVFP4_PATHS = {"minimax_m25": "nvidia/MiniMax-M2.5-NVFP4", "kimi_k25": "nvidia/Kimi-K2.5-NVFP4"}
_MODES = {"bf16": "bfloat16", "fp8": "fp8", "fp8_dynamic": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
# Signs in the predictor's messages, and what they mean.
_REASONS = {
    "OOM": "does not fit in memory",
    "Cross-node EP": "no table of expert communication across nodes",
    "data missing": "no kernel table of this shape and type",
    "Invalid quantized MoE": "experts cannot be divided so",
    "No database": "no tables of this system and backend",
}
_SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm"}


@dataclass(frozen=True)
class Prediction:
    """Mean latencies of the row `key`; with a `failure` they are NaN."""

    key: str
    ttft_s: float
    tpot_s: float
    failure: str = ""


def stored_predictions(path: Path = STORED) -> Mapping[str, Prediction]:
    """The predictions stored next to this module, by key. Raises InputError if the file cannot be read."""
    try:
        table = pl.read_csv(path, comment_prefix="#", schema_overrides=dict.fromkeys(("key", "failure"), pl.String))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{path}: no predictions there; make them with python -m {__spec__.name}") from error
    found = table.with_columns(
        ttft_s=pl.col("ttft_ms") / 1e3, tpot_s=pl.col("tpot_ms") / 1e3, failure=pl.col("failure").fill_null("")
    ).fill_null(float("nan"))
    return {line["key"]: Prediction(**line) for line in found.select(*_SCHEMA).iter_rows(named=True)}


def write_predictions(predictions: Iterable[Prediction], version: str, path: Path = STORED) -> None:
    """Write them with 4 significant digits."""
    lines = [f"# predictions of {PACKAGE} {version} for the rows of rows.txt, milliseconds"]
    lines.append("key,ttft_ms,tpot_ms,failure")
    for one in sorted(predictions, key=lambda prediction: prediction.key):
        numbers = f",,{one.failure}" if one.failure else f"{one.ttft_s * 1e3:.4g},{one.tpot_s * 1e3:.4g},"
        lines.append(f"{one.key},{numbers}")
    write_whole(path, ("\n".join(lines) + "\n").encode())


def predict(rows: Sequence[Row]) -> list[Prediction]:
    """Ask the installed predictor, in `_PROCESSES` processes; answers are kept in the user's cache.

    Raises InputError if aiconfigurator is not installed.
    """
    known = {one.key: one for one in _cached()}
    missing = [row for row in rows if row.key not in known]
    # Rows of one model and system share tables that take seconds to load, so one process gets them all.
    missing.sort(key=lambda row: (row.gpu, row.backend, row.model, row.deployment))
    with progress_line("vendor's predictions", "rows") as progress:
        for done, one in enumerate(_answers(missing), start=1):
            known[one.key] = one
            if progress is not None:
                progress(done, len(missing))
    if missing:
        _keep(known.values())
    return [known[row.key] for row in rows]


def installed_version() -> str:
    """Version of the installed predictor. Raises InputError without one."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise InputError(f"{PACKAGE} is not installed: pip install {PACKAGE}=={VERSION}")
    return importlib.metadata.version(PACKAGE)


def request(row: Row) -> dict[str, Any]:
    """The arguments of the predictor's estimate of one fixed deployment."""
    arguments: dict[str, Any] = {
        "mode": row.mode,
        "model_path": _path(row),
        "system_name": _SYSTEMS.get(row.gpu, row.gpu),
        "backend_name": row.backend,
        "isl": row.isl,
        "osl": row.osl,
        **_precision(row),
    }
    if row.mode == "agg":
        return arguments | _sizes(row.parallelism, "") | {"batch_size": _batch(row.concurrency, row.decode)}
    for role, pool in (("prefill_", row.prefill), ("decode_", row.decode)):
        arguments |= _sizes(pool.parallelism, role) | {f"{role}num_workers": pool.workers}
    return arguments | {"prefill_batch_size": 1, "decode_batch_size": _batch(row.concurrency, row.decode)}


def _path(row: Row) -> str:
    if row.expert_dtype == "nvfp4" and row.model in _NVFP4_PATHS:
        return _NVFP4_PATHS[row.model]
    return _PATHS[row.model]


def _precision(row: Row) -> dict[str, str]:
    """Types by the predictor's names; none if its checkpoint's own configuration states them."""
    if row.model == "gpt_oss_120b" and row.backend == "trtllm" and row.gpu not in ("h100", "h200"):
        return {"moe_quant_mode": "w4a8_mxfp4_mxfp8"}  # what TensorRT-LLM computes on Blackwell
    if row.model in ("gpt_oss_120b", "kimi_k25") or (row.expert_dtype == "nvfp4" and row.model in _NVFP4_PATHS):
        return {}
    return {"gemm_quant_mode": _MODES[row.dtype], "moe_quant_mode": _MODES[row.expert_dtype]}


def _sizes(parallelism: Parallelism, role: str) -> dict[str, int]:
    return {
        f"{role}tp_size": parallelism.tp,
        f"{role}attention_dp_size": parallelism.dp,
        f"{role}moe_tp_size": parallelism.expert_tp,
        f"{role}moe_ep_size": parallelism.ep,
    }


def _batch(concurrency: int, pool: Pool) -> int:
    """Sequences of each attention group when all requests are with this pool."""
    return max(1, -(-concurrency // (pool.workers * pool.parallelism.dp)))


def _answers(rows: Sequence[Row]) -> Iterator[Prediction]:
    if not rows:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, mp_context=context) as pool:
        yield from pool.map(_answer, rows, chunksize=max(1, len(rows) // (20 * _PROCESSES)))


def _answer(row: Row) -> Prediction:
    logging.disable(logging.WARNING)
    estimate = importlib.import_module(f"{PACKAGE}.cli.api").cli_estimate
    arguments = request(row)
    try:
        newest = _newest(arguments["system_name"], row.backend)
        answer = estimate(**arguments, backend_version=newest)
        ttft_ms, tpot_ms = float(answer.ttft), float(answer.tpot)
    except Exception as error:  # any error means that it cannot run this row
        return Prediction(row.key, float("nan"), float("nan"), _reason(error))
    if not (ttft_ms > 0 and tpot_ms > 0):
        return Prediction(row.key, float("nan"), float("nan"), "no positive latency")
    return Prediction(row.key, ttft_ms / 1e3, tpot_ms / 1e3)


def _reason(error: Exception) -> str:
    """A few words, equal for rows with the same obstacle."""
    text = str(error)
    for sign, reason in _REASONS.items():
        if sign in text:
            return reason
    return type(error).__name__


@cache
def _newest(system: str, backend: str) -> str | None:
    """The predictor's newest tables. It would look them up for every call, which takes most of a second."""
    databases = importlib.import_module(f"{PACKAGE}.sdk.perf_database")
    return databases.get_latest_database_version(system=system, backend=backend)


def _cache_file() -> Path:
    return user_cache() / "fidelity" / f"{PACKAGE}-{installed_version()}.parquet"


def _cached() -> list[Prediction]:
    path = _cache_file()
    if not path.is_file():
        return []
    try:
        kept = parquet_of(path.read_bytes(), _MOST_KEPT).select(*_SCHEMA)
        return [Prediction(**line) for line in kept.iter_rows(named=True)]
    except (OSError, ValueError, pl.exceptions.PolarsError):  # damaged: as if there were none
        return []


def _keep(predictions: Iterable[Prediction]) -> None:
    lines = [(one.key, one.ttft_s, one.tpot_s, one.failure) for one in predictions]
    content = io.BytesIO()
    pl.DataFrame(lines, schema=_SCHEMA, orient="row").write_parquet(content)
    write_whole(_cache_file(), content.getvalue())


def main(given: Sequence[str]) -> None:
    """Make the stored predictions again and print their number. Raises InputError for any word but --help."""
    if {"-h", "--help"} & set(given):
        print(__doc__)
        return
    if given:
        raise InputError(f"{given[0]}: not understood; it takes no arguments")
    version, begun = installed_version(), time.monotonic()
    predictions = predict(read_rows().rows)
    write_predictions(predictions, version)
    print(f"{PACKAGE} {version}: {sum(not one.failure for one in predictions)} of {len(predictions)} rows predicted")
    for failure, count in Counter(one.failure for one in predictions if one.failure).most_common():
        print(f"  {count} not: {failure}")
    print(f"{time.monotonic() - begun:.0f} s, written to {STORED}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as problem:  # framework.cli.launch needs hydra, which the predictor's environment may lack
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
