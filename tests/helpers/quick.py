"""Which of many like cases quick tests play; slow tests play all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def marks(is_quick: bool) -> tuple[pytest.MarkDecorator, ...]:
    return () if is_quick else (pytest.mark.slow,)


def every_second(cases: Iterable[Any]) -> list[ParameterSet]:
    """Cases of one parameter, of which the first, the third and so on are quick."""
    return one_in(2, cases)


def one_in(count: int, cases: Iterable[Any]) -> list[ParameterSet]:
    """Cases of one parameter, of which the first, and one of `count` from there on, are quick."""
    return [pytest.param(case, marks=marks(i % count == 0)) for i, case in enumerate(cases)]
