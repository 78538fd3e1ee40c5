"""Compiled functions that Python calls: for which types and when they are compiled, and what their arithmetic is."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import event

from framework.compiler.decorators import compiled, entry, prepare
from tests.compiler.packages import finish, start, write_project
from tests.conftest import ROOT

# What is compiled by importing the engine, and by nothing but that.
IMPORT = """
import json
from numba.core import event

compiled = []

class Seen(event.Listener):
    def on_start(self, happened):
        compiled.append(happened.data["dispatcher"].py_func.__qualname__)

    def on_end(self, happened):
        pass

event.register("numba:compile", Seen())
from framework.engine.loop import run
from framework.simulate import simulate
import policies.ares, policies.mooncake, policies.nexus

print(json.dumps({"compiled": compiled, "bound": len(run.signatures)}))
"""
numba_config: Any = numba.config
with_jit = pytest.mark.skipif(bool(numba_config.DISABLE_JIT), reason="NUMBA_DISABLE_JIT is set")


class Seen(event.Listener):
    """The names of the functions that are compiled."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_start(self, event: Any) -> None:
        self.names.append(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: Any) -> None:
        pass


@with_jit
def test_a_declared_signature_is_compiled_at_the_first_call_and_alone() -> None:
    @compiled("float64(int64)")
    def half(x: int) -> float:
        return x / 2

    dispatcher: Any = half
    assert dispatcher.signatures == []
    assert half(3) == 1.5
    assert [str(signature) for signature in dispatcher.signatures] == ["(int64,)"]
    with pytest.raises(TypeError, match="No matching definition"):
        dispatcher(np.zeros(2))


@with_jit
def test_a_wrong_first_call_is_refused_too() -> None:
    @compiled("float64(int64)")
    def half(x: int) -> float:
        return x / 2

    dispatcher: Any = half
    with pytest.raises(TypeError, match="No matching definition"):
        dispatcher(np.zeros(2))


@with_jit
def test_a_compiled_caller_and_a_value_have_the_declared_signature() -> None:
    @compiled("int64(int64)")
    def double(x: int) -> int:
        return 2 * x

    @compiled
    def caller(x: int) -> int:
        return double(x)

    @compiled(numba.types.int64(numba.types.FunctionType(numba.types.int64(numba.types.int64)), numba.types.int64))
    def call(function: Any, x: int) -> int:
        return function(x)

    assert call(double, 4) == 8
    dispatcher: Any = caller
    assert dispatcher(np.int32(3)) == 6
    dispatcher = double
    assert len(dispatcher.signatures) == 1


@with_jit
def test_importing_the_engine_compiles_nothing() -> None:
    assert finish(start(ROOT / "framework", IMPORT)) == {"compiled": [], "bound": 0}


@with_jit
def test_threads_that_call_first_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))  # nothing of an earlier run

    @entry("int64(int64)")
    def next_of(x: int) -> int:
        return x + 1

    seen = Seen()
    with event.install_listener("numba:compile", seen), ThreadPoolExecutor(4) as pool:
        assert list(pool.map(next_of, range(8))) == list(range(1, 9))
    assert seen.names == ["next_of"]


@with_jit
def test_prepared_functions_compile_no_more() -> None:
    @entry("int64(int64)")
    def next_of(x: int) -> int:
        return x + 1

    prepare(next_of)
    seen = Seen()
    with event.install_listener("numba:compile", seen):
        assert next_of(1) == 2
    assert seen.names == []
    prepare(len)  # what is not compiled is ready


@with_jit
def test_functions_go_to_other_processes_with_their_signatures() -> None:
    @compiled("int64(int64)")
    def double(x: int) -> int:
        return 2 * x

    def send(function: Any) -> Any:
        return pickle.loads(pickle.dumps(function))

    sent = send(double)
    assert sent(4) == 8
    with pytest.raises(TypeError):
        sent(np.zeros(2))


@with_jit
def test_several_signatures() -> None:
    @compiled(["int64(int64)", "float64(float64)"])
    def double(x: float) -> float:
        return 2 * x

    dispatcher: Any = double
    assert (double(3), double(1.5)) == (6, 3.0)
    assert len(dispatcher.signatures) == 2


def test_neither_function_nor_signature_is_refused() -> None:
    with pytest.raises(TypeError, match="neither a function nor a signature"):
        compiled(3)  # type: ignore[call-overload]


@with_jit
def test_arithmetic_is_that_of_the_written_expression() -> None:
    @compiled
    def cancelled(small: float, large: float) -> float:
        return (small + large) - large

    @compiled
    def quotient(x: float, y: float) -> float:
        return x / y

    assert cancelled(1.0, 2.0**60) == 0.0  # reassociation would return 1
    assert quotient(1.0, 0.0) == np.inf
    assert np.isnan(quotient(0.0, 0.0))


def test_threads_compile_side_by_side() -> None:
    def build(number: int) -> Any:
        @compiled
        def add(x: int) -> int:
            return x + number

        return add(1)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(4))) == [1, 2, 3, 4]


def test_disabled_compilation_leaves_functions_alone(tmp_path: Path) -> None:
    package = write_project(tmp_path / "source")
    code = "import json, types\nfrom framework.part.outer import outer\n"
    code += "print(json.dumps([isinstance(outer, types.FunctionType), outer(1)]))"
    assert finish(start(package, code, NUMBA_DISABLE_JIT="1")) == [True, 20]
