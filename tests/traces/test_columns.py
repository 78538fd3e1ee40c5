"""Tables of the user's own as traces: which column is what, what is kept, what is left out, what is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.cli.terminal import warn_once
from framework.errors import InputError
from traces import formats
from traces.formats import read
from traces.formats.columns import read_columns
from traces.load import load

NAMES = {"arrival_s": "time", "input_tokens": "prompt", "output_tokens": "answer"}
ROWS: list[dict[str, Any]] = [
    {"time": 12.5, "prompt": 100, "answer": 3, "priority": 1, "user": "a"},
    {"time": 10.0, "prompt": 20, "answer": 1, "priority": 0, "user": "b"},
]


def written(tmp_path: Path, name: str, text: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def table(tmp_path: Path, kind: str) -> Path:
    path = tmp_path / f"log.{kind}"
    frame = pl.DataFrame(ROWS)
    if kind == "csv":
        frame.write_csv(path)
    elif kind == "parquet":
        frame.write_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_columns_are_those_that_were_named(kind: str, tmp_path: Path) -> None:
    trace = read_columns(table(tmp_path, kind), NAMES)
    assert trace.frame.rows() == [(0.0, 20, 1), (2.5, 100, 3)]
    assert trace.notes[-1] == (
        "columns left out: priority, user (trace.columns reads priority where it is named, larger first;"
        " priority_low_first: smaller first, as vLLM)"
    )
    asked = read_columns(table(tmp_path, kind), NAMES | {"priority": "priority"})
    assert asked.frame["priority"].to_list() == [0, 1]
    assert read_columns(table(tmp_path, kind), NAMES | {"tenant": "user"}).frame["tenant"].to_list() == ["b", "a"]
    low_first = read_columns(table(tmp_path, kind), NAMES | {"priority_low_first": "priority"})
    assert low_first.frame["priority"].to_list() == [0, -1]
    assert len(trace.sha256) == 64
    workload = load(path=str(table(tmp_path, kind)), columns=NAMES, rate=1.0)
    assert workload.source == "real"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("azure", "TIMESTAMP,ContextTokens,Region,GeneratedTokens\n2023-11-16 18:17:03.97,4808,eu,10\n"),
        ("burstgpt", "Timestamp,Region,Request tokens,Response tokens\n5,eu,472,18\n"),
        ("vidur", "arrived_at,num_prefill_tokens,num_decode_tokens,Region\n0.5,3,4,eu\n"),
        ("mooncake", '{"timestamp": 5, "input_length": 3, "output_length": 4, "Region": [{"deep": 1}]}\n'),
        ("bailian", '{"timestamp": 5, "input_length": 3, "Region": 1, "output_length": 4}\n'),
    ],
)
def test_formats_say_which_columns_they_leave_out(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    warn_once.cache_clear()
    found = read(path, name)
    assert found.notes[-1] == "columns left out: Region"
    assert f"note: trace {found.name}: columns left out: Region\n" in capsys.readouterr().err


def test_the_own_format_says_which_columns_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    rows = {"arrival_s": [0.0], "input_tokens": [3], "output_tokens": [4]}
    pl.DataFrame({**rows, "Region": ["eu"]}).write_parquet(path)
    assert read(path, "parquet").notes[-1] == "columns left out: Region"
    pl.DataFrame(rows).write_parquet(path)
    assert read(path, "parquet").notes == ()


def test_objects_are_reached_into(tmp_path: Path) -> None:
    row = {"at": 3, "usage": {"in": 7, "out": 2}}
    names = {"arrival_s": "at", "input_tokens": "usage.in", "output_tokens": "usage.out"}
    assert read_columns(written(tmp_path, "a.jsonl", json.dumps(row)), names).frame.rows() == [(0.0, 7, 2)]


@pytest.mark.parametrize(
    ("key", "times"),
    [
        ("arrival_ms", ("1500", "4000")),
        ("arrival_ns", ("1700000000000000000", "1700000002500000000")),
        ("arrival_s", ("2026-01-31 23:59:59.5", "2026-02-01 00:00:02.0")),
        ("arrival_s", ("2026-01-31T23:59:59.500Z", "2026-02-01T00:00:02Z")),
        ("arrival_s", ("2026-01-31T23:59:59.500+01:00", "2026-02-01T00:00:02+01:00")),
    ],
)
def test_arrivals_have_the_unit_that_is_named(key: str, times: tuple[str, str], tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", f"t,p,a\n{times[0]},10,2\n{times[1]},20,3\n")
    trace = read_columns(path, {key: "t", "input_tokens": "p", "output_tokens": "a"})
    assert trace.arrival_s.tolist() == [0.0, 2.5]


def test_arrivals_that_no_column_has_are_drawn(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "p,a\n" + "10,2\n20,3\n" * 50)
    names = {"input_tokens": "p", "output_tokens": "a"}
    one, other = (load(path=path, columns=names, rate=4, seed=seed) for seed in (0, 1))
    assert one.input_tokens.tolist() == [10, 20] * 50
    assert 99 / one.arrival_s[-1] == pytest.approx(4, rel=0.02)
    assert np.ptp(np.diff(one.arrival_s)) > 0.1
    assert (one.arrival_s != other.arrival_s).any()


@pytest.mark.parametrize(
    ("text", "names", "words"),
    [
        ("time,prompt,answer\n1,2,3\n", {"arrival_s": "time", "input_tokens": "prompt"}, "needs output_tokens"),
        (
            "time,prompt,answer\n1,2,3\n",
            NAMES | {"arrival_ms": "time"},
            "name one of arrival_s, arrival_ms, not both",
        ),
        (
            "user,prompt,answer\n1,2,3\n",
            {"session_id": "user", "input_tokens": "prompt", "output_tokens": "answer"},
            "sessions need arrivals; name one of arrival_s",
        ),
        ("time,prompt,answer\n1,2,3\n", NAMES | {"colour": "x"}, "'colour' is not known"),
        ("time,prompt,answer\n1,2,3\n", NAMES | {"input_tokens": "promt"}, "no column promt; it has time, prompt"),
        ("time,prompt,answer\n1,2,3\n2,-1,3\n", NAMES, "line 3: input_tokens is -1, must be at least 1 .1 of 2 rec"),
        ("time,prompt,answer\n1,2,3\nx,2,3\n", NAMES, "line 3: time is missing or not a number"),
        ("time,prompt,answer\n", NAMES, "no rows"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(text: str, names: Mapping[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_columns(written(tmp_path, "a.csv", text), names)
    assert "\n" not in str(caught.value)


def test_a_file_in_no_format_is_told_how_it_could_be_read(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "start_time,prompt_len,Completion Tokens\n1,2,3\n")
    with pytest.raises(InputError) as caught:
        formats.read(path)
    said = "trace.columns='{arrival_s: start_time, input_tokens: prompt_len, output_tokens: Completion Tokens}'"
    assert said in str(caught.value)


def test_a_file_of_another_format_is_told_which(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n")
    with pytest.raises(InputError, match=r"the file looks like trace\.format=vidur"):
        formats.read(path, "azure")


def test_columns_and_a_format_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="exclude each other"):
        load(path=str(table(tmp_path, "csv")), columns=NAMES, format="azure")
    with pytest.raises(InputError, match=r"need trace\.path=FILE"):
        load(name="azure_conv", columns=NAMES)


def test_lines_are_counted_as_they_stand(tmp_path: Path) -> None:
    text = 'time,prompt,answer,"a\nb"\n1,2,3,x\n\n2,3,4,"y\n\nz"\n3,-1,4,x\n'
    with pytest.raises(InputError, match="line 8: input_tokens is -1"):
        read_columns(written(tmp_path, "a.csv", text), NAMES)
    rows = '{"time": 1, "prompt": 2, "answer": 3}\n\n{"time": 1, "prompt": 2, "answer": -1}\n'
    with pytest.raises(InputError, match="line 3: output_tokens is -1"):
        read_columns(written(tmp_path, "a.jsonl", rows), NAMES)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("session_id", "1e30", None),
        ("turn", "1.5", "turn is not a whole number"),
        ("turn", "inf", "turn is not a whole number"),
        ("think_s", "nan", "think_s is not a finite number"),
        ("priority", "high", "priority is not a whole number"),
        ("turn", "  ", None),
    ],
)
def test_what_is_lost_in_a_column_is_reported(name: str, value: str, words: str | None, tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", f"time,prompt,answer,s,t,{name}\n1,2,3,1,0,0\n2,3,4,2,0,{value}\n")
    names = NAMES | {"session_id": "s", "think_s": "t"} | {name: name}
    if words is None:
        assert len(read_columns(path, names)) == 2
    else:
        with pytest.raises(InputError, match=f"line 3: {words}"):
            read_columns(path, names)


def test_sessions_may_have_names(tmp_path: Path) -> None:
    text = "time,prompt,answer,user,think\n1,2,3,b-7,\n2,3,4,a-1,\n3,3,4,b-7,500\n4,3,4,,\n"
    names = NAMES | {"session_id": "user", "think_ms": "think"}
    trace = read_columns(written(tmp_path, "a.csv", text), names)
    assert trace.frame["think_s"].to_list() == [None, None, 0.5, None]
    first, second, third, fourth = trace.frame["session_id"].to_list()
    assert first == third != second
    assert fourth is None


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_times_too_far_apart_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    frame = pl.DataFrame({"time": ["1971-01-01", "2199-12-31"], "prompt": [1, 2], "answer": [3, 4]})
    if kind == "parquet":
        frame.with_columns(pl.col("time").str.to_date()).write_parquet(path)
    else:
        dated = frame.with_columns(pl.col("time") + " 00:00:00.0")
        dated.write_csv(path) if kind == "csv" else dated.write_ndjson(path)
    with pytest.raises(InputError, match=r"is 1971.*more than 5e.* s from the median of all .2 of 2"):
        read_columns(path, NAMES)
    whole = pl.DataFrame({"time": [-(2**63), 2**63 - 1], "prompt": [1, 2], "answer": [3, 4]})
    whole.write_parquet(path)
    with pytest.raises(InputError, match="row 1: arrival_ns is -9"):
        read_columns(path, {"arrival_ns": "time", "input_tokens": "prompt", "output_tokens": "answer"})


def test_names_of_columns_may_hold_anything(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "a,{0},{prompt:x}\n3,x,2\n")
    with pytest.raises(InputError, match=r"line 2: \{0\} is missing or not a number"):
        read_columns(path, {"arrival_s": "{0}", "input_tokens": "{prompt:x}", "output_tokens": "a"})


def test_a_column_that_stands_twice_is_refused_or_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="prompt stands twice"):
        read_columns(written(tmp_path, "a.csv", "time,prompt,answer,prompt\n1,2,3,4\n"), NAMES)
    row = '{"time": 1, "prompt": 2, "answer": 3, "prompt": 5}\n'
    read_columns(written(tmp_path, "twice.jsonl", row), NAMES)
    assert "prompt stands twice" in capsys.readouterr().err


def test_a_damaged_parquet_is_refused(tmp_path: Path) -> None:
    damaged = bytearray(table(tmp_path, "parquet").read_bytes())
    path = tmp_path / "damaged.parquet"
    for at in range(4, len(damaged) - 8, 97):
        damaged[at] ^= 0xFF
        path.write_bytes(damaged)
        with suppress(InputError):
            read_columns(path, NAMES)
        damaged[at] ^= 0xFF


def test_a_damaged_parquet_file_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"time": [0.0, 1.0], "prompt": [1, 2], "answer": [3, 4]}).write_parquet(path)
    whole = path.read_bytes()
    for place in range(4, len(whole), 4):  # some of them make a thread of polars panic
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with contextlib.suppress(InputError):
            read_columns(path, NAMES)
    assert "panicked" not in capfd.readouterr().err
