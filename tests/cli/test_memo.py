"""What a process reads and draws only once, and when it does so again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from framework.cli.files import read_once
from framework.timing.shipped import profile_files
from traces import formats
from traces.fitted.fitted_trace import FittedTrace, load_fitted
from traces.formats import reading
from traces.load import load
from traces.parsing import rows

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}\n'


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose content was read as a trace, in order."""
    read: list[Path] = []

    def spy(path: Path) -> bytes:
        read.append(path)
        return rows.read_bytes(path)

    monkeypatch.setattr(reading, "read_bytes", spy)  # asked once for each file whose format is not named
    return read


def counter() -> tuple[Callable[[Path, int], str], list[str]]:
    calls: list[str] = []

    @read_once(keep=2)
    def content(path: Path, times: int) -> str:
        calls.append(f"{path.name} {times}")
        return path.read_text() * times

    return content, calls


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    content, calls = counter()
    path = tmp_path / "a"
    path.write_text("x")
    assert [content(path, 2), content(path, 2), content(path, 3)] == ["xx", "xx", "xxx"]
    assert calls == ["a 2", "a 3"]
    path.write_text("yy")  # longer
    assert content(path, 2) == "yyyy"
    path.write_text("zz")
    os.utime(path, ns=(0, 1))  # of the same length, at another time
    assert content(path, 2) == "zzzz"
    (tmp_path / "b").write_text("ww")
    os.utime(tmp_path / "b", ns=(0, 1))
    (tmp_path / "b").replace(path)  # of the same length and time: another file
    assert content(path, 2) == "wwww"


def test_a_folder_is_read_again_when_anything_in_it_has_changed(tmp_path: Path) -> None:
    calls: list[int] = []

    @read_once(keep=2)
    def names(path: Path) -> int:
        calls.append(1)
        return len(list(path.iterdir()))

    (tmp_path / "a").write_text("x")
    assert (names(tmp_path), names(tmp_path), len(calls)) == (1, 1, 1)
    (tmp_path / "a").write_text("xy")
    assert (names(tmp_path), len(calls)) == (1, 2)
    (tmp_path / "b").touch()
    assert (names(tmp_path), len(calls)) == (2, 3)


def test_what_was_asked_for_long_ago_is_forgotten(tmp_path: Path) -> None:
    content, calls = counter()
    for name in "abc":
        (tmp_path / name).write_text(name)
        content(tmp_path / name, 1)
    content(tmp_path / "c", 1)
    content(tmp_path / "a", 1)
    assert calls == ["a 1", "b 1", "c 1", "a 1"]


def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    content, _ = counter()
    with pytest.raises(FileNotFoundError):
        content(tmp_path / "a", 1)
    (tmp_path / "a").write_text("x")
    assert content(tmp_path / "a", 1) == "x"


def test_a_trace_is_parsed_once(tmp_path: Path, reads: list[Path]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(LINE * 3)
    assert [len(load(path=str(path), limit=limit)) for limit in (1, 2, 3)] == [1, 2, 3]
    assert reads == [path]
    path.write_text(LINE * 4)
    assert len(load(path=str(path))) == 4
    assert reads == [path, path]
    assert load(path=str(path), block_tokens=512).hash_block_tokens == 512
    assert len(reads) == 3  # in other words, another trace


def test_workloads_of_one_file_cannot_alter_one_another(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(LINE * 3)
    one, other = load(path=str(path)), load(path=str(path))
    for name, column in vars(one).items():
        if isinstance(column, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                column[0] = 0
            np.testing.assert_array_equal(column, getattr(other, name))


@pytest.mark.parametrize("draw", ["file", "twin"])
def test_a_frame_that_is_altered_in_place_is_the_caller_s_alone(tmp_path: Path, draw: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(LINE * 3)
    fitted = tmp_path / "t.json"
    load_fitted("azure_code").save(fitted)

    def frame() -> pl.DataFrame:
        from traces.fitted.fitted_trace import sample_fitted

        return (formats.read(path) if draw == "file" else sample_fitted(fitted, 3, 1)).frame

    mine, before = frame(), frame().rows()
    mine[0, "output_tokens"] = 99
    mine.insert_column(0, pl.Series("more", [1, 2, 3]))
    mine.extend(mine)
    assert frame().rows() == before


def test_a_sample_of_a_twin_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    load_fitted("azure_code").save(path)
    drawn: list[tuple[int | None, int]] = []
    sample = FittedTrace.sample

    def spy(self: FittedTrace, requests: int | None = None, seed: int = 0) -> object:
        drawn.append((requests, seed))
        return sample(self, requests, seed)

    monkeypatch.setattr(FittedTrace, "sample", spy)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))  # where a sample that was drawn before is kept
    for seed in (1, 1, 2, 1):
        load(path=str(path), format="twin", requests=20, seed=seed)
    assert drawn == [(20, 1), (20, 2)]
    load_fitted("azure_conv").save(path)
    assert "azure_conv" in load(path=str(path), format="twin", requests=20, seed=1).notes[0]


def test_a_profile_is_parsed_once_and_cannot_be_altered() -> None:
    path = profile_files.profile_path(profile_files.shipped_directory(), "llama3_8b", "h100", "vllm")
    profile = profile_files.read_profile(path)
    assert profile_files.read_profile(path) is profile
    for parts in profile.entries:
        for column in vars(parts).values():
            assert not isinstance(column, np.ndarray) or not column.flags.writeable
