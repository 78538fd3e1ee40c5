"""What readers of every format have in common: records left out, units doubted, parts of long files, the check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framework.errors import InputError
from tests.helpers.launcher import typed
from traces import formats
from traces.drawn.servegen import draw_requests, read_clients
from traces.formats import How, published
from traces.load import load
from traces.parsing import csv_rows

NAMES = {"arrival_s": "arrived_at", "input_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"}
NS = 10**9
AIPERF = {"metadata": {"request_start_ns": 0, "request_end_ns": 1}, "metrics": {}, "error": None}


def rows_of(kind: str, bad: int, good: int = 20) -> str:
    """`good` requests of a format, a second apart, and then `bad` records that cannot be read."""
    times = range(1, good + bad + 1)
    is_bad = [at > good for at in times]
    if kind in ("vidur", "columns"):
        header = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
        return header + "".join(f"{at},{'x' if b else 7},3\n" for at, b in zip(times, is_bad, strict=True))
    if kind == "azure":
        header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        lines = [f"2024-05-10 00:00:{at:02d},{'x' if b else 7},3\n" for at, b in zip(times, is_bad, strict=True)]
        return header + "".join(lines)
    return "".join(json.dumps(_row(kind, at, b)) + "\n" for at, b in zip(times, is_bad, strict=True))


def _row(kind: str, at: int, is_bad: bool) -> Any:
    tokens: Any = "x" if is_bad else 7
    if kind == "mooncake":
        return {"timestamp": 1000 * at, "input_length": tokens, "output_length": 3}
    if kind == "bailian":
        return {"chat_id": 1, "timestamp": at, "input_length": tokens, "output_length": 3}
    if kind == "openai":
        return {"created": at, "usage": {"prompt_tokens": tokens, "completion_tokens": 3}}
    if kind == "inference_perf":
        return {"start_time": at, "info": {"input_tokens": tokens, "output_tokens": 3}}
    lengths = {"input_sequence_length": {"value": tokens}, "output_sequence_length": {"value": 3}}
    return AIPERF | {"metadata": {"request_start_ns": at * 10**9, "request_end_ns": at * 10**9}, "metrics": lengths}


@pytest.mark.parametrize(
    "kind", ["vidur", "columns", "azure", "mooncake", "bailian", "openai", "inference_perf", "aiperf"]
)
def test_bad_records_are_left_out_up_to_a_share(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    columns = NAMES if kind == "columns" else None
    path.write_text(rows_of(kind, bad=1))
    workload = load(path=path, columns=columns)
    assert len(workload.arrival_s) == 20
    assert workload.arrival_s[-1] == 19
    (note,) = [note for note in workload.notes if "cannot be read" in note]
    assert note.startswith("1 of 21 records cannot be read; they are left out (first: line 2")
    path.write_text(rows_of(kind, bad=2))
    with pytest.raises(InputError, match=r"2 of 22 records cannot be read; trace\.bad_records=0\.05 is the share"):
        load(path=path, columns=columns)
    assert len(load(path=path, columns=columns, bad_records=0.1).arrival_s) == 20
    path.write_text(rows_of(kind, bad=1))
    with pytest.raises(InputError, match="1 of 21 records cannot be read"):
        load(path=path, columns=columns, bad_records=0)


def test_lines_of_another_width_are_bad_records(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(rows_of("vidur", bad=0) + "21,7,3,4\n22,7,3\n")
    workload = load(path=path)
    assert workload.arrival_s.tolist() == [*range(20), 21]
    assert "first: line 22: 4 fields, the header has 3" in workload.notes[-1]


@pytest.mark.parametrize("value", [1, -0.1, "x", True])
def test_shares_that_cannot_be(value: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trace\.bad_records is .*, must be a share"):
        load(path=tmp_path, bad_records=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ticks", "unit", "note"),
    [
        (1, None, "requests/s over"),  # seconds that are milliseconds: 0.0005 requests/s
        (1_800_000_000_000, None, "the first is of the year 59,009; as ms"),
        (1_800_000_000, "ms", "as s it would be"),
        (1_800_000_000, None, ""),
    ],
)
def test_absurd_clocks_are_doubted(ticks: int, unit: str | None, note: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    gap = 1 if ticks == 1_800_000_000 else 2000
    lines = [f"{ticks + gap * k},7,3\n" for k in range(5)]
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(lines))
    notes = [note for note in load(path=path, unit=unit).notes if "arrivals are read as" in note]
    assert bool(notes) == bool(note)
    assert note in "".join(notes)


def test_clocks_that_reach_too_far_are_told_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,7,3\n5000000000,7,3\n")
    with pytest.raises(
        InputError,
        match=r"line 2: arrived_at is 0, more than 5e\+08 s from the median of all; if it is n.*trace.unit=ns",
    ):
        load(path=path)
    assert load(path=path, unit="ns").arrival_s.tolist() == [0.0, 5.0]


def test_a_unit_is_that_of_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n500,7,3\n1500,7,3\n")
    assert load(path=path, unit="ms").arrival_s.tolist() == [0.0, 1.0]
    path.write_text(rows_of("azure", bad=0))
    with pytest.raises(InputError, match=r"trace\.unit=ms: the format has dates and times; leave it out"):
        load(path=path, unit="ms")
    with pytest.raises(InputError, match=r"trace\.unit is 'min', must be one of s, ms, us, ns"):
        load(path=path, unit="min")


def test_dates_of_another_century_are_doubted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(rows_of("azure", bad=0).replace("2024-", "1970-"))
    assert "the first is of the year 1970; are the dates right?" in load(path=path).notes


def test_arrivals_are_drawn_where_a_file_has_none(tmp_path: Path) -> None:
    path = tmp_path / "responses.json"
    path.write_text(json.dumps([{"number_input_tokens": 9, "number_output_tokens": 2}] * 400))
    one, other = load(path=path, seed=1, rate=8.0), load(path=path, seed=2, rate=8.0)
    assert one.arrival_s[-1] == pytest.approx(other.arrival_s[-1])
    assert one.arrival_s.tolist() != other.arrival_s.tolist()
    assert len(one.arrival_s) / one.arrival_s[-1] == pytest.approx(8.0, rel=0.01)
    assert (one.arrival_s == load(path=path, seed=1, rate=8.0).arrival_s).all()


def test_a_window_of_a_long_file_reads_no_more_than_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "week.csv"
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    times = [f"2024-05-{10 + k // 86400:02d} {k // 3600 % 24:02d}:{k // 60 % 60:02d}:{k % 60:02d}" for k in range(9000)]
    path.write_text(header + "".join(f"{time},{100 + k},{k % 7}\n" for k, time in enumerate(times)))
    whole = formats.read(path, "azure")
    read: list[int] = []

    def small(path: Path) -> Any:
        for part in csv_rows.csv_parts(path, 4000):
            read.append(part.data.count(b"\n"))
            yield part

    monkeypatch.setattr(published, "csv_parts", small)
    in_parts = published.read_azure(path, How())
    assert in_parts.frame.equals(whole.frame)
    assert in_parts.notes == whole.notes == ("1,286 of 9,000 requests have 0 tokens; they are left out",)
    every = len(read)
    read.clear()
    windowed = published.read_azure(path, How(window_s=(1000, 1100)))
    assert len(read) < every / 4
    kept = windowed.frame.filter(pl.col("arrival_s").is_between(1000, 1100, closed="left"))
    assert kept.equals(whole.frame.filter(pl.col("arrival_s").is_between(1000, 1100, closed="left")))
    path.write_text(header + "".join(f"{time},{100 + k},3\n" for k, time in enumerate(reversed(times))))
    backwards = published.read_azure(path, How(window_s=(0, 10)))
    assert len(backwards) == 9000  # not in order: all of it was needed


def test_lines_of_later_parts_are_counted_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "week.csv"
    path.write_text(rows_of("azure", bad=1))
    parts = list(csv_rows.csv_parts(path, 200))
    assert len(parts) > 2
    table = csv_rows.read_csv(path, ["ContextTokens"], part=parts[-1])
    assert table.place(table.frame.height - 1) == "line 22"


def test_images_count_as_tokens_of_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-trace.csv").write_text("0,0.5,1.0,Gamma,1.0,2.0\n600,0.5,1.0,Gamma,1.0,2.0\n")
    lengths = {"text_tokens": "{0: 0.5, 50: 0.5}", "image_count": "{0: 0.5, 3: 0.5}", "image_tokens": "{400: 1.0}"}
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps({"0": lengths | {"output_tokens": "{20: 1.0}"}}))
    drawn = draw_requests(read_clients(tmp_path), 0.0, 600, seed=0).frame
    assert set(drawn["input_tokens"].to_list()) == {1, 50, 1200, 1250}
    assert len(load(path=tmp_path).arrival_s) == 600  # all that the clients send


def test_check_says_how_a_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log.jsonl"
    turns = [(0, 1, 100, 20), (3, 4, 200, 5)]
    path.write_text(
        "".join(
            json.dumps(
                {
                    "metadata": {
                        "x_correlation_id": "s",
                        "request_start_ns": at * 10**9,
                        "request_end_ns": end * 10**9,
                    },
                    "metrics": {"input_sequence_length": prompt, "output_sequence_length": answer},
                }
            )
            + "\n"
            for at, end, prompt, answer in turns
        )
    )
    assert typed("traces", "check")([str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for note in (
        *("format aiperf", "unit of arrivals ns", "requests 2 over 3 s", "sessions 1, with 1 later turns"),
        *("blocks of 16 tokens", "note 1 of 1 later turns carry what was said before"),
    ):
        assert note in said
    path.write_text("t,a,b\n1000,5,6\n2000,5,6\n3000,5,6\n")
    assert typed("traces", "check")([str(path)]) == 2
    assert "in no known format" in capsys.readouterr().err
    assert typed("traces", "check")([str(path), "columns=arrival_s: t, input_tokens: a, output_tokens: b"]) == 0
    assert "as ms it would be 1 requests/s: name it as arrival_ms" in capsys.readouterr().out
    assert typed("traces", "check")([str(path), "columns=arrival_ms"]) == 2
