"""The fields of a named tuple, each of one machine word, behind one pointer.

Most functions pass their arguments on with every call: nineteen words would be copied each time, one pointer is not.
The words do not change while anybody reads them. LLVM knows this, and reads each once in a function.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, register_model

from framework.compiler.record_names import short_name

_NONE: Mapping[str, int] = {}
_BYTES = ir.IntType(8).as_pointer()


class Fields(types.Type):
    """The type of a pointer to the fields of a named tuple with this name and these field types.

    `constants`: whole numbers that fields of its records hold as long as it is passed on, such as {"options.spans": 0};
    see constants.py.
    """

    def __init__(self, name: str, kinds: dict[str, Any], constants: Mapping[str, int] = _NONE) -> None:
        self.kinds, self.constants = kinds, constants
        held = short_name(f", {sorted(constants.items())}") if constants else ""
        super().__init__(name=f"Fields({name}, {tuple(kinds.values())}{held})")


@register_model(Fields)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, type_: Fields) -> None:
        super().__init__(manager, type_, _BYTES)  # type: ignore[no-untyped-call]


@infer_getattr
class _Field(AttributeTemplate):
    key = Fields

    def generic_resolve(self, value: Any, attr: str) -> Any:  # type: ignore[override]
        return value.kinds.get(attr)


@lower_getattr_generic(Fields)
def _get_field(context: Any, builder: Any, type_: Any, value: Any, name: str) -> Any:
    number = ir.Constant(ir.IntType(64), list(type_.kinds).index(name))
    words = builder.bitcast(value, context.get_value_type(type_.kinds[name]).as_pointer())
    word = builder.load(builder.gep(words, [number]))
    word.set_metadata("invariant.load", builder.module.add_metadata([]))
    return word


def fields_at(type_: Fields) -> Any:
    """A function (array of words) for compiled code that gives a pointer of that type to these words."""

    @intrinsic
    def at(typingctx: Any, words: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.bitcast(context.make_array(sig.args[0])(context, builder, args[0]).data, _BYTES)

        return type_(words), codegen

    return at
