"""How inner functions become machine code: each is lowered once, and optimised and emitted within its callers only.

numba optimises every function together with all that it calls and emits machine code for it, and then links it into
each of its callers, where both happen again: a function deep in a tree of calls is optimised and emitted once for each
function above it. Here an inner function stays as it was lowered. The function that Python calls gathers all inner
functions below it, once each, makes them internal, and is optimised and emitted as a whole. That they are internal
matters for speed: LLVM then drops arguments that nobody reads, and copies that nobody calls.

All this replaces one step of numba's pipeline by subclasses of its own. `SUPPORTED` tells whether this numba has what
they build on; without it inner functions are compiled as numba compiles any function, and give the same results.
"""

from __future__ import annotations

from typing import Any

from numba.core import codegen, compiler, typed_passes
from numba.core.compiler_machinery import register_pass

numba_compiler: Any = compiler  # numba's own types are partial and differ from release to release
CompilerBase: Any = compiler.CompilerBase
JITCodeLibrary: Any = codegen.JITCodeLibrary
NativeLowering: Any = typed_passes.NativeLowering
SUPPORTED = hasattr(numba_compiler, "_LowerResult") and all(
    hasattr(JITCodeLibrary, name) for name in ("finalize", "_get_module_for_linking", "_optimize_final_module")
)
# Steps for what inner functions do not have: closures, overloads that are inlined as Python, array expressions.
_LEFT_OUT = ("InlineClosureLikes", "InlineOverloads", "NopythonRewrites")


class InnerLibrary(JITCodeLibrary):
    """The code of one inner function as it was lowered; what it calls is only named."""

    def finalize(self) -> None:
        """Take no more code. Nothing is optimised or emitted here."""
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        return self._final_module

    def defined(self) -> list[str]:
        """The names of the functions whose code this is."""
        return [function.name for function in self._final_module.functions if not function.is_declaration]


class EntryLibrary(JITCodeLibrary):
    """The code of a function that Python calls, with that of all inner functions below it."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        """Gather what is called, optimise all of it together, and emit machine code."""
        self._linking_libraries = _with_callees(self._linking_libraries)
        super().finalize()

    def _optimize_final_module(self) -> None:
        for library in self._linking_libraries:
            if isinstance(library, InnerLibrary):
                for name in library.defined():
                    self._final_module.get_function(name).linkage = "internal"
        super()._optimize_final_module()


def _with_callees(libraries: list[Any]) -> list[Any]:
    """These libraries and those that inner ones among them call, directly or through others."""
    found: dict[Any, None] = {}
    pending = list(libraries)
    while pending:
        library = pending.pop()
        if library not in found:
            found[library] = None
            if isinstance(library, InnerLibrary):
                pending += library._linking_libraries
    return list(found)


class _Lowering(NativeLowering):
    """The step of numba's pipeline from typed code to a library."""

    library: Any

    def run_pass(self, state: Any) -> bool:
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class EntryLowering(_Lowering):
    """To a library of which machine code is made."""

    _name = "entry_lowering"
    library = EntryLibrary


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(_Lowering):
    """To a library that callers take in."""

    _name = "inner_lowering"
    library = InnerLibrary

    def run_pass(self, state: Any) -> bool:
        """Lower, and make the function known to callers without an address of its own."""
        state.flags.no_compile = True
        super().run_pass(state)
        lowered, library = state.cr, state.library
        library.finalize()

        def key(*arguments: Any) -> None:
            """What numba knows the function by; nobody calls it."""

        state.targetctx.insert_user_function(key, lowered.fndesc, [library])
        state["cr"] = numba_compiler._LowerResult(lowered.fndesc, lowered.call_helper, cfunc=key, env=lowered.env)
        return True


class EntryCompiler(CompilerBase):
    """numba's pipeline with `EntryLowering`."""

    def define_pipelines(self) -> list[Any]:
        """The one that numba is to run."""
        return [_pipeline(self.state, EntryLowering, ())]


class InnerCompiler(CompilerBase):
    """numba's pipeline with `InnerLowering`, without what inner functions do not need."""

    def define_pipelines(self) -> list[Any]:
        """The one that numba is to run."""
        return [_pipeline(self.state, InnerLowering, _LEFT_OUT)]


def _pipeline(state: Any, lowering: type[_Lowering], left_out: tuple[str, ...]) -> Any:
    manager = numba_compiler.DefaultPassBuilder.define_nopython_pipeline(state)
    manager.passes = [
        (lowering if step is NativeLowering else step, description)
        for step, description in manager.passes
        if step.__name__ not in left_out
    ]
    return manager
