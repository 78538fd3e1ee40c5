"""Code for runs in which some fields never change: what these rule out is not compiled.

A function that is handed `Fields` with constants takes each of them as a number. Branches that this decides are cut off
before types are inferred, so that what only they call is not even read. Fields are found by how they are written:
`s.options.spans`, or `inst.group` after `inst = s.instances[i]`. Where a name has several values, nothing is folded.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from numba import types
from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.ir_utils import build_definitions

from framework.compiler.expected import unlikely
from framework.compiler.fields import Fields

numba_ir: Any = ir
cfg_of: Any = compute_cfg_from_blocks
definitions_of: Any = build_definitions
_Pass: Any = FunctionPass
_COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.ge, operator.gt)
_TRUTHS = (bool, unlikely)  # functions of one argument that return its truth


@register_pass(mutates_CFG=True, analysis_only=False)
class FoldConstants(_Pass):
    """The step that cuts off what constant fields rule out."""

    _name = "fold_constants"

    def __init__(self) -> None:
        _Pass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Fold until nothing changes: a name that has one value left may decide further branches."""
        handed = {
            name: kind
            for name, kind in zip(state.func_id.arg_names, state.args, strict=True)
            if isinstance(kind, Fields) and kind.constants
        }
        changed = False
        while handed and _fold(state.func_ir, handed):
            changed = True
        return changed


def _fold(code: Any, handed: Mapping[str, Fields]) -> bool:
    """Fold once; whether a branch was decided."""
    values, decided = _Values(code._definitions, handed), False
    for block in code.blocks.values():
        for statement in block.find_insts(numba_ir.Assign):
            value = values.of(statement.target)
            if value is not None and isinstance(statement.value, numba_ir.Expr):
                statement.value = numba_ir.Const(value, statement.loc)
        end = block.body[-1]
        taken = values.of(end.cond) if isinstance(end, numba_ir.Branch) else None
        if taken is not None:
            block.body[-1] = numba_ir.Jump(end.truebr if taken else end.falsebr, end.loc)
            decided = True
    if decided:
        for label in cfg_of(code.blocks).dead_nodes():
            del code.blocks[label]
    code._definitions = definitions_of(code.blocks)
    return decided


class _Values:
    """The values of variables that are known, from the definitions of a function that is handed these fields."""

    def __init__(self, definitions: Mapping[str, list[Any]], handed: Mapping[str, Fields]) -> None:
        self._definitions, self._handed = definitions, handed

    def of(self, variable: Any) -> Any:
        """The value of a variable, None: it is not known."""
        found = self._only(variable)
        if isinstance(found, numba_ir.Var):
            return self.of(found)
        if isinstance(found, (numba_ir.Const, numba_ir.Global, numba_ir.FreeVar)):
            return found.value if isinstance(found.value, (bool, int, float)) else None
        return self._result(found) if isinstance(found, numba_ir.Expr) else None

    def _result(self, expression: Any) -> Any:
        if expression.op == "getattr":
            return self._field(expression)
        if expression.op == "unary" and expression.fn is operator.not_:
            value = self.of(expression.value)
            return None if value is None else not value
        if expression.op == "binop" and expression.fn in _COMPARISONS:
            left, right = self.of(expression.lhs), self.of(expression.rhs)
            return None if left is None or right is None else expression.fn(left, right)
        if expression.op == "call" and getattr(self._only(expression.func), "value", None) in _TRUTHS:
            value = self.of(expression.args[0])
            return None if value is None else bool(value)
        return None

    def _field(self, expression: Any) -> Any:
        """The value, of its type, of a field that is constant, if this reads one."""
        record = self._record(expression.value)
        if record is None:
            return None
        fields, name = record
        value = fields.constants.get(f"{name}.{expression.attr}")
        is_truth = value is not None and isinstance(fields.kinds[name].dtype.typeof(expression.attr), types.Boolean)
        return bool(value) if is_truth else value

    def _record(self, variable: Any) -> tuple[Fields, str] | None:
        """Which of the fields of a function's argument this is, or has this as an element."""
        found = self._only(variable)
        if isinstance(found, numba_ir.Var):
            return self._record(found)
        if not isinstance(found, numba_ir.Expr):
            return None
        if found.op in ("getitem", "static_getitem"):
            return self._record(found.value)
        fields = self._argument(found.value) if found.op == "getattr" else None
        return None if fields is None else (fields, found.attr)

    def _argument(self, variable: Any) -> Fields | None:
        found = self._only(variable)
        return self._handed.get(found.name) if isinstance(found, numba_ir.Arg) else None

    def _only(self, variable: Any) -> Any:
        """What a variable is defined as, None: it is so in several places."""
        defined = self._definitions.get(variable.name, ())
        return defined[0] if len(defined) == 1 else None
