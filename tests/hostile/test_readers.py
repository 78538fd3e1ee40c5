"""Hostile files: each reader succeeds or refuses in one clear line, soon."""

from __future__ import annotations

import functools
import gzip
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.cli.reading import MOST_BYTES, read_file, read_text
from framework.cli.terminal import warn_once
from framework.errors import InputError
from tests.hostile.damage import gzip_bomb
from tests.hostile.outcomes import REFUSED, SUCCESS, Outcome, outcome_of
from tests.hostile.readers import READERS, Case, cases, some
from traces.formats import own
from traces.frame import to_workload
from traces.load import from_file

_QUICK = 8  # cases of each reader
_NOTHING_FITS = "unknown lines"  # the reader that knows no good file

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
MOONCAKE = '{"timestamp": %d, "input_length": 10, "output_length": 5}\n'


def went_wrong(chosen: Sequence[Case], folder: Path) -> list[str]:
    """What is neither a success nor one line, of these cases."""
    outcomes: dict[Case, Outcome] = {}
    for number, case in enumerate(chosen):
        place = folder / str(number)
        play = functools.partial(READERS[case.reader].play, place, case.damage.content)
        outcomes[case] = outcome_of(play)
        shutil.rmtree(place)
    kinds = {outcome.kind for case, outcome in outcomes.items() if case.reader != _NOTHING_FITS}
    assert not kinds or {SUCCESS, REFUSED} <= kinds, "cases of one kind alone show nothing"
    return [f"{case}: {outcome.kind}, {outcome.detail}" for case, outcome in outcomes.items() if not outcome.is_good]


def test_some_hostile_files(tmp_path: Path) -> None:
    chosen = some(_QUICK)
    assert len(chosen) >= 125
    assert went_wrong(chosen, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_all_hostile_files(reader: str, tmp_path: Path) -> None:
    chosen = cases(reader)
    assert len(chosen) >= 100
    assert went_wrong(chosen, tmp_path) == []


def refusal(path: Path, format_name: str | None = None) -> str:
    with pytest.raises(InputError) as refused:
        from_file(str(path), format_name)
    return str(refused.value)


def stderr_of(capsys: pytest.CaptureFixture[str], path: Path, format_name: str | None = None) -> str:
    """What reading a trace says on stderr; it is in the notes too."""
    warn_once.cache_clear()
    trace = from_file(str(path), format_name)
    said = capsys.readouterr().err
    assert all(note in said for note in trace.notes)
    return said


# --- packed files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mooncake", "azure", "burstgpt", "vidur", "benchmark", "benchmark csv", "kernels"])
def test_packed_files_are_read_as_if_they_were_not(name: str, tmp_path: Path) -> None:
    plain = next(case.damage.content for case in cases(name) if case.damage.name == "twice")
    plain = plain[: len(plain) // 2]
    READERS[name].play(tmp_path / "plain", plain)
    READERS[name].play(tmp_path / "gzip", gzip.compress(plain))
    READERS[name].play(tmp_path / "members", gzip.compress(plain[:7]) + gzip.compress(plain[7:]))
    READERS[name].play(tmp_path / "zstd", zstd(plain))


def zstd(content: bytes) -> bytes:
    """Packed by polars; every line must hold something, as CSVs of polars do."""
    lines = content.decode().rstrip("\n").split("\n")
    packed = pl.DataFrame({"line": lines}).lazy()
    target = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp")  # a sink wants a file
    file = target / f"servelab-test-{np.random.default_rng().integers(1 << 40)}.zst"
    try:
        packed.sink_csv(file, compression="zstd", include_header=False, quote_style="never")
        return file.read_bytes()
    finally:
        file.unlink(missing_ok=True)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd here")
def test_zstd_of_its_own_program_keeps_line_numbers(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(MOONCAKE % 0 + "\n\n" + MOONCAKE % 5 + '{"timestamp": 6}\n')
    subprocess.run(["zstd", "-q", "--no-check", str(file)], check=True)
    assert "line 5: input_length" in refusal(file.with_name("trace.jsonl.zst"))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd])
def test_a_bad_row_of_a_packed_trace_is_named_by_its_line(pack: object, tmp_path: Path) -> None:
    rows = "".join(f"{k},m,10,5,15,Conversation log\n" for k in range(1000))
    content = (BURSTGPT + rows + "7,m,10,none,15,Conversation log\n").encode()
    file = tmp_path / "trace.csv"
    file.write_bytes(pack(content))  # type: ignore[operator]
    assert "line 1002: Response tokens" in from_file(str(file)).notes[-1]


def test_bombs_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_bytes(gzip_bomb())
    assert file.stat().st_size < 1_000_000
    assert "unpacks to more than" in refusal(file)
    file.write_bytes(gzip.compress(gzip.compress(b"{}")))
    assert "packed twice" in refusal(file)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd here")
def test_a_bomb_of_zstd_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.touch()
    os.truncate(file, 300_000_000)  # a hole, which is quicker to make than zeros
    subprocess.run(["zstd", "-q", "--rm", str(file)], check=True)
    packed = file.with_name("trace.jsonl.zst")
    assert packed.stat().st_size < 100_000
    assert "unpacks to more than" in refusal(packed)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    with file.open("wb") as hole:
        hole.truncate(MOST_BYTES + 1)
    assert "at most" in refusal(file)


def test_text_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"abc\xff")
    with pytest.raises(InputError, match=r"is not text in UTF-8 \(byte 4\)"):
        read_text(file)
    file.write_bytes(b"\xef\xbb\xbfabc")
    assert read_file(file) == b"abc"


