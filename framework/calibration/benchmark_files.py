"""Measured requests of a real server, as a benchmark client or a log recorded them.

There are three formats. One is the JSON of `vllm bench serve --save-result --save-detailed` (SGLang's bench_serving
with --output-details has the same keys): `input_lens`, `output_lens`, `ttfts`, `itls`, `errors`, `start_times` by
request, and `request_rate`, `burstiness`, `max_concurrency`, `duration`, `model_id`. The others are a CSV with a
header, and JSONL, with one line a request: `input_tokens`, `output_tokens`, `ttft_s`, one of `e2e_s` and `tpot_s`; if
known, `start_s` (or `arrival_s`), `error` (not empty for a failed request) and `hash_ids`: a number for each full block
of the prompt, equal if the prompts are equal up to and including that block.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.calibration.benchmark_rows import is_jsonl, requests_of
from framework.calibration.benchmark_values import ServedRequest, count, number, positive, positive_or_infinite
from framework.cli.reading import parsed_json, read_file
from framework.cli.safe_text import printable
from framework.errors import InputError, shown

Floats = NDArray[np.float64]
_JSON_COLUMNS = ("input_lens", "output_lens", "ttfts", "itls")


@dataclass(frozen=True)
class Benchmark:
    """N requests that were served, in the order of their sending; failed ones are only counted.

    Arrays have shape (N,). What the file does not state is None.

    `ttft_s`: from sending to the first token.
    `tpot_s`: the mean gap after it, NaN for a single token and if all tokens came at once.
    `start_s`: when each request was sent, from 0.
    `concurrency`: the most requests that the client kept in flight.
    `rate`: the requests/s at which the client meant to send; inf: all at once.
    `duration_s`: the length of the benchmark.
    `burstiness`: the shape of the gamma distribution of the gaps between requests.
    `hash_ids`: the names of each prompt's blocks of `hash_block_tokens` tokens.
    """

    name: str
    sha256: str
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    ttft_s: Floats
    tpot_s: Floats
    start_s: Floats | None = None
    concurrency: int | None = None
    rate: float | None = None
    burstiness: float = 1.0
    duration_s: float | None = None
    model: str = ""
    failed: int = 0
    hash_ids: tuple[tuple[int, ...], ...] | None = None
    hash_block_tokens: int = 16
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.input_tokens)

    @property
    def e2e_s(self) -> Floats:
        """The seconds from sending a request to its last token, shape (N,)."""
        return self.ttft_s + np.nan_to_num(self.tpot_s) * (self.output_tokens - 1)


def read_benchmark(path: str | Path) -> Benchmark:
    """The requests in a file: JSONL, JSON if it begins with a brace or a bracket, else a CSV.

    Raises InputError, naming the wrong request or line.
    """
    path = Path(path).expanduser()
    data = read_file(path, "benchmark")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file; give the JSON of vllm bench serve or a CSV") from None
    if not text.strip():
        raise InputError(f"{path}: the file is empty")
    sha256 = hashlib.sha256(data).hexdigest()
    if text.lstrip().startswith(("{", "[")) and not is_jsonl(text):
        return _from_json(path, text, sha256)
    return _benchmark(path, sha256, *requests_of(path, text))


def _from_json(path: Path, text: str, sha256: str) -> Benchmark:
    result = _parsed(path, text)
    columns = _columns(path, result)
    served = []
    for i in range(len(columns["input_lens"])):
        if columns["errors"][i] or columns["output_lens"][i] == 0:
            continue
        served.append(_from_lists(f"{path}, request {i + 1}", {name: column[i] for name, column in columns.items()}))
    rate = result.get("request_rate")
    concurrency = result.get("max_concurrency")
    return _benchmark(
        path,
        sha256,
        served,
        failed=len(columns["input_lens"]) - len(served),
        concurrency=None if concurrency is None else count(f"{path}: max_concurrency", concurrency),
        rate=None if rate is None else positive_or_infinite(f"{path}: request_rate", rate),
        burstiness=positive_or_infinite(f"{path}: burstiness", result.get("burstiness", 1.0)),
        duration_s=None if result.get("duration") is None else positive(f"{path}: duration", result["duration"]),
        model=str(result.get("model_id") or ""),
    )


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        result = parsed_json(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            raise InputError(f"{path}: holds several results (--append-result); keep one a file") from None
        raise InputError(f"{path}, line {error.lineno}: is not JSON ({error.msg})") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON that can be used ({error})") from None
    if not isinstance(result, dict):
        raise InputError(f"{path}: must hold one JSON object, as vllm bench serve --save-result writes it")
    return result


def _columns(path: Path, result: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The lists with an entry for each request, all of one length; missing `errors` and `start_times` are filled in."""
    missing = [name for name in _JSON_COLUMNS if not isinstance(result.get(name), list)]
    if missing:
        raise InputError(
            f"{path}: no list {', '.join(missing)}; run vllm bench serve with --save-result --save-detailed"
        )
    count = len(result["input_lens"])
    columns: dict[str, list[Any]] = {name: result[name] for name in _JSON_COLUMNS}
    for name in ("errors", "start_times"):
        values = result.get(name)
        columns[name] = values if isinstance(values, list) and values else [None] * count
    for name, column in columns.items():
        if len(column) != count:
            raise InputError(f"{path}: {name} has {len(column)} entries, input_lens has {count}")
    return columns


