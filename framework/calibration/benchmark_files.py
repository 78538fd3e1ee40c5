"""Measured requests of a real server: what a benchmark client or a log wrote down of each.

Two formats. The JSON that `vllm bench serve --save-result --save-detailed` writes (SGLang's bench_serving with
--output-details has the same keys): `input_lens`, `output_lens`, `ttfts`, `itls`, `errors`, `start_times` by request,
and `request_rate`, `burstiness`, `max_concurrency`, `duration`, `model_id`. Or a CSV with a header and one line a
request: `input_tokens`, `output_tokens`, `ttft_s`, one of `e2e_s` and `tpot_s`, if known `start_s` (or `arrival_s`),
and `error`, not empty for a request that failed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.cli.reading import parsed_json, read_file
from framework.cli.safe_text import printable
from framework.errors import InputError, shown

Floats = NDArray[np.float64]
_MOST, _MOST_TOKENS = 1e12, 1e9
_JSON_COLUMNS = ("input_lens", "output_lens", "ttfts", "itls")


@dataclass(frozen=True)
class Benchmark:
    """N requests that were served, in the order in which they were sent; those that failed are only counted.

    Arrays have shape (N,). `ttft_s` runs from sending to the first token. `tpot_s` is the mean gap after it, NaN for a
    single token and where all tokens came at once. `start_s` says when each request was sent, from 0; it is None where
    that is unknown. `concurrency` is the number of requests that the client kept in flight at most, `rate` the
    requests/s at which it meant to send, where inf stands for all at once, and `duration_s` the length of the
    benchmark; each is None where the file does not say. `burstiness` is the shape of the gamma distribution of the gaps
    between requests.
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
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.input_tokens)

    @property
    def e2e_s(self) -> Floats:
        """The seconds from sending a request to its last token, shape (N,)."""
        return self.ttft_s + np.nan_to_num(self.tpot_s) * (self.output_tokens - 1)


@dataclass(frozen=True)
class _Served:
    """One request as read; `gaps_s` runs from its first token to the last."""

    input_tokens: int
    output_tokens: int
    ttft_s: float
    gaps_s: float
    start_s: float | None


def read_benchmark(path: str | Path) -> Benchmark:
    """The requests in a file, which is JSON if it begins with a brace or a bracket, else a CSV.

    Raises InputError, naming the request or the line that cannot be.
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
    if text.lstrip().startswith(("{", "[")):
        return _from_json(path, text, sha256)
    return _from_csv(path, text, sha256)


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
        concurrency=None if concurrency is None else _count(f"{path}: max_concurrency", concurrency),
        rate=None if rate is None else _positive(f"{path}: request_rate", rate, infinite=True),
        burstiness=_positive(f"{path}: burstiness", result.get("burstiness", 1.0), infinite=True),
        duration_s=None if result.get("duration") is None else _positive(f"{path}: duration", result["duration"]),
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
    """The lists with an entry a request, all equally long; `errors` and `start_times` filled in where missing."""
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


def _from_lists(where: str, entry: Mapping[str, Any]) -> _Served:
    gaps = entry["itls"]
    if not isinstance(gaps, list):
        raise InputError(f"{where}: itls must be a list of seconds, got {shown(gaps)}")
    start = entry["start_times"]
    return _Served(
        input_tokens=_count(f"{where}: input_lens", entry["input_lens"]),
        output_tokens=_count(f"{where}: output_lens", entry["output_lens"]),
        ttft_s=_positive(f"{where}: ttfts", entry["ttfts"]),
        gaps_s=math.fsum(_number(f"{where}: itls", gap, 0.0) for gap in gaps),
        start_s=None if start is None else _number(f"{where}: start_times", start),
    )


def _from_csv(path: Path, text: str, sha256: str) -> Benchmark:
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        if twice := [name for name, count in Counter(names).items() if name and count > 1]:
            raise InputError(f"{path}: column {twice[0]} stands twice in the header")
        reader.fieldnames = names
        return _benchmark(path, sha256, *_served_rows(path, reader, names))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num + 1}: is no CSV ({error})") from None


def _served_rows(path: Path, reader: csv.DictReader[str], names: Sequence[str]) -> tuple[list[_Served], int]:
    """The requests that were served, and how many were not."""
    last = next((name for name in ("e2e_s", "tpot_s") if name in names), None)
    missing = [name for name in ("input_tokens", "output_tokens", "ttft_s") if name not in names]
    if missing or last is None:
        raise InputError(
            f"{path}: no column {', '.join([*missing, *([] if last else ['e2e_s or tpot_s'])])} in its header;"
            " a CSV needs input_tokens, output_tokens, ttft_s and e2e_s or tpot_s"
        )
    start = next((name for name in ("start_s", "arrival_s") if name in names), None)
    served, failed, before = [], 0, reader.line_num
    for row in reader:
        where = f"{path}, line {before + 1}"
        before = reader.line_num
        if None in row or None in row.values():
            raise InputError(f"{where}: has another number of cells than the header's {len(names)}")
        if (row.get("error") or "").strip():
            failed += 1
        else:
            served.append(_from_row(where, row, last, start))
    return served, failed


def _from_row(where: str, row: Mapping[str, str], last: str, start: str | None) -> _Served:
    output_tokens = _count(f"{where}: output_tokens", row["output_tokens"])
    ttft_s = _positive(f"{where}: ttft_s", row["ttft_s"])
    gaps_s = 0.0
    if last == "e2e_s":
        gaps_s = _number(f"{where}: e2e_s", row["e2e_s"], least=ttft_s) - ttft_s
    elif output_tokens > 1:
        gaps_s = _number(f"{where}: tpot_s", row["tpot_s"], 0.0) * (output_tokens - 1)
    return _Served(
        input_tokens=_count(f"{where}: input_tokens", row["input_tokens"]),
        output_tokens=output_tokens,
        ttft_s=ttft_s,
        gaps_s=gaps_s,
        start_s=None if start is None else _number(f"{where}: {start}", row[start]),
    )


def _benchmark(path: Path, sha256: str, served: Sequence[_Served], failed: int, **known: Any) -> Benchmark:
    """Columns from requests, in the order of their sending."""
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
        notes=tuple(notes),
        **known,
    )


def _number(where: str, value: Any, least: float = -math.inf, most: float = _MOST) -> float:
    """A finite number, given as such or, in a CSV, as text."""
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where} must be a finite number, got {shown(value)}")
    if number < least:
        raise InputError(f"{where} must be at least {least:g}, got {shown(value)}")
    if number > most:
        raise InputError(f"{where} must be at most {most:g}, got {shown(value)}")
    return number


def _positive(where: str, value: Any, infinite: bool = False) -> float:
    if infinite and str(value) in ("inf", "Infinity"):
        return math.inf
    number = _number(where, value)
    if number <= 0:
        raise InputError(f"{where} must be above 0, got {shown(value)}")
    return number


def _count(where: str, value: Any) -> int:
    number = _number(where, value, 1, _MOST_TOKENS)
    if number != int(number):
        raise InputError(f"{where} must be a whole number, got {shown(value)}")
    return int(number)
