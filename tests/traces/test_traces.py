"""Reading traces: every format, every kind of bad row, where files are looked for, and what a workload is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.cli.terminal import warn_once
from framework.errors import InputError
from tests.helpers.launcher import typed
from traces import catalogue, formats
from traces.block_ids import list_column
from traces.frame import Trace, to_workload
from traces.load import load

MOONCAKE = (
    '{"timestamp": 0, "input_length": 1025, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [0]}\n'
    '{"timestamp": 2500, "input_length": 600, "output_length": 7, "hash_ids": [0, 3]}\n'
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 23:59:59.5000000,374,44\r\n"
    "2023-11-17 00:00:00.0000001,396,109\r\n"
)
REAL = os.environ.get("TRACES_DIR")
needs_real = pytest.mark.skipif(REAL is None, reason="TRACES_DIR is not set: no real traces at hand")


def written(folder: Path, text: str | bytes, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def listed(array: np.ndarray | None) -> list[Any]:
    assert array is not None
    return array.tolist()


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(**changes) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1], **changes}


@pytest.fixture
def nowhere(tmp_path, monkeypatch) -> Iterator[Path]:
    """No trace on this machine, no download: an empty $TRACES_DIR and user cache."""
    monkeypatch.setenv("TRACES_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TRACES_OFFLINE", "1")
    (tmp_path / "data").mkdir()
    catalogue.download_once.cache_clear()
    yield tmp_path
    catalogue.download_once.cache_clear()


# ---- formats


def test_mooncake(tmp_path):
    path = written(tmp_path, MOONCAKE)
    trace = formats.read(path, "mooncake")
    assert trace.frame.rows() == [(0.0, 1025, 5, [0, 1, 2]), (0.0, 512, 1, [0]), (2.5, 600, 7, [0, 3])]
    assert (trace.source, trace.hash_block_tokens, trace.notes) == ("real", 512, ())
    assert trace.sha256 == hashlib.sha256(MOONCAKE.encode()).hexdigest()


def test_mooncake_block_size_is_a_parameter(tmp_path):
    path = written(tmp_path, jsonl(row(input_length=33, hash_ids=[4, 5, 6])))
    assert formats.read(path, "mooncake", formats.How(16)).hash_block_tokens == 16
    with pytest.raises(InputError, match=r"line 1: hash_ids do not fit the length: 33 tokens in blocks of 512"):
        formats.read(path, "mooncake")


def test_mooncake_without_hashes_or_final_newline(tmp_path):
    path = written(tmp_path, '\ufeff{"timestamp": 7, "input_length": 5, "output_length": 2}')
    trace = formats.read(path)
    assert trace.frame.rows() == [(0.0, 5, 2)]
    assert not to_workload(trace).has_prefixes


def test_azure(tmp_path):
    trace = formats.read(written(tmp_path, AZURE, "a.csv"), "azure")
    assert trace.frame.rows() == [(0.0, 374, 44), (0.5000001, 396, 109)]


@pytest.mark.parametrize("stamp", ["2024-05-10 00:00:01+00:00", "2024-05-10T00:00:01Z", "2024-05-10 00:00:01.000"])
def test_azure_writes_time_in_several_ways(tmp_path, stamp):
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.25+00:00,3,4\n{stamp},5,6"
    assert formats.read(written(tmp_path, text)).frame["arrival_s"].to_list() == [0.0, 0.75]


def test_burstgpt(tmp_path):
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,,,ChatGPT,472,18,490,Conversation log\n45.5,,,GPT-4,1087,230,1317,API log\n"
    )
    trace = formats.read(written(tmp_path, text))
    assert trace.frame.rows() == [(0.0, 472, 18), (40.5, 1087, 230)]


def test_vidur(tmp_path):
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.3,396,109\n"
    assert formats.read(written(tmp_path, text)).frame.rows() == [(0.0, 374, 44), (4.3, 396, 109)]


def test_bailian_ids_are_chained(tmp_path):
    base = {"chat_id": 1, "parent_chat_id": -1, "output_length": 2, "type": "text", "turn": 1}
    text = jsonl(
        {**base, "timestamp": 1.0, "input_length": 40, "hash_ids": [7, 8, 9]},
        {**base, "timestamp": 1.5, "input_length": 33, "hash_ids": [7, 8]},  # no id for the partial block
        {**base, "timestamp": 2.5, "input_length": 32, "hash_ids": [6, 8]},  # block 8 behind another prefix
        {**base, "timestamp": 2.5, "input_length": 3, "hash_ids": []},
    )
    trace = formats.read(written(tmp_path, text))
    first, second, third, fourth = trace.frame["hash_ids"].to_list()
    assert trace.hash_block_tokens == 16
    assert trace.frame["arrival_s"].to_list() == [0.0, 0.5, 1.5, 1.5]
    assert first[:2] == second
    assert not set(first) & set(third)
    assert fourth == []


def test_parquet_keeps_all(tmp_path):
    frame = pl.DataFrame(
        {
            "arrival_s": [0.0, 0.5, 0.5],
            "input_tokens": [17, 20, 3],
            "output_tokens": [1, 2, 3],
            "hash_ids": [[1, 2], [1, 3], [9]],
            "session_id": [4, 4, None],
            "turn": [0, 1, None],
            "think_s": [None, 2.5, None],
            "slo_class": ["chat", "chat", None],
            "priority": [1, 1, 0],
        }
    )
    trace = Trace(frame, "mine", "twin", hash_block_tokens=16, notes=("a note",))
    path = tmp_path / "deep" / "t.parquet"
    formats.write_parquet(trace, path)
    back = formats.read(path)
    assert back.frame.equals(frame)
    assert (back.name, back.source, back.hash_block_tokens, back.notes) == ("mine", "twin", 16, ("a note",))
    assert os.listdir(path.parent) == ["t.parquet"]


def test_parquet_by_others(tmp_path):
    """Lengths as floats or small integers, extra columns, no metadata."""
    path = tmp_path / "t.parquet"
    columns = {"arrival_s": [3, 4], "input_tokens": [5.0, 6.0], "output_tokens": [7, 8], "user": ["a", "b"]}
    pl.DataFrame(columns).write_parquet(path)
    trace = formats.read(path)
    assert trace.frame.rows() == [(0.0, 5, 7), (1.0, 6, 8)]
    assert (trace.name, trace.source) == ("t", "real")


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"arrival_s": [0.0]}, "no column input_tokens, output_tokens"),
        ({"arrival_s": [0.0, 1.0], "input_tokens": [1, -1], "output_tokens": [1, 1]}, "row 2: input_tokens is -1"),
        ({"arrival_s": [0.0], "input_tokens": [None], "output_tokens": [1]}, "row 1: input_tokens is missing"),
        ({"arrival_s": [0.0], "input_tokens": ["x"], "output_tokens": [1]}, "row 1: input_tokens is"),
        ({"arrival_s": [], "input_tokens": [], "output_tokens": []}, "has no rows"),
        (
            {"arrival_s": [0.0], "input_tokens": [1], "output_tokens": [1], "hash_ids": [[1]]},
            "hash_ids without the tokens in a block; set trace.block_tokens",
        ),
    ],
)
def test_bad_parquet(tmp_path, columns, reason):
    path = tmp_path / "t.parquet"
    pl.DataFrame(columns).write_parquet(path)
    with pytest.raises(InputError, match=reason) as raised:
        formats.read(path)
    assert "\n" not in str(raised.value)


def test_unwritable_parquet(tmp_path):
    trace = formats.read(written(tmp_path, MOONCAKE))
    with pytest.raises(InputError, match="cannot be written"):
        formats.write_parquet(trace, tmp_path / "trace.jsonl" / "t.parquet")


@pytest.mark.parametrize("name", formats.FORMATS)
def test_missing_and_empty_files(tmp_path, name):
    with pytest.raises(InputError, match="no such trace file"):
        formats.read(tmp_path / "none", name)
    if name != "servegen":
        with pytest.raises(InputError, match="the trace file is empty"):
            formats.read(written(tmp_path, " \n\n"), name)
        with pytest.raises(InputError, match="a folder is no trace in format"):
            formats.read(tmp_path, name)


def test_folders_hold_servegen_clients(tmp_path):
    with pytest.raises(InputError, match="no ServeGen client here"):
        formats.read(tmp_path)
    with pytest.raises(InputError, match="no folder is no trace in format servegen"):
        formats.read(written(tmp_path, MOONCAKE), "servegen")


@pytest.mark.parametrize(
    ("name", "text"),
    [("mooncake", MOONCAKE), ("azure", AZURE)],
)
def test_format_is_seen_by_content(tmp_path, name, text):
    assert formats.sniff(written(tmp_path, text, "file.dat")) == name


def test_unknown_formats(tmp_path):
    with pytest.raises(InputError, match=r"in no known format; set trace.format to one of mooncake, azure"):
        formats.read(written(tmp_path, "a,b\n1,2\n"))
    with pytest.raises(InputError, match=r"trace.format: 'mooncak' is not known; the formats are mooncake"):
        formats.read(written(tmp_path, MOONCAKE), "mooncak")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row(input_length=-1), "input_length is -1, must be at least 1"),
        (row(output_length=-3), "output_length is -3, must be at least 1"),
        (row(input_length=600.5), "input_length is 600.5, must be a whole number"),
        (row(input_length="6e"), 'input_length is "6e", must be a finite number'),
        (row(input_length=True), "input_length is true, must be a finite number"),
        (row(input_length=1e12), "input_length is 1e+12, more than any request can have"),
        (row(timestamp=-1), "timestamp is -1, must be at least 0"),
        (row(timestamp=None), "timestamp is missing"),
        (row(hash_ids=[1]), "hash_ids do not fit the length: 600 tokens"),
        (row(hash_ids=[1, 2, 3]), "hash_ids do not fit the length"),
        (row(hash_ids=[]), "hash_ids do not fit the length"),
        (row(hash_ids=None), "hash_ids is missing, though other rows have it"),
        (row(hash_ids=[1, None]), "hash_ids holds a null"),
        (row(hash_ids=["a", 1.5]), "must be a list of whole numbers or names"),
        (row(hash_ids=[1, True]), "must be a list of whole numbers or names"),
        (row(hash_ids=5), "hash_ids is 5, must be a list of whole numbers"),
        ({"timestamp": 1}, "input_length is missing"),
    ],
)
def test_bad_mooncake_rows(tmp_path, bad, reason):
    """The line is that of the file, blank lines counted; a worse row further down does not matter."""
    text = jsonl(row()) + "\n  \n" + jsonl(bad, row(input_length=-9))
    with pytest.raises(InputError) as raised:
        formats.read(written(tmp_path, text), "mooncake")
    message = str(raised.value)
    assert "trace.jsonl, line 4: " in message
    assert reason in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"timestamp": 0, "input_length": NaN, "output_length": 1}', "input_length is NaN, must be a finite number"),
        ("not json", "not JSON"),
        ('{"timestamp": 0', "not JSON"),
        ("[1, 2]", "not a JSON object"),
        (b'{"timestamp": 0, "type": "\xff\xfe"}', "not JSON"),
    ],
)
def test_lines_that_are_no_rows(tmp_path, line, reason):
    line = line if isinstance(line, bytes) else line.encode()
    with pytest.raises(InputError, match=f"line 2: {reason}"):
        formats.read(written(tmp_path, jsonl(row()).encode() + line + b"\n"), "mooncake")


def test_wrong_keys(tmp_path):
    with pytest.raises(InputError, match="no column input_length, output_length; rows need timestamp, input_length"):
        formats.read(written(tmp_path, jsonl({"timestamp": 1, "tokens": 3})), "mooncake")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2023-11-16 18:15:46.68,-2,44", "ContextTokens is -2, must be at least 1"),
        ("2023-11-16 18:15:46.68,5,-1", "GeneratedTokens is -1, must be at least 1"),
        ("2023-11-16 18:15:46.68,nan,44", "ContextTokens is nan, must be finite"),
        ("2023-11-16 18:15:46.68,many,44", "ContextTokens is missing or not a number"),
        ("2023-11-16 18:15:46.68,5", "GeneratedTokens is missing or not a number"),
        ("2023-11-16 18:15:46.68,5.5,4", "ContextTokens is 5.5, must be a whole number"),
        ("yesterday,5,4", "TIMESTAMP is yesterday, must be a date and time as 2026"),
        (",5,4", "TIMESTAMP is None, must be"),
        (",,", "TIMESTAMP is None, must be"),
        ("2023-11-16 18:15:46.68,5,4,3", "4 fields, the header has 3"),
    ],
)
def test_bad_azure_rows(tmp_path, line, reason):
    with pytest.raises(InputError) as raised:
        formats.read(written(tmp_path, AZURE + "\r\n" + line + "\r\n", "a.csv"), "azure")
    assert f"a.csv, line 5: {reason}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_wrong_csv_columns(tmp_path):
    with pytest.raises(InputError, match="no column GeneratedTokens; the header is TIMESTAMP, ContextTokens"):
        formats.read(written(tmp_path, "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,4\n"), "azure")
    with pytest.raises(InputError, match="a header and no rows"):
        formats.read(written(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n"), "azure")


def test_unsorted_rows_are_sorted_stably_with_one_note(tmp_path):
    times = [3000, 1000, 3000, 1000, 2000]
    text = jsonl(*(row(timestamp=t, output_length=i + 1) for i, t in enumerate(times)))
    trace = formats.read(written(tmp_path, text))
    assert trace.frame["output_tokens"].to_list() == [2, 4, 5, 1, 3]
    assert trace.frame["arrival_s"].to_list() == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert len(trace.notes) == 1
    assert trace.notes[0].startswith("2 of 5 rows came before an earlier one")


valid_rows = st.lists(
    st.builds(
        lambda gap, length, output, first: row(
            timestamp=gap,
            input_length=length,
            output_length=output,
            hash_ids=list(range(first, first - -length // 512)),
        ),
        st.integers(0, 5000),
        st.integers(1, 4000),
        st.integers(1, 10**6),
        st.integers(0, 10**12),
    ),
    min_size=1,
    max_size=30,
)


@given(valid_rows, st.data())
@settings(max_examples=60, deadline=None)
def test_any_mooncake_file_and_any_single_mistake(tmp_path_factory, rows, data):
    folder = tmp_path_factory.mktemp("any")
    trace = formats.read(written(folder, jsonl(*rows)))
    ordered = sorted(rows, key=lambda entry: entry["timestamp"])
    start = ordered[0]["timestamp"] / 1000
    expected = [(r["timestamp"] / 1000 - start, r["input_length"], r["output_length"], r["hash_ids"]) for r in ordered]
    assert trace.frame.rows() == expected
    place = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]))
    bad = data.draw(st.sampled_from([None, -1, float("nan"), float("inf"), "x", 0.5, [], [1] * 9, {}, True]))
    if (column == "timestamp" and bad == 0.5) or (bad in (None, []) and len(rows) == 1):
        return
    rows[place] = {**rows[place], column: bad}
    with pytest.raises(InputError, match=f"line {place + 1}: .*{column}"):
        formats.read(written(folder, jsonl(*rows)), "mooncake", formats.How(bad_records=0))


# ---- the way into a workload


def sessions(**changes) -> Trace:
    columns = {
        "arrival_s": [0.0, 1.0, 1.0, 2.0, 5.0],
        "input_tokens": [1, 2, 3, 4, 5],
        "output_tokens": [1, 1, 1, 1, 1],
        "session_id": [7, None, 9, 7, 7],
        "turn": [0, None, 3, 1, 4],
        "think_s": [None, None, None, 0.0, 2.5],
        **changes,
    }
    return Trace(pl.DataFrame(columns, schema_overrides={"think_s": pl.Float64}), "chat", "real")


def test_sessions_become_previous_and_think_s():
    workload = to_workload(sessions())
    assert listed(workload.previous) == [-1, -1, -1, 0, 3]
    assert listed(workload.think_s) == [0.0, 0.0, 0.0, 0.0, 2.5]
    assert listed(workload.session_id) == [7, -1, 9, 7, 7]
    assert listed(workload.turn) == [0, 0, 3, 1, 4]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"turn": [1, None, 3, 1, 4]}, "request 3 .session 7.: its turn does not follow"),
        ({"think_s": [None, None, None, 0.0, None]}, "request 4 .session 7.: a later turn needs think_s"),
        ({"think_s": [None, None, None, -1.0, 1.0]}, "request 3 .session 7.: a later turn needs think_s"),
        ({"think_s": [None, None, None, float("nan"), 1.0]}, "request 3"),
        ({"think_s": [None, None, None, float("inf"), 1.0]}, "request 3"),
    ],
)
def test_bad_sessions(changes, reason):
    with pytest.raises(InputError, match=reason):
        to_workload(sessions(**changes))


def test_arrays_are_alike_whatever_they_come_from(tmp_path):
    """Compiled code is specialised on writability and layout: one kind of array, one specialisation."""
    read = to_workload(formats.read(written(tmp_path, MOONCAKE)))
    for workload in (read, to_workload(sessions())):
        for name, value in vars(workload).items():
            if isinstance(value, np.ndarray):
                assert not value.flags.writeable, name
                assert value.flags.c_contiguous, name


def test_sessions_need_think_times():
    trace = sessions()
    with pytest.raises(InputError, match="session_id needs a column think_s"):
        to_workload(trace.with_frame(trace.frame.drop("think_s")))


def test_classes_and_priorities():
    frame = sessions().frame.drop("session_id", "turn", "think_s")
    frame = frame.with_columns(slo_class=pl.Series(["a", None, "b", "a", "a"]), priority=pl.Series([1, None, 0, 0, 2]))
    workload = to_workload(Trace(frame, "t", "real"))
    assert workload.slo_class == ("a", "default", "b", "a", "a")
    assert listed(workload.priority) == [1, 0, 0, 0, 2]
    assert workload.previous is None
    named = Trace(frame.with_columns(tenant=pl.Series(["x", "y", None, "y", "x"])), "t", "real")
    assert to_workload(named).tenant == ("x", "y", "default", "y", "x")


def test_hash_ids_are_flat_with_spans():
    ids = [[5, 6], [], [5, 7, 8]]
    frame = pl.DataFrame(
        {"arrival_s": [0.0] * 3, "input_tokens": [20, 3, 40], "output_tokens": [1] * 3, "hash_ids": ids}
    )
    workload = to_workload(Trace(frame, "t", "real", hash_block_tokens=16))
    assert workload.hash_ids.tolist() == [5, 6, 5, 7, 8]
    assert listed(workload.hash_spans) == [[0, 2], [2, 2], [2, 5]]
    large = frame.with_columns(pl.col("hash_ids").list.eval(pl.element() * -(10**15)))
    workload = to_workload(Trace(large, "t", "real", hash_block_tokens=16))
    assert workload.hash_ids.min() == 0
    assert workload.hash_ids.max() == 3
    assert [workload.hash_ids.tolist().index(i) for i in workload.hash_ids] == [0, 1, 0, 3, 4]


def test_list_column():
    column = list_column(np.arange(5), np.array([0, 2, 2, 5]))
    assert column.to_list() == [[0, 1], [], [2, 3, 4]]
    assert list_column(np.arange(3), np.array([0, 1, 3])).to_list() == [[0], [1, 2]]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"arrival_s": [0.0], "input_tokens": [1]}, "no column output_tokens"),
        ({"arrival_s": [0], "input_tokens": [1], "output_tokens": [1]}, "column arrival_s is Int64, must be Float64"),
        ({"arrival_s": [0.0], "input_tokens": [1], "output_tokens": [1], "hash_ids": [[1]]}, "need hash_block_tokens"),
    ],
)
def test_frames_that_are_no_trace(frame, reason):
    with pytest.raises(InputError, match=reason):
        Trace(pl.DataFrame(frame), "t", "real")


# ---- where a trace comes from


def test_path_wins_over_name(tmp_path, nowhere):
    workload = load(name="mooncake", path=str(written(tmp_path, AZURE, "mine.csv")))
    assert (workload.name, workload.source, len(workload)) == ("mine", "real", 2)


def test_traces_dir_then_cache(nowhere):
    cached = catalogue.cache_folder() / "conversation_trace.jsonl"
    cached.parent.mkdir(parents=True)
    cached.write_text(MOONCAKE)
    assert len(load(name="mooncake")) == 3
    written(nowhere / "data", jsonl(row()), "conversation_trace.jsonl")
    workload = load(name="mooncake")
    assert (workload.name, workload.source, len(workload)) == ("mooncake", "real", 1)
    assert "is not the published file" in workload.notes[0]


def test_twin_stands_in_loudly(nowhere, capsys):
    warn_once.cache_clear()  # it is said once in a process
    workload = load(name="azure_conv", limit=50, seed=3)
    assert (workload.source, len(workload)) == ("twin", 50)
    shown = capsys.readouterr().err
    assert "WARNING: trace azure_conv: using its fitted trace" in shown
    assert "AzureLLMInferenceTrace_conv.csv" in shown
    assert len(load(name="azure_conv", requests=70)) == 70


def test_no_file_and_no_twin(nowhere):
    with pytest.raises(InputError, match=r"trace mooncake_toolagent: no file found.*put toolagent_trace.jsonl into"):
        load(name="mooncake_toolagent")


def test_mistakes_in_names(tmp_path, nowhere):
    with pytest.raises(InputError, match="trace 'moonkake' is not known; there are mooncake, "):
        load(name="moonkake")
    with pytest.raises(InputError, match="neither path nor name"):
        load()
    with pytest.raises(InputError, match=r"need trace.path=FILE"):
        load(name="mooncake", format="azure")
    with pytest.raises(InputError, match=r"trace.requests is for samples of a fitted trace"):
        load(path=str(written(tmp_path, MOONCAKE)), requests=2)


def test_twin_of_your_own(tmp_path):
    from traces.fitted.fitted_trace import load_fitted

    path = tmp_path / "mine.json"
    load_fitted("azure_code").save(path)
    workload = load(path=str(path), format="twin", requests=30)
    assert (workload.source, len(workload)) == ("twin", 30)


class Server:
    """One answer to each connection on a local port: `answer(connection)`."""

    def __init__(self, answer) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self.socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()


@pytest.fixture
def published(nowhere, monkeypatch):
    """Serve the Mooncake trace from a local server that answers as told."""
    servers = []

    def publish(answer, sha256: str) -> None:
        server = Server(answer)
        servers.append(server)
        url = f"http://127.0.0.1:{server.socket.getsockname()[1]}/conversation_trace.jsonl"
        entry = dataclasses.replace(catalogue.CATALOGUE["mooncake"], url=url, sha256=sha256)
        monkeypatch.setattr(catalogue, "CATALOGUE", {"mooncake": entry})
        monkeypatch.setenv("TRACES_OFFLINE", "0")

    yield publish
    for server in servers:
        server.socket.close()


def send(body: bytes):
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.close()

    return answer


def hang(connection: socket.socket) -> None:
    """A byte now and then, for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    try:
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)
    except OSError:
        return


