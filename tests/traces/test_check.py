"""`servelab traces check FILE`: what is understood of a file, and why another one cannot be read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framework.errors import InputError
from tests.helpers.launcher import typed
from traces.load import load

traces = typed("traces")
DATED = [f"2026-03-01T12:00:{second:02d}Z" for second in range(3)]


def lines(rows: list[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize(
    "rows",
    [
        [{"timestamp": at, "input_length": 9, "output_length": 2} for at in DATED],
        [{"created_at": at, "usage": {"prompt_tokens": 9, "completion_tokens": 2}} for at in DATED],
    ],
    ids=["mooncake", "openai"],
)
def test_dates_have_no_unit(rows: list[Mapping[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(lines(rows))
    assert traces(["check", str(file)]) == 0
    assert "unit of arrivals  dates and times\nrequests          3 over 2 s" in capsys.readouterr().out
    with pytest.raises(InputError, match="the file has dates and times; leave it out"):
        load(path=file, unit="ms")


def test_a_name_that_stands_twice_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"timestamp": 0, "timestamp": 7, "input_length": 5, "output_length": 3}\n')
    assert traces(["check", str(file)]) == 0
    assert "line 1: timestamp stands twice in one object; the first value counts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("beginning", "said"),
    [
        (b"PK\x03\x04timestamp,prompt,output\n", "is a zip archive or a spreadsheet"),
        (b"BZh91AY", "is packed by bzip2"),
        (b"\xfd7zXZ\x00time,prompt,output\n", "is packed by xz"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n", "fetch it by git lfs pull"),
        (b"<!DOCTYPE html>\n<title>404</title>\n", "is a page of HTML or XML"),
    ],
)
def test_a_file_that_is_no_table_is_named(beginning: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(beginning)
    with pytest.raises(InputError, match=said):
        load(path=tmp_path / "log.csv")


@pytest.mark.parametrize(
    ("arrival", "said"),
    [
        ("about.at", "about.at is missing or not a number: an object, whose parts are named as OBJECT.PART"),
        ("about.at.end", "no column about.at.end; it has about.at.start, tokens.in, tokens.out"),
    ],
)
def test_parts_of_objects_are_named(arrival: str, said: str, tmp_path: Path) -> None:
    rows = [{"about": {"at": {"start": float(k)}}, "tokens": {"in": 9, "out": 2}} for k in range(2)]
    pl.DataFrame(rows).write_parquet(tmp_path / "log.parquet")
    columns = {"arrival_s": arrival, "input_tokens": "tokens.in", "output_tokens": "tokens.out"}
    with pytest.raises(InputError, match=said):
        load(path=tmp_path / "log.parquet", columns=columns)
