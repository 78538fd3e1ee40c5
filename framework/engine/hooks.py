"""How decisions enter the compiled engine: first-class functions, one signature for decisions and one for keys.

A compiled hook is a function of (request or instance, view, params, state). A plain-Python hook is called through its C
address, which costs a fraction of a microsecond; it reads the same arrays through views made once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from framework.codes import ADMIT, BATCHING, FETCH_PREFIX, ON_TICK, PRIORITIZE, ROUTE_DECODE, ROUTE_PREFILL, SPLIT_AT
from framework.compiler.decorators import compiled, numba_config
from framework.engine.state import ACTION, INSTANCE, REQUEST, SIM, View

DECISION_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
KEY_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)

_VIEW = numba.typeof(
    View(np.zeros(1, SIM), np.zeros(1, REQUEST), np.zeros(1, INSTANCE), np.zeros(1, np.int64), np.zeros(1, ACTION))
)
_FLOATS = types.float64[::1]
DECISION = types.int64(types.int64, _VIEW, _FLOATS, _FLOATS)
KEY = types.float64(types.int64, _VIEW, _FLOATS, _FLOATS)

# What a hook answers when the policy raised: the engine stops and the exception is raised again outside.
RAISED = -(2**62)
# What `route_decode` answers to turn a request away: this less the number of its reason.
REFUSED = -(2**40)


class Hooks(NamedTuple):
    """The decision points of one run and what they are handed."""

    admit: Any
    route_prefill: Any
    route_decode: Any
    prioritize: Any
    batching: Any
    on_tick: Any
    split_at: Any
    fetch_prefix: Any
    seen: View
    params: Any
    state: Any


def _caller(returned: types.Type, native: ir.Type) -> Any:
    """A function (address, argument) that calls a C function of one int64 from compiled code."""

    @intrinsic
    def call(typingctx: Any, address: Any, argument: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = ir.FunctionType(native, [ir.IntType(64)])
            return builder.call(builder.inttoptr(args[0], function.as_pointer()), [args[1]])

        return returned(types.int64, types.int64), codegen

    return call


if numba_config.DISABLE_JIT:

    def _call_decision(address: int, argument: int) -> int:
        return int(DECISION_CALLBACK(int(address))(int(argument)))

    def _call_key(address: int, argument: int) -> float:
        return float(KEY_CALLBACK(int(address))(int(argument)))

else:
    _call_decision = _caller(types.int64, ir.IntType(64))
    _call_key = _caller(types.float64, ir.DoubleType())


@compiled(DECISION)
def python_admit(r: int, view: View, params: np.ndarray, state: np.ndarray) -> int:
    """`admit` as a method of plain Python."""
    return _call_decision(view.callbacks[ADMIT], r)


@compiled(DECISION)
def python_route_prefill(r: int, view: View, params: np.ndarray, state: np.ndarray) -> int:
    """`route_prefill` as a method of plain Python."""
    return _call_decision(view.callbacks[ROUTE_PREFILL], r)


@compiled(DECISION)
def python_route_decode(r: int, view: View, params: np.ndarray, state: np.ndarray) -> int:
    """`route_decode` as a method of plain Python."""
    return _call_decision(view.callbacks[ROUTE_DECODE], r)


@compiled(KEY)
def python_prioritize(r: int, view: View, params: np.ndarray, state: np.ndarray) -> float:
    """`prioritize` as a method of plain Python."""
    return _call_key(view.callbacks[PRIORITIZE], r)


@compiled(DECISION)
def python_batching(i: int, view: View, params: np.ndarray, state: np.ndarray) -> int:
    """`batching` as a method of plain Python."""
    return _call_decision(view.callbacks[BATCHING], i)


@compiled(DECISION)
def python_on_tick(tick: int, view: View, params: np.ndarray, state: np.ndarray) -> int:
    """`on_tick` as a method of plain Python."""
    return _call_decision(view.callbacks[ON_TICK], tick)


@compiled(DECISION)
def python_split_at(r: int, view: View, params: np.ndarray, state: np.ndarray) -> int:
    """`split_at` as a method of plain Python."""
    return _call_decision(view.callbacks[SPLIT_AT], r)


@compiled(DECISION)
def python_fetch_prefix(r: int, view: View, params: np.ndarray, state: np.ndarray) -> int:
    """`fetch_prefix` as a method of plain Python."""
    return _call_decision(view.callbacks[FETCH_PREFIX], r)


PYTHON_HOOKS: tuple[Callable[..., Any], ...] = (
    python_admit,
    python_route_prefill,
    python_route_decode,
    python_prioritize,
    python_batching,
    python_on_tick,
    python_split_at,
    python_fetch_prefix,
)
