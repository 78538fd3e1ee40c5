"""Inner functions: compiled once, whatever they are called with, and optimised within their callers only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import codegen
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

from framework.compiler import linking
from framework.compiler.decorators import compiled, either, entry, inner, prepare
from framework.compiler.record_names import short_name
from framework.engine.loop import run

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="NUMBA_DISABLE_JIT is set")  # type: ignore[attr-defined]


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The libraries that LLVM optimises and emits, as that happens; Numba's runtime, one for each process, is there."""
    rtsys.initialize(cpu_target.target_context)
    names: list[str] = []
    library: Any = codegen.CPUCodeLibrary
    optimise = library._optimize_final_module

    def spy(self: Any) -> None:
        names.append(self.name.rpartition(".")[2])
        optimise(self)

    monkeypatch.setattr(library, "_optimize_final_module", spy)
    return names


def chain() -> tuple[Callable[..., int], list[Any]]:
    """A function of Python and the inner ones below it, each of which calls all those below."""

    @inner
    def lowest(x: int) -> int:
        return x + 1

    @inner
    def middle(x: int) -> int:
        return lowest(x) + lowest(2 * x)

    @inner
    def highest(x: int) -> int:
        return lowest(x) + middle(x)

    @compiled
    def outermost(x: int) -> int:
        return highest(x) + middle(x) + lowest(x)

    return outermost, [lowest, middle, highest]


def test_a_chain_of_functions_is_optimised_once(optimised: list[str]) -> None:
    outermost, _ = chain()
    assert outermost(3) == 15 + 11 + 4
    assert optimised == ["outermost"]


def test_this_numba_is_supported() -> None:
    assert linking.SUPPORTED


def test_without_what_linking_needs_results_are_the_same(optimised: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, "SUPPORTED", False)
    outermost, parts = chain()
    assert outermost(3) == 15 + 11 + 4
    assert optimised == ["lowest", "middle", "highest", "outermost"]
    assert [len(part.overloads) for part in parts] == [1, 1, 1]


def test_literals_and_narrow_integers_share_one_compilation() -> None:
    @inner
    def scaled(x: int, factor: float, negative: bool, shift: int = 10) -> float:
        return (-x if negative else x) * factor + shift

    @compiled
    def caller(narrow: np.ndarray, wide: np.ndarray, flag: bool) -> float:
        few = scaled(3, 2, True) + scaled(narrow[0], 0.5, flag) + scaled(wide[0], wide[0], wide[0] > 1, 4)
        return few + scaled(flag, 1.0, False, shift=narrow[0])

    assert caller(np.array([6], np.int8), np.array([5]), False) == (-6 + 10) + (3 + 10) + (-25 + 4) + (0 + 6)
    part: Any = scaled
    assert [str(kinds) for kinds in part.overloads] == ["(int64, float64, bool, int64)"]


def test_other_parameters_have_the_type_that_is_passed() -> None:
    @inner
    def first(values: np.ndarray, at: int) -> Any:
        return values[at]

    @compiled
    def caller(floats: np.ndarray, integers: np.ndarray) -> float:
        return first(floats, 0) + first(integers, 0)

    assert caller(np.array([0.5]), np.array([2])) == 2.5
    part: Any = first
    assert len(part.overloads) == 2


@pytest.mark.parametrize(("kind", "passed"), [("int", 1.5), ("bool", 2), ("float", np.zeros(1))])
def test_what_a_parameter_cannot_hold_is_refused(kind: str, passed: Any) -> None:
    def part(x: Any) -> Any:
        return x

    part.__annotations__["x"] = kind
    part = inner(part)

    @compiled
    def caller(x: Any) -> Any:
        return part(x)

    with pytest.raises(TypeError, match="part: x is declared"):
        caller(passed)


def test_a_parameter_without_an_annotation_is_refused() -> None:
    with pytest.raises(TypeError, match="unannotated: x has no annotation"):

        @inner
        def unannotated(x):
            return x


def test_python_cannot_call_an_inner_function() -> None:
    _, (lowest, *_) = chain()
    with pytest.raises(TypeError, match="lowest is a part of its compiled callers"):
        lowest(1)


def test_python_may_call_what_has_something_for_it() -> None:
    @either()
    def doubled(x: int) -> int:
        return 2 * x

    @either(lambda x: 100 * x)
    def as_told(x: int) -> int:
        return doubled(x) + 1

    @compiled
    def caller(x: int) -> int:
        return doubled(x) + as_told(x)

    assert (doubled(3), as_told(3), caller(3)) == (6, 300, 13)


def test_compiled_code_cannot_call_what_is_for_python_alone() -> None:
    @entry(numba.int64(numba.int64))
    def outermost(x: int) -> int:
        return x + 1

    @compiled
    def caller(x: int) -> int:
        return outermost(x)

    assert outermost(1) == 2
    with pytest.raises(TypeError, match="outermost is for Python alone"):
        caller(1)


def test_the_cache_of_the_engine_is_small() -> None:
    prepare(run)
    dispatcher: Any = run
    assert dispatcher.stats.cache_path is not None
    largest = max(file.stat().st_size for file in Path(dispatcher.stats.cache_path).glob("loop.run*.nbc"))
    assert largest < 2.2e6


def test_record_types_have_short_names_that_tell_them_apart() -> None:
    fields = [(f"field_{number}", "f8") for number in range(100)]
    one, same, other = (numba.typeof(np.zeros(1, np.dtype(part))) for part in (fields, fields, fields[:-1]))
    assert one == same
    assert one != other
    assert len(str(one.dtype)) < 60
    assert short_name("Record(x)") == "Record(x)"
