"""Constant fields: a branch that they decide is cut off before its types are inferred."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.np.numpy_support import from_dtype

from framework.compiler.decorators import compiled, inner
from framework.compiler.expected import unlikely
from framework.compiler.fields import Fields, fields_at
from framework.compiler.pointer import Pointer

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="NUMBA_DISABLE_JIT is set")  # type: ignore[attr-defined]

ROW = np.dtype((np.record, np.dtype([("count", "i8"), ("flag", "b1"), ("head", "i8")], align=True)))


class Things(NamedTuple):
    """As an array in Python, as a pointer in compiled code."""

    rows: Any  # ROW


KINDS = {"rows": Pointer(from_dtype(ROW))}
with_constants = fields_at(Fields("Things", KINDS, {"rows.flag": 0, "rows.head": -1}))
without = fields_at(Fields("Things", KINDS))


@inner
def once(t: Things, k: int) -> int:
    """Of a local name, by way of `unlikely` and `not`."""
    row = t.rows[k]
    if unlikely(row.flag) and row.count > 0:
        return row.nothing
    return 1 if not row.flag else row.nothing


@inner
def compared(t: Things, k: int) -> int:
    return t.rows[k].nothing if t.rows[k].head >= 0 else once(t, k)


@inner
def of_several(t: Things, k: int) -> int:
    """A name that stands for either of two rows is left as it is."""
    row = t.rows[k]
    if row.count > 1:
        row = t.rows[k + 1]
    return 7 if row.flag else 8


FOLDED = [once, compared]


def words_of(rows: Any) -> Any:
    return np.array([rows.ctypes.data])


@pytest.mark.parametrize("function", FOLDED)
def test_what_constants_rule_out_is_not_even_read(function: Any) -> None:
    @compiled
    def caller(words: Any) -> int:
        return function(with_constants(words), 0)

    assert caller(words_of(np.zeros(2, ROW))) == 1


@pytest.mark.parametrize("function", FOLDED)
def test_without_constants_all_of_it_is(function: Any) -> None:
    @compiled
    def caller(words: Any) -> int:
        return function(without(words), 0)

    with pytest.raises(numba.TypingError, match="nothing"):
        caller(words_of(np.zeros(2, ROW)))


def test_a_name_with_several_values_is_not_folded() -> None:
    @compiled
    def caller(words: Any) -> int:
        return of_several(with_constants(words), 0)

    rows = np.zeros(2, ROW)
    rows["flag"] = True
    assert caller(words_of(rows)) == 7
