"""Calls of C functions by address from compiled code, and the arrays that such functions are handed."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.experimental.function_type import _get_wrapper_address
from numba.extending import intrinsic
from numpy.typing import NDArray

_WORD = ir.IntType(64)


@functools.lru_cache(64)  # every run asks for the addresses of its policy's rules
def c_address(function: Any, signature: Any) -> int:
    """Address of the C function behind the result of `compiled(signature)`; it takes its arguments in numba's layout.

    It is valid as long as `function` lives.
    """
    return int(_get_wrapper_address(function, signature))


def caller(returned: types.Type) -> Any:
    """A function (address, argument) that calls a C function of one int64, which returns an int64 or a float64."""

    @intrinsic
    def call(typingctx: Any, address: Any, argument: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            function = ir.FunctionType(context.get_value_type(returned), [_WORD])
            return builder.call(builder.inttoptr(args[0], function.as_pointer()), [args[1]])

        return returned(types.int64, types.int64), codegen

    return call


def caller_with(signature: Any) -> Any:
    """A function (address, argument, kept) that calls the result of `c_address(_, signature)`.

    The first argument of `signature` is `argument`; the others are arrays, or tuples of arrays, whose words lie at the
    address `kept`, one behind the other, as `words_of` writes them.
    """
    others = types.Tuple(signature.args[1:])

    @intrinsic
    def call(typingctx: Any, address: Any, argument: Any, kept: Any) -> Any:
        def codegen(context: Any, builder: Any, own: Any, args: Any) -> Any:
            value_type = context.get_value_type(others)
            packed = builder.load(builder.inttoptr(args[2], value_type.as_pointer()))
            handed = cgutils.unpack_tuple(builder, packed, len(others))
            kinds = [context.get_value_type(kind) for kind in signature.args]
            function = ir.FunctionType(context.get_value_type(signature.return_type), kinds)
            return builder.call(builder.inttoptr(args[0], function.as_pointer()), [args[1], *handed])

        return signature.return_type(types.int64, types.int64, types.int64), codegen

    return call


def words_of(array: NDArray[Any]) -> list[int]:
    """An array of one dimension as numba lays it out: no count of references, no owner, size, place, shape."""
    data = int(array.ctypes.data)
    return [0, 0, array.size, array.itemsize, data, *array.shape, *array.strides]
