"""What compiled code expects of a condition."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

_config: Any = config  # numba has no types

if _config.DISABLE_JIT:

    def unlikely(condition: Any) -> bool:
        """`condition`, which compiled code expects to be false: what it guards costs the usual path nothing."""
        return bool(condition)

else:

    @intrinsic
    def unlikely(typingctx: Any, condition: Any) -> Any:
        """`condition`, which compiled code expects to be false: what it guards costs the usual path nothing."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            truth = context.cast(builder, args[0], signature.args[0], types.boolean)
            bit = ir.IntType(1)
            function = ir.FunctionType(bit, [bit, bit])
            expect = cgutils.get_or_insert_function(builder.module, function, "llvm.expect.i1")
            return builder.call(expect, [truth, ir.Constant(bit, 0)])

        return types.boolean(condition), codegen