def _from_lists(where: str, entry: Mapping[str, Any]) -> ServedRequest:
    gaps = entry["itls"]
    if not isinstance(gaps, list):
        raise InputError(f"{where}: itls must be a list of seconds, got {shown(gaps)}")
    start = entry["start_times"]
    return ServedRequest(
        input_tokens=count(f"{where}: input_lens", entry["input_lens"]),
        output_tokens=count(f"{where}: output_lens", entry["output_lens"]),
        ttft_s=positive(f"{where}: ttfts", entry["ttfts"]),
        gaps_s=math.fsum(number(f"{where}: itls", gap, 0.0) for gap in gaps),
        start_s=None if start is None else number(f"{where}: start_times", start),
    )


def _benchmark(path: Path, sha256: str, served: Sequence[ServedRequest], failed: int, **known: Any) -> Benchmark:
    """The columns of requests, in the order of their sending."""
    if not served:
        raise InputError(f"{path}: none of its {failed} requests was served; there is nothing to compare with")
    notes = [f"{failed} of {failed + len(served)} requests failed; they are left out"] if failed else []
    starts = [request.start_s for request in served if request.start_s is not None]
    order = np.argsort(starts, kind="stable") if len(starts) == len(served) else np.arange(len(served))
    output_tokens = np.asarray([request.output_tokens for request in served], np.int64)[order]
    gaps_s = np.asarray([request.gaps_s for request in served])[order]
    at_once = int(np.sum((output_tokens > 1) & (gaps_s == 0)))
    if at_once:
        notes.append(f"{at_once} requests got all their tokens at once; their TPOT is left out")
    tpot_s = np.full(len(served), np.nan)
    np.divide(gaps_s, output_tokens - 1, out=tpot_s, where=(output_tokens > 1) & (gaps_s > 0))
    return Benchmark(
        name=printable(path.name),
        sha256=sha256,
        input_tokens=np.asarray([request.input_tokens for request in served], np.int64)[order],
        output_tokens=output_tokens,
        ttft_s=np.asarray([request.ttft_s for request in served])[order],
        tpot_s=tpot_s,
        start_s=np.sort(starts) - min(starts) if len(starts) == len(served) else None,
        failed=failed,
        hash_ids=_hash_ids(path, [served[r].hash_ids for r in order]),
        notes=tuple(notes),
        **known,
    )


def _hash_ids(path: Path, named: Sequence[tuple[int, ...] | None]) -> tuple[tuple[int, ...], ...] | None:
    known = tuple(ids for ids in named if ids is not None)
    if known and len(known) < len(named):
        raise InputError(f"{path}: only {len(known)} of {len(named)} requests have hash_ids")
    return known or None
