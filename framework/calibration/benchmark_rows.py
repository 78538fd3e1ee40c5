"""Benchmarks with a line for each request: a CSV with a header, or JSONL with the same names."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from framework.calibration.benchmark_values import ServedRequest, count, number, positive
from framework.cli.reading import parsed_json
from framework.errors import InputError, shown

_NEEDED = ("input_tokens", "output_tokens", "ttft_s")
_LAST = ("e2e_s", "tpot_s")
_START = ("start_s", "arrival_s")
_Line = tuple[str, Mapping[str, Any]]  # place of the row, and its values by name


def is_jsonl(text: str) -> bool:
    """Whether the first line of a file is a whole object with the values of one request."""
    try:
        first = parsed_json(text.lstrip().partition("\n")[0])
    except ValueError:
        return False
    return isinstance(first, dict) and "input_tokens" in first


def requests_of(path: Path, text: str) -> tuple[list[ServedRequest], int]:
    """The requests that were served, in the order of the file, and the number of failed ones.

    Raises InputError, naming the wrong line.
    """
    served, failed = [], 0
    for where, row in _jsonl_lines(path, text) if is_jsonl(text) else _csv_lines(path, text):
        if str(row.get("error") or "").strip():
            failed += 1
        else:
            served.append(_request(where, row))
    return served, failed


def _csv_lines(path: Path, text: str) -> Iterator[_Line]:
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True)
    try:
        yield from _cells(path, reader)
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num + 1}: is no CSV ({error})") from None


def _cells(path: Path, reader: csv.DictReader[str]) -> Iterator[_Line]:
    names = [name.strip() for name in reader.fieldnames or ()]
    if twice := [name for name, times in Counter(names).items() if name and times > 1]:
        raise InputError(f"{path}: column {twice[0]} stands twice in the header")
    reader.fieldnames = names
    if lacking := _lacking(names):
        raise InputError(
            f"{path}: no column {', '.join(lacking)} in its header;"
            " a CSV needs input_tokens, output_tokens, ttft_s and e2e_s or tpot_s"
        )
    before = reader.line_num
    for row in reader:
        where = f"{path}, line {before + 1}"
        before = reader.line_num
        if None in row or None in row.values():
            raise InputError(f"{where}: has another number of cells than the header's {len(names)}")
        yield where, row


def _jsonl_lines(path: Path, text: str) -> Iterator[_Line]:
    for at, line in enumerate(text.splitlines(), 1):
        where = f"{path}, line {at}"
        if not line.strip():
            continue
        try:
            row = parsed_json(line)
        except ValueError as error:
            raise InputError(f"{where}: is not JSON ({getattr(error, 'msg', error)})") from None
        if not isinstance(row, dict):
            raise InputError(f"{where}: must hold one JSON object")
        if not row.get("error") and (lacking := _lacking(list(row))):
            raise InputError(f"{where}: no {', '.join(lacking)}")
        yield where, row


def _lacking(names: list[str]) -> list[str]:
    lacking = [name for name in _NEEDED if name not in names]
    return [*lacking, *(() if any(name in names for name in _LAST) else ("e2e_s or tpot_s",))]


def _request(where: str, row: Mapping[str, Any]) -> ServedRequest:
    output_tokens = count(f"{where}: output_tokens", row["output_tokens"])
    ttft_s = positive(f"{where}: ttft_s", row["ttft_s"])
    gaps_s = 0.0
    if "e2e_s" in row:
        gaps_s = number(f"{where}: e2e_s", row["e2e_s"], least=ttft_s) - ttft_s
    elif output_tokens > 1:
        gaps_s = number(f"{where}: tpot_s", row["tpot_s"], 0.0) * (output_tokens - 1)
    start = next((name for name in _START if name in row), None)
    return ServedRequest(
        input_tokens=count(f"{where}: input_tokens", row["input_tokens"]),
        output_tokens=output_tokens,
        ttft_s=ttft_s,
        gaps_s=gaps_s,
        start_s=None if start is None else number(f"{where}: {start}", row[start]),
        hash_ids=_hash_ids(f"{where}: hash_ids", row["hash_ids"]) if "hash_ids" in row else None,
    )


def _hash_ids(where: str, value: Any) -> tuple[int, ...]:
    """Names of blocks: a list of whole numbers, or a text with blanks between them."""
    names = value.split() if isinstance(value, str) else value
    if not isinstance(names, list):
        raise InputError(f"{where} must be whole numbers, one for each block, got {shown(value)}")
    found = [number(where, name, 0, math.inf) for name in names]
    if any(name != int(name) for name in found):
        raise InputError(f"{where} must be whole numbers, got {shown(value)}")
    return tuple(map(int, found))
