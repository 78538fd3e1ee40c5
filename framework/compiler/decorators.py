"""Decorators of functions that numba compiles."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from numba.core import sigutils
from numba.core.typing.templates import Signature

from framework.compiler.dispatchers import Function, Inner, Outermost, numba_config
from framework.compiler.expected import unlikely as unlikely
from framework.compiler.operators import keep_types_of_operators
from framework.compiler.record_names import shorten_record_names

F = TypeVar("F", bound=Callable[..., Any])
Signatures = str | Signature | list[str | Signature]

_OPTIONS: dict[str, Any] = {"nopython": True, "nogil": True, "error_model": "numpy", "boundscheck": False}

shorten_record_names()
keep_types_of_operators()


@overload
def compiled(target: F, /) -> F: ...


@overload
def compiled(target: Signatures, /) -> Callable[[F], F]: ...


def compiled(target: Callable[..., Any] | Signatures, /) -> Any:
    """Compile with numba when the function is first needed: `@compiled`, or `@compiled(signature)` for that one alone.

    A signature is anything `numba.njit` takes: a string, a signature object, or a list of them. Division follows numpy
    (no ZeroDivisionError), indices are not checked, the GIL is released, and no floating-point shortcut is taken, so
    results are those of the written expression. With NUMBA_DISABLE_JIT=1 the function is returned as it is.
    """
    if inspect.isfunction(target):
        return _function(target, [])
    signatures = list(target) if isinstance(target, list) else [target]
    is_signature: Callable[[Any], bool] = sigutils.is_signature
    if not all(map(is_signature, signatures)):
        raise TypeError(f"compiled: {target!r} is neither a function nor a signature")
    return lambda function: _function(function, signatures)


def entry(signature: Any) -> Callable[[F], F]:
    """Compile a function through which Python alone enters many inner ones, for one signature and at its first call."""
    return lambda function: _declared(function, [signature], Outermost, {"_nrt": False})


def _function(function: F, signatures: list[Any]) -> F:
    return _declared(function, signatures, Function, {})


def _declared(function: F, signatures: list[Any], kind: type[Function], options: dict[str, Any]) -> F:
    if numba_config.DISABLE_JIT:
        return function
    dispatcher: Any = kind(function, targetoptions=_OPTIONS | options)
    dispatcher.declare(signatures)
    return cast(F, dispatcher)


def prepare(function: Callable[..., Any]) -> None:
    """Compile or load now what a function with declared signatures would at its first call."""
    if isinstance(function, Function):
        function.bind()


def inner(function: F) -> F:
    """Compile a function that only compiled code calls and that allocates nothing: no wrappers, no reference counts.

    Its machine code becomes part of its callers'. Its parameters are annotated: `int`, `float` and `bool` are int64,
    float64 and boolean whatever a caller passes, so it is compiled once.
    """
    if numba_config.DISABLE_JIT:
        return function
    alone = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, Inner(function, targetoptions=_OPTIONS | alone))


def either(plain: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """Mark a function as `inner` does if Python calls it too: Python gets `plain`, or the function as it is written."""

    def declare(function: F) -> F:
        if numba_config.DISABLE_JIT:
            return function if plain is None else cast(F, plain)
        declared: Any = inner(function)
        declared.plain = plain or function
        return cast(F, declared)

    return declare
