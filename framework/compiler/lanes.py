"""Operations on many integers at once in vector registers, which numba does not use by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from framework.compiler.dispatchers import numba_config

MANY = 64  # values, of each of which one bit remains
_LANES = 16  # lanes of 32 bits in the widest register
_WIDE, _PART, _WORD = ir.IntType(64), ir.IntType(_LANES), ir.IntType(32)
_VECTOR = ir.VectorType(_WORD, _LANES)


class Lanes:
    """Unsigned 32-bit integers, side by side, in a function that is being compiled; operators append code to it."""

    def __init__(self, builder: Any, value: Any) -> None:
        self._builder, self.value = builder, value

    def __xor__(self, other: Lanes) -> Lanes:
        return Lanes(self._builder, self._builder.xor(self.value, other.value))

    def __rshift__(self, bits: int) -> Lanes:
        return Lanes(self._builder, self._builder.lshr(self.value, _all(bits)))

    def __mul__(self, factor: int) -> Lanes:
        return Lanes(self._builder, self._builder.mul(self.value, _all(factor)))

    def __and__(self, mask: int) -> Lanes:
        return Lanes(self._builder, self._builder.and_(self.value, _all(mask)))


def _all(value: int) -> Any:
    return ir.Constant(_VECTOR, [ir.Constant(_WORD, value)] * _LANES)


def _spread(builder: Any, number: Any) -> Any:
    """The low 32 bits of an int64 in every lane."""
    first = builder.insert_element(
        ir.Constant(_VECTOR, ir.Undefined), builder.trunc(number, _WORD), ir.Constant(_WORD, 0)
    )
    return builder.shuffle_vector(
        first, ir.Constant(_VECTOR, ir.Undefined), ir.Constant(_VECTOR, [ir.Constant(_WORD, 0)] * _LANES)
    )


def bits_of(value: Callable[[Any, Any], Any]) -> Callable[[int, int, int], int]:
    """A function (own, first, most) for compiled code: bit t of its result, t < MANY, says whether `value(own, first +
    t) <= most`.

    `value` computes a 32-bit number from two by the operators of `Lanes`, which are those of int, too.
    """
    if numba_config.DISABLE_JIT:
        return lambda own, first, most: _plain_bits(value, int(own), int(first), int(most))

    @intrinsic
    def bits(typingctx: Any, own: Any, first: Any, most: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            numbers, limit = Lanes(builder, _spread(builder, args[0])), _spread(builder, args[2])
            begin, found = _spread(builder, args[1]), ir.Constant(_WIDE, 0)
            for at in range(0, MANY, _LANES):
                steps = ir.Constant(_VECTOR, [ir.Constant(_WORD, at + k) for k in range(_LANES)])
                values = value(numbers, Lanes(builder, builder.add(begin, steps))).value
                mask = builder.bitcast(builder.icmp_unsigned("<=", values, limit), _PART)
                found = builder.or_(found, builder.shl(builder.zext(mask, _WIDE), ir.Constant(_WIDE, at)))
            return found

        return types.int64(types.int64, types.int64, types.int64), codegen

    function: Any = bits
    return cast("Callable[[int, int, int], int]", function)


def _plain_bits(value: Callable[[int, int], int], own: int, first: int, most: int) -> int:
    """The same as an int64, whose highest bit is its sign."""
    found = sum((value(own, first + t) <= most) << t for t in range(MANY))
    return found - (1 << MANY) if found >> (MANY - 1) else found


if numba_config.DISABLE_JIT:

    def leading_ones(bits: int) -> int:
        """The number of set bits, from the lowest on, before the first that is not set."""
        count = 0
        while int(bits) >> count & 1:
            count += 1
        return count

else:

    @intrinsic
    def leading_ones(typingctx: Any, bits: Any) -> Any:
        """The number of set bits, from the lowest on, before the first that is not set."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.cttz(builder.not_(args[0]), ir.Constant(ir.IntType(1), 0))

        return types.int64(types.int64), codegen
