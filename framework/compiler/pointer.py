"""The address of an array as a value of one machine word, for compiled code that passes many arrays to many functions.

numba passes an array as seven words, and a call with nine arrays spends more time on copying them than most kernels
compute. `pointer(array)` can be indexed and assigned to like the array, knows no length, keeps nothing alive, and
exists in compiled code only. `only(array)` is a pointer to the one record of the array.

Accesses are marked by what they touch, a field of a record or numbers of one type, so LLVM knows that a store into one
leaves all others unchanged. Memory that compiled code reaches through pointers must therefore have one layout.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic, lower_setattr_generic
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer,
    infer_getattr,
    infer_global,
    signature,
)
from numba.extending import intrinsic, lower_builtin, register_model

from framework.compiler.dispatchers import numba_config

_BYTES = ir.IntType(8).as_pointer()
_FIRST = {"target": "cpu"}  # numba looks for this target's implementations before general ones


class _Place(NamedTuple):
    """The place of a value of that type, and the mark of its accesses."""

    kind: Any
    address: Any
    mark: str
    alignment: int | None = None  # None: the usual one of its type


def _load(context: Any, builder: Any, place: _Place) -> Any:
    data = builder.load(place.address, align=place.alignment)
    data.set_metadata("tbaa", _mark(builder.module, place.mark))
    return context.data_model_manager[place.kind].from_data(builder, data)


def _store(context: Any, builder: Any, place: _Place, value: Any) -> None:
    data = context.data_model_manager[place.kind].as_data(builder, value)
    stored = builder.store(data, place.address, align=place.alignment)
    stored.set_metadata("tbaa", _mark(builder.module, place.mark))


def _mark(module: Any, name: str) -> Any:
    """The mark of that name: accesses with different marks never touch the same memory."""
    root = module.add_metadata(["servelab"])
    kind = module.add_metadata([name, root, ir.Constant(ir.IntType(64), 0)])
    return module.add_metadata([kind, kind, ir.Constant(ir.IntType(64), 0)])


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
            dtype = args[0].dtype
            element = RecordPointer(dtype) if isinstance(dtype, types.Record) else dtype
            return signature(element, args[0], types.intp)
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
    dtype, element = sig.args[0].dtype, _element(context, builder, sig.args[0].dtype, *args)
    if isinstance(dtype, types.Record):
        return builder.bitcast(element, _BYTES)
    return _load(context, builder, _Place(dtype, element, str(dtype)))


@lower_builtin(operator.setitem, Pointer, types.Integer, types.Any)
def _set_item(context: Any, builder: Any, sig: Any, args: Any) -> None:
    dtype, element = sig.args[0].dtype, _element(context, builder, sig.args[0].dtype, *args[:2])
    _store(context, builder, _Place(dtype, element, str(dtype)), args[2])


def _element(context: Any, builder: Any, dtype: Any, pointer: Any, index: Any) -> Any:
    native = context.get_data_type(dtype).as_pointer()
    if isinstance(dtype, types.Record):
        offset = builder.mul(index, ir.Constant(index.type, dtype.size))
        return builder.bitcast(builder.gep(pointer, [offset]), native)
    return builder.gep(builder.bitcast(pointer, native), [index])


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


@infer
class _FieldByName(AbstractTemplate):
    key = "static_getitem"

    def generic(self, args: Any, kws: Any) -> Any:
        record, name = args
        if isinstance(record, RecordPointer) and isinstance(name, str):
            return signature(record.dtype.typeof(name), *args)
        return None


@lower_builtin("static_getitem", RecordPointer, types.StringLiteral)
def _get_field_by_name(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return _get_field(context, builder, sig.args[0], args[0], args[1])


@lower_getattr_generic(RecordPointer)
def _get_field(context: Any, builder: Any, type_: Any, value: Any, name: str) -> Any:
    return _load(context, builder, _field(context, builder, type_.dtype, value, name))


@lower_setattr_generic(RecordPointer)
def _set_field(context: Any, builder: Any, sig: Any, args: Any, name: str) -> None:
    place = _field(context, builder, sig.args[0].dtype, args[0], name)
    _store(context, builder, place, context.cast(builder, args[1], sig.args[1], place.kind))


def _field(context: Any, builder: Any, record: Any, value: Any, name: str) -> _Place:
    kind = record.typeof(name)
    begin = builder.bitcast(value, context.get_data_type(record).as_pointer())
    address = cgutils.get_record_member(builder, begin, record.offset(name), context.get_data_type(kind))
    return _Place(kind, address, f"{record.name}.{name}", None if record.aligned else 1)


@intrinsic
def _pointer(typingctx: Any, array: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(context.make_array(sig.args[0])(context, builder, args[0]).data, _BYTES)

    return Pointer(array.dtype)(array), codegen


@intrinsic
def _only(typingctx: Any, array: Any) -> Any:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(context.make_array(sig.args[0])(context, builder, args[0]).data, _BYTES)

    return RecordPointer(array.dtype)(array), codegen


def _itself(array: Any) -> Any:
    return array


def _first(array: Any) -> Any:
    return array[0]


only: Any = _first if numba_config.DISABLE_JIT else _only
pointer: Any = _itself if numba_config.DISABLE_JIT else _pointer
