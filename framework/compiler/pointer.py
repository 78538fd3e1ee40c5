"""Where an array begins, as a value of one machine word, for compiled code that passes many arrays to many functions.

numba passes an array as seven words, and a call that hands on nine arrays spends more time copying them than most
kernels compute. `pointer(array)` can be indexed and assigned to like the array, knows no length, keeps nothing alive,
and exists in compiled code only.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic, lower_setattr_generic
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model
from numba.np.arrayobj import record_getattr, record_setattr
from numba.np.numpy_support import from_dtype

from framework.compiler.dispatchers import numba_config

_BYTES = ir.IntType(8).as_pointer()
_FIRST = {"target": "cpu"}  # numba asks what is made for this target before what is made for all


class Pointer(types.Type):
    """The type of a pointer to consecutive elements: numbers, or records of one layout."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"Pointer({dtype})")


@register_model(Pointer)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, type_: Pointer) -> None:
        super().__init__(manager, type_, _BYTES)  # type: ignore[no-untyped-call]


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    metadata = _FIRST

    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Pointer) and isinstance(args[1], types.Integer):
            return signature(args[0].dtype, args[0], types.intp)
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    metadata = _FIRST

    def generic(self, args: Any, kws: Any) -> Any:
        if isinstance(args[0], Pointer) and isinstance(args[1], types.Integer):
            return signature(types.none, args[0], types.intp, args[0].dtype)
        return None


@lower_builtin(operator.getitem, Pointer, types.Integer)
def _get_item(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    dtype = sig.args[0].dtype
    element = _element(context, builder, dtype, *args)
    return element if isinstance(dtype, types.Record) else context.unpack_value(builder, dtype, element)


@lower_builtin(operator.setitem, Pointer, types.Integer, types.Any)
def _set_item(context: Any, builder: Any, sig: Any, args: Any) -> None:
    dtype = sig.args[0].dtype
    context.pack_value(builder, dtype, args[2], _element(context, builder, dtype, args[0], args[1]))


def _element(context: Any, builder: Any, dtype: Any, pointer: Any, index: Any) -> Any:
    native = context.get_data_type(dtype).as_pointer()
    if isinstance(dtype, types.Record):
        offset = builder.mul(index, ir.Constant(index.type, dtype.size))
        return builder.bitcast(builder.gep(pointer, [offset]), native)
    return builder.gep(builder.bitcast(pointer, native), [index])


@intrinsic
def _pointer(typingctx: Any, array: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(context.make_array(sig.args[0])(context, builder, args[0]).data, _BYTES)

    return Pointer(array.dtype)(array), codegen


def _itself(array: Any) -> Any:
    return array


class RecordPointer(types.Type):
    """The type of a pointer to one record, whose fields are read and written as attributes."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(name=f"RecordPointer({dtype})")


@register_model(RecordPointer)
class _RecordModel(models.PrimitiveModel):
    def __init__(self, manager: Any, type_: RecordPointer) -> None:
        super().__init__(manager, type_, _BYTES)  # type: ignore[no-untyped-call]


@infer_getattr
class _Field(AttributeTemplate):
    key = RecordPointer

    def generic_resolve(self, value: Any, attr: str) -> Any:  # type: ignore[override]
        return value.dtype.typeof(attr) if attr in value.dtype.fields else None


@lower_getattr_generic(RecordPointer)
def _get_field(context: Any, builder: Any, type_: Any, value: Any, name: str) -> Any:
    return record_getattr(context, builder, type_.dtype, _record(context, builder, type_.dtype, value), name)


@lower_setattr_generic(RecordPointer)
def _set_field(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
    dtype = sig.args[0].dtype
    own = signature(sig.return_type, dtype, sig.args[1])
    record_setattr(context, builder, own, [_record(context, builder, dtype, args[0]), args[1]], name)


def _record(context: Any, builder: Any, dtype: Any, pointed: Any) -> Any:
    return builder.bitcast(pointed, context.get_data_type(dtype).as_pointer())


@intrinsic
def _only(typingctx: Any, array: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(context.make_array(sig.args[0])(context, builder, args[0]).data, _BYTES)

    return RecordPointer(array.dtype)(array), codegen


def _first(array: Any) -> Any:
    return array[0]


only: Any = _first if numba_config.DISABLE_JIT else _only
pointer: Any = _itself if numba_config.DISABLE_JIT else _pointer


# --- what lies at an address that Python holds as a number -----------------------------------------------------------


def pointer_at(dtype: Any) -> Any:
    """A function (address) for compiled code that gives `pointer` of an array of that type which begins there."""
    return _at(Pointer(from_dtype(dtype)))


def only_at(dtype: Any) -> Any:
    """The same for `only`: the one record of that type which lies there."""
    return _at(RecordPointer(from_dtype(dtype)))


def _at(kind: types.Type) -> Any:
    @intrinsic
    def at(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], _BYTES)

        return kind(types.int64), codegen

    return at
