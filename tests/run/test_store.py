"""The store: a record is there whole or not at all, once, whoever else writes, gathers or is killed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from framework.errors import InputError
from framework.run import store
from framework.run.store import Record, Store


def record(number: int, value: float = 0.0) -> Record:
    return Record(
        f"{number:032x}", {"seed": number, "policy.order": None}, {"policy": "chunked"}, {"goodput": 1.5}, value
    )


def files(directory: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in directory.rglob(pattern))


def test_what_was_put_is_got_and_nothing_else(tmp_path: Path) -> None:
    results = Store(tmp_path / "new")
    assert results.get(record(1).key) is None
    assert results.read() == []
    results.put(record(1))
    assert Store(tmp_path / "new").get(record(1).key) == record(1)
    assert results.get(record(2).key) is None


def test_reading_gathers_loose_records_and_keeps_every_one(tmp_path: Path) -> None:
    results = Store(tmp_path)
    for number in range(200):
        results.put(record(number))
    assert results.read() == [record(number) for number in range(200)]
    assert files(tmp_path, "*.json") == []
    assert len(files(tmp_path, "*.parquet")) == 1
    results.put(record(200))
    assert results.read() == [record(number) for number in range(201)]
    assert results.get(record(7).key) == record(7)


def test_segments_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LOOSE", 0)
    results = Store(tmp_path)
    for number in range(30):
        results.put(record(number))
        assert len(results.read()) == number + 1
    assert len(files(tmp_path, "*.parquet")) <= store._SEGMENTS + 1
    assert [results.get(record(number).key) for number in range(30)] == [record(number) for number in range(30)]


@pytest.mark.parametrize("most", [0, 64])
def test_what_is_removed_is_gone_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(store, "_LOOSE", most)
    results = Store(tmp_path)
    for number in range(6):
        results.put(record(number))
    results.read()  # into segments, or not
    results.remove([record(number).key for number in (0, 4, 9)])
    assert results.read() == [record(number) for number in (1, 2, 3, 5)]
    results.remove([one.key for one in results.read()])
    assert results.read() == []


def test_a_repeated_run_replaces_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LOOSE", 0)
    results = Store(tmp_path)
    results.put(record(1, value=1.0))
    results.read()  # into a segment
    results.put(record(1, value=2.0))
    assert results.get(record(1).key) == record(1, value=2.0)
    assert results.read() == [record(1, value=2.0)]


def test_whoever_dies_between_two_steps_of_gathering_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_LOOSE", 3)
    results = Store(tmp_path)
    for number in range(5):
        results.put(record(number))
    removed: list[Path] = []

    def dying(path: Path, missing_ok: bool = False) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(path)
        path.rename(path.with_name(".gone"))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dying)
        with pytest.raises(KeyboardInterrupt):
            results.read()
    assert Store(tmp_path).read() == [record(number) for number in range(5)]


def test_many_write_and_gather_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LOOSE", 2)
    monkeypatch.setattr(store, "_SEGMENTS", 2)

    def work(worker: int) -> list[int]:
        mine = Store(tmp_path)
        seen = []
        for number in range(25):
            mine.put(record(100 * worker + number))
            seen.append(len(mine.read()))
            assert mine.get(record(100 * worker).key) == record(100 * worker)
        return seen

    with ThreadPoolExecutor(4) as pool:
        for seen in pool.map(work, range(4)):
            assert seen == sorted(seen)  # a record that was seen is seen again
    assert Store(tmp_path).read() == sorted(
        (record(100 * worker + number) for worker in range(4) for number in range(25)), key=lambda one: one.key
    )


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"key": "a"})])
def test_a_damaged_record_is_one_line(tmp_path: Path, content: str) -> None:
    results = Store(tmp_path)
    results.put(record(1))
    (tmp_path / "records" / f"{record(1).key}.json").write_text(content)
    for read in (results.read, lambda: results.get(record(1).key)):
        with pytest.raises(InputError, match="not a record of runs") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_an_unfinished_file_is_no_record(tmp_path: Path) -> None:
    results = Store(tmp_path)
    results.put(record(1))
    (tmp_path / "records" / f".{record(2).key}.json.abc.tmp").write_text("{")
    assert results.read() == [record(1)]


@pytest.mark.parametrize("column", ["config", "choices", "summary"])
@pytest.mark.parametrize("cell", ["{", "5", "[]", "[" * 100_000, "9" * 5_000])
def test_a_cell_of_a_segment_that_is_no_record_is_one_line(tmp_path: Path, column: str, cell: str) -> None:
    row = {"key": "a" * 64, "config": "{}", "choices": "{}", "summary": "{}", "value": 1.0}
    (tmp_path / "segments").mkdir()
    pl.DataFrame(row).write_parquet(tmp_path / "segments" / "good.parquet")
    assert Store(tmp_path).get("a" * 64) == Store(tmp_path).read()[0]
    pl.DataFrame(row | {column: cell}).write_parquet(tmp_path / "segments" / "bad.parquet")
    with pytest.raises(InputError, match=r"bad\.parquet: not a record of runs") as caught:
        Store(tmp_path).read()
    assert "\n" not in str(caught.value)
