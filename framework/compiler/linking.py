"""What becomes of inner functions in LLVM: each is lowered once, and optimised and emitted in its callers only.

numba optimises every function together with all that it calls, and emits machine code for it, before it links the
result into each of its callers, where both happens again. A function deep in a tree of calls is thus optimised and
emitted once for each function above it. Here an inner function remains as it was lowered. The function that Python
calls gathers all inner functions below it once, makes them internal, so that LLVM may drop arguments and copies that
nobody needs, and is optimised and emitted as a whole.

This replaces one step of numba's pipeline by subclasses of its own; `SUPPORTED` tells whether this numba has what they
build on. Without it, inner functions are compiled as numba compiles any function.
"""

from __future__ import annotations

from typing import Any

from numba.core import compiler, typed_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass

numba_compiler: Any = compiler
_Library: Any = JITCodeLibrary
_Lowering: Any = typed_passes.NativeLowering
SUPPORTED = hasattr(numba_compiler, "_LowerResult") and all(
    hasattr(_Library, name) for name in ("finalize", "_optimize_final_module", "_get_module_for_linking")
)
# Passes for what inner functions do not have: closures, array expressions, calls that are inlined as Python.
_NOT_NEEDED = {"InlineClosureLikes", "InlineOverloads", "NopythonRewrites", "DeadBranchPrune"}


class InnerLibrary(_Library):
    """The code of one inner function as it was lowered; what it calls is only named."""

    def finalize(self) -> None:
        """Take no more code: nothing is optimised or emitted here."""
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        return self._final_module

    def functions(self) -> list[str]:
        """The names of the functions defined here."""
        return [function.name for function in self._final_module.functions if not function.is_declaration]


class EntryLibrary(_Library):
    """The code of a function that Python calls, with all inner functions below it."""

    def finalize(self) -> None:
        """Link what is called, optimise all of it together, and emit machine code."""
        self._linking_libraries = _reached(self._linking_libraries)
        super().finalize()

    def _optimize_final_module(self) -> None:
        for library in self._linking_libraries:
            if isinstance(library, InnerLibrary):
                for name in library.functions():
                    self._final_module.get_function(name).linkage = "internal"
        super()._optimize_final_module()


def _reached(libraries: list[Any]) -> list[Any]:
    """These libraries and those that the inner ones among them call, directly or through others."""
    found: dict[Any, None] = {}
    pending = list(libraries)
    while pending:
        library = pending.pop()
        if library not in found:
            found[library] = None
            if isinstance(library, InnerLibrary):
                pending += library._linking_libraries
    return list(found)


class _Lowered(_Lowering):
    """numba's step from typed code to a library."""

    library: type

    def run_pass(self, state: Any) -> bool:
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class EntryLowering(_Lowered):
    """To a library of which machine code is made."""

    _name = "entry_lowering"
    library = EntryLibrary


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(_Lowered):
    """To a library that callers link."""

    _name = "inner_lowering"
    library = InnerLibrary

    def run_pass(self, state: Any) -> bool:
        """Lower, and make the function known to callers without asking for its address."""
        state.flags.no_compile = True
        super().run_pass(state)
        lowered, library = state.cr, state.library
        library.finalize()

        def function(*arguments: Any) -> None:
            raise TypeError(f"{lowered.fndesc.qualname} has no machine code of its own")

        state.targetctx.insert_user_function(function, lowered.fndesc, [library])
        state["cr"] = numba_compiler._LowerResult(lowered.fndesc, lowered.call_helper, cfunc=function, env=lowered.env)
        return True


class EntryCompiler(CompilerBase):
    """numba's pipeline with `EntryLowering`."""

    def define_pipelines(self) -> list[Any]:
        """The passes to run."""
        return [_pipeline(self.state, EntryLowering, set())]


class InnerCompiler(CompilerBase):
    """numba's pipeline with `InnerLowering`."""

    def define_pipelines(self) -> list[Any]:
        """The passes to run."""
        return [_pipeline(self.state, InnerLowering, _NOT_NEEDED)]


def _pipeline(state: Any, lowering: type, left_out: set[str]) -> Any:
    builder: Any = DefaultPassBuilder
    manager = builder.define_nopython_pipeline(state)
    manager.passes = [
        (lowering if step is typed_passes.NativeLowering else step, description)
        for step, description in manager.passes
        if step.__name__ not in left_out
    ]
    return manager