# --- lines, headers, clocks -------------------------------------------------------------------------------------------


def test_line_ends_within_quotes_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(BURSTGPT + '0,"a\nb\n\nc",10,5,15,x\n\n1,m,10,-5,15,x\n')
    assert "line 7: Response tokens is -5" in refusal(file)


@pytest.mark.parametrize(
    "row", ["0001-01-01 00:00:00.0", "9999-12-31 23:59:59.9", "1677-09-21 00:12:43.1", "2262-04-12 00:00:00.0"]
)
def test_years_out_of_reach_are_refused(row: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(f"{AZURE}2023-11-16 18:15:46.6805900,10,5\n{row},10,5\n")
    assert "line 3: TIMESTAMP" in refusal(file)


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens,arrived_at\n0,1,1,0\n")
    assert "arrived_at stands twice" in refusal(file)


def test_seconds_in_a_format_of_milliseconds_are_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(MOONCAKE % k for k in range(200)))
    assert "set trace.unit=s" in stderr_of(capsys, file)
    file.write_text("".join(MOONCAKE.replace("%d", f"{0.31 * k}") for k in range(20)))
    assert "set trace.unit=s" in stderr_of(capsys, file)
    file.write_text("".join(MOONCAKE % (1000 * k) for k in range(200)))
    assert stderr_of(capsys, file) == ""


def test_a_key_given_twice_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(MOONCAKE % 0 + '{"timestamp": 1000, "timestamp": 2000, "input_length": 1, "output_length": 1}\n')
    warn_once.cache_clear()
    assert from_file(str(file)).arrival_s.tolist() == [0.0, 1.0]
    assert "line 2: timestamp stands twice" in capsys.readouterr().err
    file.write_text(MOONCAKE % 0 + '{"timestamp": 1000, "input_length": 1, "output_length": 1, "a": "timestamp"}\n')
    warn_once.cache_clear()
    assert from_file(str(file)).notes == ("columns left out: a",)
    assert "twice" not in capsys.readouterr().err


def test_an_id_behind_two_others_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    row = '{"timestamp": %d, "input_length": 1500, "output_length": 5, "hash_ids": [%d, %d, %d]}\n'
    file.write_text(row % (0, 1, 2, 3) + row % (1000, 1, 2, 4) + row % (2000, 5, 6, 7))
    assert stderr_of(capsys, file) == ""
    file.write_text(row % (0, 1, 2, 3) + row % (1000, 1, 4, 3) + row % (2000, 4, 6, 7))
    assert "2 hash ids stand behind several others" in stderr_of(capsys, file)


def test_parquet_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "trace.parquet"
    rows = pl.DataFrame({"arrival_s": [0.0, 1.0], "input_tokens": [5, 6], "output_tokens": [1, 2]})
    abouts: tuple[Any, ...] = (
        [],
        {"name": 7},
        {"notes": "x"},
        {"notes": [1]},
        {"hash_block_tokens": -1},
        {"source": None},
    )
    for about in abouts:
        rows.write_parquet(file, metadata={own.METADATA_KEY: json.dumps(about)})
        assert "metadata" in refusal(file)
    rows.write_parquet(file, metadata={own.METADATA_KEY: "[" * 100_000})
    assert "nested too deep" in refusal(file)
    rows.with_columns(arrival_s=pl.Series([0.0, 1e300])).write_parquet(file)
    assert "row 2: arrival_s" in refusal(file)
    rows.write_parquet(file)
    assert len(to_workload(from_file(str(file)))) == 2
    damaged = bytearray(file.read_bytes())
    for at in range(4, len(damaged) - 8, 7):
        damaged[at] ^= 0xFF
        file.write_bytes(damaged)
        assert outcome_of(lambda: from_file(str(file))).is_good
        damaged[at] ^= 0xFF