def test_download_is_verified_and_cached(published, capsys):
    published(send(MOONCAKE.encode()), hashlib.sha256(MOONCAKE.encode()).hexdigest())
    workload = load(name="mooncake")
    assert (workload.source, len(workload), workload.notes) == ("real", 3, ())
    assert os.listdir(catalogue.cache_folder()) == ["conversation_trace.jsonl"]
    assert typed("traces", "fetch")(["mooncake"]) == 0
    assert capsys.readouterr().out.strip() == str(catalogue.cache_folder() / "conversation_trace.jsonl")


def test_other_content_is_refused(published, capsys):
    published(send(b"something else"), "0" * 64)
    assert typed("traces", "fetch")(["mooncake"]) == 2
    assert "expected 0000" in capsys.readouterr().err
    assert not catalogue.cache_folder().exists()


def test_truncated_download_is_refused(published):
    def answer(connection: socket.socket) -> None:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + MOONCAKE.encode())
        connection.close()

    published(answer, hashlib.sha256(MOONCAKE.encode()).hexdigest())
    with pytest.raises(InputError, match="cut short"):
        catalogue.download("mooncake", 5.0)


def test_hanging_download_ends_in_time(published, monkeypatch):
    published(hang, "0" * 64)
    monkeypatch.setattr(catalogue, "DOWNLOAD_S", 0.5)
    started = time.monotonic()
    workload = load(name="mooncake", limit=20)
    assert workload.source == "twin"
    assert time.monotonic() - started < 5.0
    started = time.monotonic()
    load(name="mooncake", limit=20)  # a sweep does not wait again
    assert time.monotonic() - started < 0.4


