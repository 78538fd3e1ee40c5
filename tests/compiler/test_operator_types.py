"""Operators on plain numbers are typed once, as numba types them."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest
from numba import types
from numba.core.registry import cpu_target

import framework.compiler.decorators  # noqa: F401  which has numba keep them
from framework.compiler.dispatchers import numba_config

KINDS = (types.int64, types.float64, types.boolean, types.int32, types.literal(3))
FOUND = (operator.add, operator.mul, operator.floordiv, operator.truediv, operator.lt, operator.eq, operator.iadd)

pytestmark = pytest.mark.skipif(bool(numba_config.DISABLE_JIT), reason="nothing is compiled")


def function_type(found: Any) -> Any:
    context = cpu_target.typing_context
    context.refresh()
    return context.resolve_value_type(found)


@pytest.mark.parametrize("found", FOUND)
def test_they_have_the_types_that_numba_finds(found: Any) -> None:
    function, context = function_type(found), cpu_target.typing_context
    look_up: Any = types.Function.get_call_type
    for pair in itertools.product(KINDS, repeat=2):
        kept = function.get_call_type(context, pair, {})
        assert kept == look_up.__wrapped__(function, context, pair, {})
        assert function.get_impl_key(kept) is not None


def test_numbers_are_looked_up_once_and_nothing_else_is_kept() -> None:
    function, context = function_type(operator.add), cpu_target.typing_context
    numbers, arrays = (types.int64, types.float64), (types.float64[:], types.float64[:])
    once, again = (function.get_call_type(context, numbers, {}) for _ in range(2))
    assert again is once
    once, again = (function.get_call_type(context, arrays, {}) for _ in range(2))
    assert again is not once
    assert again == once
