"""How inner functions become machine code: each is lowered once, and optimised and emitted only within its callers.

numba optimises every function together with all that it calls, emits machine code, and then links it into each of its
callers, where both happen again. So a function deep in a tree of calls is optimised and emitted once for each function
above it. Here an inner function stays as it was lowered. The function that Python calls gathers all inner functions
below it, once each, makes them internal, and is optimised and emitted as a whole. Internal functions are faster: LLVM
drops arguments that nobody reads, and copies that nobody calls.

This replaces one step of numba's pipeline by subclasses. `SUPPORTED` says whether the installed numba has what they
build on; without it inner functions are compiled as numba compiles any function, and give the same results.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding
from numba.core import codegen, compiler, typed_passes
from numba.core.compiler_machinery import register_pass
from numba.core.untyped_passes import FixupArgs

from framework.compiler.constants import FoldConstants

numba_compiler: Any = compiler  # numba's own types are incomplete and differ between releases
CompilerBase: Any = compiler.CompilerBase
JITCodeLibrary: Any = codegen.JITCodeLibrary
NativeLowering: Any = typed_passes.NativeLowering
SUPPORTED = hasattr(numba_compiler, "_LowerResult") and all(
    hasattr(JITCodeLibrary, name)
    for name in ("finalize", "_get_module_for_linking", "_optimize_functions", "_optimize_final_module")
)
# Steps for features that inner functions do not use: closures, overloads inlined as Python, array expressions.
_LEFT_OUT = (
    *("InlineClosureLikes", "InlineOverloads", "NopythonRewrites"),
    *("WithLifting", "RewriteDynamicRaises", "MakeFunctionToJitFunction", "InlineInlinables", "FindLiterallyCalls"),
    *("LiteralUnroll", "LiteralPropagationSubPipelinePass", "DeadBranchPrune", "RewriteSemanticConstants"),
    *("NoPythonSupportedFeatureValidation", "IRLegalization", "AnnotateTypes", "DumpParforDiagnostics", "IRProcessing"),
)


class InnerLibrary(JITCodeLibrary):
    """The code of one inner function as it was lowered; its callees are only named."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Nothing: callers are optimised with all of their callees."""
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Close the library. Nothing is optimised or emitted here."""
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        return self._final_module

    def defined(self) -> list[str]:
        """The names of the functions in this code."""
        return [function.name for function in self._final_module.functions if not function.is_declaration]


class EntryLibrary(JITCodeLibrary):
    """The code of a function that Python calls, with that of all inner functions below it."""

    _linking_libraries: list[Any]

    def finalize(self) -> None:
        """Gather the callees, optimise all of it together, and emit machine code."""
        self._linking_libraries = _with_callees(self._linking_libraries)
        super().finalize()

    def _optimize_final_module(self) -> None:
        for library in self._linking_libraries:
            if isinstance(library, InnerLibrary):
                for name in library.defined():
                    self._final_module.get_function(name).linkage = "internal"
        super()._optimize_final_module()


class OutermostLibrary(EntryLibrary):
    """The code of a function that only Python calls: the cache keeps nothing that could be linked into a caller."""

    def serialize_using_object_code(self) -> Any:
        """The name, the kind and the content, as numba keeps them, with a stub in place of each function."""
        defined = (function.name for function in self._final_module.functions if not function.is_declaration)
        stubs = "".join(f'define void @"{name}"() {{ unreachable }}\n' for name in defined)
        return self.name, "object", (self._get_compiled_object(), binding.parse_assembly(stubs).as_bitcode())


def _with_callees(libraries: list[Any]) -> list[Any]:
    """These libraries and those that their inner functions call, directly or not."""
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
    """The step to a library that becomes machine code."""

    _name = "entry_lowering"
    library = EntryLibrary


@register_pass(mutates_CFG=True, analysis_only=False)
class OutermostLowering(_Lowering):
    """The step to a library that becomes machine code, and that no caller takes in."""

    _name = "outermost_lowering"
    library = OutermostLibrary


@register_pass(mutates_CFG=True, analysis_only=False)
class InnerLowering(_Lowering):
    """The step to a library that callers take in."""

    _name = "inner_lowering"
    library = InnerLibrary

    def run_pass(self, state: Any) -> bool:
        """Lower, and make the function known to callers without an address of its own."""
        state.flags.no_compile = True
        super().run_pass(state)
        lowered, library = state.cr, state.library
        library.finalize()

        def key(*arguments: Any) -> None:
            """The name by which numba knows the function. It is never called."""

        state.targetctx.insert_user_function(key, lowered.fndesc, [library])
        state["cr"] = numba_compiler._LowerResult(lowered.fndesc, lowered.call_helper, cfunc=key, env=lowered.env)
        return True


class EntryCompiler(CompilerBase):
    """numba's pipeline with `EntryLowering`."""

    def define_pipelines(self) -> list[Any]:
        """The pipeline that numba is to run."""
        return [_pipeline(self.state, EntryLowering, ())]


class OutermostCompiler(CompilerBase):
    """numba's pipeline with `OutermostLowering`."""

    def define_pipelines(self) -> list[Any]:
        """The pipeline that numba is to run."""
        return [_pipeline(self.state, OutermostLowering, ())]


class InnerCompiler(CompilerBase):
    """numba's pipeline with `InnerLowering`, without steps that inner functions do not need."""

    def define_pipelines(self) -> list[Any]:
        """The pipeline that numba is to run."""
        return [_pipeline(self.state, InnerLowering, _LEFT_OUT)]


def _pipeline(state: Any, lowering: type[_Lowering], left_out: tuple[str, ...]) -> Any:
    manager = numba_compiler.DefaultPassBuilder.define_nopython_pipeline(state)
    manager.passes = [
        (lowering if step is NativeLowering else step, description)
        for step, description in manager.passes
        if step.__name__ not in left_out
    ]
    manager.add_pass_after(FoldConstants, FixupArgs)
    manager.finalize()
    return manager