def test_hanging_name_lookup_ends_in_time(published, monkeypatch):
    published(hang, "0" * 64)

    def never(*_: object, **__: object) -> None:
        time.sleep(1.5)
        raise OSError("gave up")

    monkeypatch.setattr(socket, "getaddrinfo", never)
    started = time.monotonic()
    with pytest.raises(InputError, match=r"not done within 0.3 s"):
        catalogue.download("mooncake", 0.3)
    assert time.monotonic() - started < 1.2


def test_fetch_lists_what_there_is(nowhere, capsys):
    assert typed("traces", "fetch")([]) == 0
    assert "mooncake" in capsys.readouterr().out
    assert typed("traces", "fetch")(["reasoning"]) == 2
    assert "sampled from its fitted trace" in capsys.readouterr().err


def test_every_entry_of_the_catalogue_is_whole():
    for name, known in catalogue.CATALOGUE.items():
        assert known.licence, name
        assert known.citation, name
        assert (known.url is None) == (known.file is None), name
        assert known.url is not None or known.twin is not None, name
        assert known.sha256 is None or len(known.sha256) == 64, name


# ---- the real files


@needs_real
@pytest.mark.parametrize(
    ("name", "requests", "means"),
    [("mooncake", 12031, (12035, 343)), ("azure_conv", 19366, (1155, 211)), ("azure_code", 8819, (2048, 28))],
)
def test_real_traces(name, requests, means):
    workload = load(name=name)
    assert (workload.source, len(workload), workload.notes) == ("real", requests, ())
    assert workload.sha256 == catalogue.CATALOGUE[name].sha256
    assert round(workload.input_tokens.mean()) == means[0]
    assert round(workload.output_tokens.mean()) == means[1]
    if name == "mooncake":
        assert len(np.unique(workload.hash_ids)) == 182790
        assert len(workload) - len(np.unique(workload.arrival_s)) == 10851  # the clock ticks every 3 s


@needs_real
def test_real_file_by_path_goes_by_its_name():
    assert load(name="azure_code", path=f"{REAL}/conversation_trace.jsonl", format="mooncake").name == "mooncake"


@needs_real
@pytest.mark.slow
def test_real_servegen_clients():
    workload = load(path=f"{REAL}/servegen_deepseek_r1", limit=1000)
    assert (workload.name, len(workload)) == ("servegen_deepseek_r1", 1000)
    assert len(workload.sha256) == 64
