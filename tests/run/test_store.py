"""The store: a record is there whole or not at all, once, whoever else writes, gathers or is killed."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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


@pytest.mark.parametrize(
    "change", [{"summary": None}, {"value": None}, {"value": "1"}, {"key": None, "config": None}, {"key": 5}]
)
def test_a_segment_with_other_columns_or_empty_cells_is_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    row = {"key": "a" * 64, "config": "{}", "choices": "{}", "summary": "{}", "value": 1.0}
    rows = pl.DataFrame([row, row | change], schema=store._COLUMNS, orient="row", strict=False)
    rows = rows if None in change.values() else pl.DataFrame(row | change)
    (tmp_path / "segments").mkdir()
    rows.write_parquet(tmp_path / "segments" / "bad.parquet")
    with pytest.raises(InputError, match=r"bad\.parquet: not .*of other types, or empty cells"):
        Store(tmp_path).read()


def test_a_segment_that_is_none_is_one_line_and_one_that_is_gone_is_looked_for_again(tmp_path: Path) -> None:
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"bad\.parquet: not a record of runs"):
        Store(tmp_path).get("a" * 64)
    with pytest.raises(FileNotFoundError):
        store._frame(tmp_path / "segments" / "gone.parquet")


def in_segments(directory: Path, monkeypatch: pytest.MonkeyPatch, *groups: range) -> Store:
    """A store with a segment for each of these groups of records."""
    results = Store(directory)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_LOOSE", 0)
        for group in groups:
            for number in group:
                results.put(record(number))
            results.read()
    assert len(files(directory, "*.parquet")) == len(groups)
    return results


def test_the_last_record_of_a_segment_outlives_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = in_segments(tmp_path, monkeypatch, range(3))
    results.remove([record(0).key, record(2).key])
    assert results.read() == [record(1)]
    results.remove([record(1).key])
    assert files(tmp_path, "*.parquet") == []


def test_segments_without_what_is_removed_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = in_segments(tmp_path, monkeypatch, range(3), range(3, 5))
    before = files(tmp_path, "*.parquet")
    results.remove([record(1).key])
    assert results.read() == [record(number) for number in (0, 2, 3, 4)]
    assert len(set(before) & set(files(tmp_path, "*.parquet"))) == 1


@pytest.mark.parametrize("wanted", ["get", "read", "remove"])
def test_whoever_finds_a_segment_gone_looks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    """Another process merges segments between their listing and their reading."""
    results = in_segments(tmp_path, monkeypatch, range(3), range(3, 5))
    frame_of = store._frame
    merged: list[Path] = []

    def merging(segment: Path) -> pl.DataFrame:
        if not merged:
            merged.append(segment)
            with monkeypatch.context() as patch:
                patch.setattr(store, "_frame", frame_of)
                patch.setattr(store, "_SEGMENTS", 1)
                Store(tmp_path).read()
            raise FileNotFoundError(segment)
        return frame_of(segment)

    monkeypatch.setattr(store, "_frame", merging)
    if wanted == "get":
        assert results.get(record(1).key) == record(1)
    elif wanted == "read":
        assert results.read() == [record(number) for number in range(5)]
    else:
        results.remove([record(1).key])
        assert results.read() == [record(number) for number in (0, 2, 3, 4)]
    assert len(files(tmp_path, "*.parquet")) == 1


def test_a_listing_that_a_merge_tears_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may be listed without the segment that is new and without those that are gone."""
    results = in_segments(tmp_path, monkeypatch, range(3))
    whole = results._segments()
    listings = [[], whole, whole, whole]
    monkeypatch.setattr(Store, "_segments", lambda self: listings.pop(0))
    assert results.read() == [record(number) for number in range(3)]
    assert listings == []


def test_a_loose_record_that_is_gathered_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = Store(tmp_path)
    results.put(record(1))
    read_loose = store.read_loose
    gathered: list[Path] = []

    def gathering(path: Path) -> Record:
        if not gathered:
            gathered.append(path)
            with monkeypatch.context() as patch:
                patch.setattr(store, "_LOOSE", 0)
                Store(tmp_path).read()
            raise FileNotFoundError(path)
        return read_loose(path)

    monkeypatch.setattr(store, "read_loose", gathering)
    assert results.get(record(1).key) == record(1)


def test_records_are_gathered_beyond_64_and_segments_merged_beyond_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Store(tmp_path)
    for number in range(64):
        results.put(record(number))
    results.read()
    assert len(files(tmp_path, "*.json")) == 64
    results.put(record(64))
    results.read()
    assert (len(files(tmp_path, "*.json")), len(files(tmp_path, "*.parquet"))) == (0, 1)
    many = in_segments(tmp_path / "many", monkeypatch, *(range(3 * k, 3 * k + 3) for k in range(8)))
    many.read()
    assert len(files(tmp_path / "many", "*.parquet")) == 8
    with monkeypatch.context() as patch:
        patch.setattr(store, "_LOOSE", 0)
        many.put(record(99))
        many.read()
    assert many.read() == [*(record(number) for number in range(24)), record(99)]
    assert len(files(tmp_path / "many", "*.parquet")) == 1


def test_a_record_under_the_name_of_another_is_damaged(tmp_path: Path) -> None:
    results = Store(tmp_path)
    results.put(record(1))
    path = tmp_path / "records" / f"{record(1).key}.json"
    path.rename(path.with_name(f"{record(2).key}.json"))
    with pytest.raises(InputError, match=f"not a record of runs .its key is .*{record(1).key}"):
        results.read()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"value": True}, "value must be a number, got True"),
        ({"value": "1"}, "value must be a number"),
        ({"key": 5}, "key"),
        ({"config": []}, "config"),
        ({"summary": 5}, "summary must be"),
        ({"choices": {"policy": 1}}, "choices"),
        ({"summary": {"versions": {"servelab": 2}}}, "summary.versions"),
    ],
)
def test_what_a_record_has_is_checked(tmp_path: Path, change: dict[str, object], what: str) -> None:
    results = Store(tmp_path)
    results.put(record(1))
    path = tmp_path / "records" / f"{record(1).key}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=what):
        results.read()


def test_a_whole_number_is_a_value(tmp_path: Path) -> None:
    results = Store(tmp_path)
    results.put(record(1))
    path = tmp_path / "records" / f"{record(1).key}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"value": 3}))
    (found,) = results.read()
    assert (found.value, type(found.value)) == (3.0, float)


def test_records_say_which_version_made_them() -> None:
    assert record(1).version == "0.1"  # of before they did
    assert replace(record(1), summary={"versions": {"servelab": "7.1", "numpy": "2"}}).version == "7.1"
