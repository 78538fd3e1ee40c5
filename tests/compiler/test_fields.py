"""What compiled functions are handed: arrays behind pointers, and many pointers behind one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.np.numpy_support import from_dtype

from framework.compiler.decorators import compiled, inner
from framework.compiler.fields import Fields, fields_at
from framework.compiler.pointer import Pointer, RecordPointer

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="NUMBA_DISABLE_JIT is set")  # type: ignore[attr-defined]

ROW = np.dtype((np.record, np.dtype([("count", "i4"), ("flag", "b1"), ("time_s", "f8")], align=True)))


class Things(NamedTuple):
    """As arrays in Python, as pointers in compiled code."""

    first: Any  # ROW, one
    rows: Any  # ROW
    numbers: Any  # int64
    seen: Any


@inner
def use(t: Things) -> int:
    """Reads and writes of each kind; a later read sees an earlier write through another pointer to the same field."""
    row, same = t.rows[1], t.rows[t.numbers[0]]
    row.count = 2
    same.count += 5
    row.time_s = 0.5
    t.first.flag = row.time_s == 0.5
    t.numbers[1] = row.count
    t.numbers[t.seen] += t.numbers[1]
    return t.numbers[1]


KIND = from_dtype(ROW)
at_words = fields_at(
    Fields(
        "Things",
        {"first": RecordPointer(KIND), "rows": Pointer(KIND), "numbers": Pointer(numba.int64), "seen": numba.int64},
    )
)


@compiled
def from_words(words: Any) -> int:
    """The fields are the words of an array."""
    return use(at_words(words))


def arrays() -> tuple[Any, Any, Any]:
    return np.zeros(1, ROW), np.zeros(3, ROW), np.array([1, 0, 100])


def test_what_is_written_through_pointers_is_read_there_and_in_the_arrays() -> None:
    held = first, rows, numbers = arrays()
    words = np.array([*(array.ctypes.data for array in held), 2])
    assert from_words(words) == 7
    assert rows["count"].tolist() == [0, 7, 0]
    assert rows["time_s"].tolist() == [0.0, 0.5, 0.0]
    assert (first["flag"][0], first["count"][0]) == (True, 0)
    assert numbers.tolist() == [1, 7, 107]


def test_a_store_into_one_field_leaves_what_was_read_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM knows that: it reads `count` once, though `time_s` of any row is stored in between."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))  # code that comes from a cache cannot be inspected

    @compiled("int64(int64[:], float64)")
    def twice(words: Any, time_s: float) -> int:
        t = at_words(words)
        before = t.rows[0].count
        t.rows[t.numbers[0]].time_s = time_s
        return before + t.rows[0].count

    words = np.array([*(array.ctypes.data for array in arrays()), 2])
    assert twice(words, 1.0) == 0
    (code,) = twice.inspect_llvm().values()  # type: ignore[attr-defined]
    body = code[code.index("define") : code.index("ret i32")]
    assert body.count("load i32") == 1


def test_of_a_record_there_are_the_fields_that_it_has() -> None:
    @compiled("int64(int64[:])")
    def asks(words: Any) -> int:
        return at_words(words).rows[0].length

    with pytest.raises(numba.TypingError, match="length"):
        asks(np.zeros(4, np.int64))
