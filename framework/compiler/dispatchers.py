"""When functions are compiled, and for which types: not before they are needed, inner functions for one kind only."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from numba.core import compiler, config, event, types, typing
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.typing.typeof import typeof as numba_typeof

from framework.compiler import linking
from framework.compiler.cache import FunctionCache

numba_config: Any = config
numba_compiler: Any = compiler
numba_event: Any = event
numba_types: Any = types
numba_typing: Any = typing
_Dispatcher: Any = CPUDispatcher
_SCALARS = {"int": types.int64, "float": types.float64, "bool": types.boolean}


class Function(_Dispatcher):
    """A function that Python calls: compiled, or loaded from the cache on disk, at its first call.

    With declared signatures it is compiled for these and no others.
    """

    def __init__(self, function: Callable[..., Any], locals: Any = None, targetoptions: Any = None) -> None:
        pipeline = linking.EntryCompiler if linking.SUPPORTED else numba_compiler.Compiler
        super().__init__(function, locals, targetoptions, pipeline_class=pipeline)
        self._made_ns = time.time_ns()
        self._declared: list[Any] = []
        self._lean = False
        self._has_looked_for_cache = False

    def declare(self, signatures: list[Any], lean: bool) -> None:
        """Fix the signatures to compile for; `lean`: without vectorising."""
        self._declared = signatures
        self._lean = lean

    def bind(self) -> None:
        """Have machine code for every declared signature."""
        if not self._declared or not self._can_compile:
            return
        with global_compiler_lock:
            if self._can_compile:
                for signature in self._declared:
                    self.compile(signature)
                self.disable_compile()

    def compile(self, sig: Any) -> Any:
        """Compile for one signature, if the cache does not have it."""
        with global_compiler_lock, _lean_optimisation() if self._lean else nullcontext():
            if not self._has_looked_for_cache:
                self._has_looked_for_cache = True
                self._cache = FunctionCache.of(self.py_func, self._made_ns) or self._cache
            return super().compile(sig)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What a compiled caller calls."""
        self.bind()
        return super().get_call_template(args, kws)

    def get_function_type(self) -> Any:
        """The type of this function as a value."""
        self.bind()
        return super().get_function_type()

    def get_compile_result(self, sig: Any) -> Any:
        """What was compiled for a signature."""
        self.bind()
        return super().get_compile_result(sig)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        if not self._declared:
            return super()._compile_for_args(*args, **kws)
        self.bind()
        return self  # which is called with the same arguments once more, and compiles no more

    def _reduce_states(self) -> Any:
        self.bind()
        return super()._reduce_states()


class Inner(_Dispatcher):
    """A function that only compiled code calls, compiled once: for the types that its annotations name.

    `int`, `float` and `bool` are int64, float64 and boolean, whatever the caller has (a literal, a narrow integer); a
    parameter of any other kind, such as the engine's state, has the type that the caller passes.
    """

    def __init__(self, function: Callable[..., Any], locals: Any = None, targetoptions: Any = None) -> None:
        pipeline = linking.InnerCompiler if linking.SUPPORTED else numba_compiler.Compiler
        super().__init__(function, locals, targetoptions, pipeline_class=pipeline)
        self._scalars = {name: _scalar(function, name) for name in inspect.signature(function).parameters}

    def __call__(self, *args: Any, **kws: Any) -> Any:
        """Refuse: there is no machine code to call."""
        raise TypeError(f"{self.__qualname__} is part of the compiled functions that call it; Python cannot call it")

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What a compiled caller calls."""
        signature, passed = self._compiler.fold_argument_types(args, kws)
        chosen = tuple(map(self._chosen, signature.parameters, passed))
        compiled = self._compiled_for(chosen)
        name = self.py_func.__name__
        template = numba_typing.make_concrete_template(f"CallTemplate({name})", name, [compiled.signature])
        return template, signature, chosen, {}

    def _chosen(self, name: str, passed: Any) -> Any:
        """The type of a parameter where the caller has this one."""
        kind = numba_types.unliteral(numba_typeof(passed.value) if isinstance(passed, types.Omitted) else passed)
        declared = self._scalars[name]
        if declared is None:
            return kind
        if _generality(kind) > _generality(declared):
            raise TypeError(f"{self.__qualname__}: {name} is declared {declared} and is passed {kind}")
        return declared

    def _compiled_for(self, args: tuple[Any, ...]) -> Any:
        with global_compiler_lock, self._compiling_counter:
            if args not in self.overloads:
                with numba_event.trigger_event("numba:compile", data={"dispatcher": self, "args": args}):
                    self.overloads[args] = self._compiler.compile(args, None)
            return self.overloads[args]


def _scalar(function: Callable[..., Any], parameter: str) -> Any:
    """The type that a parameter's annotation fixes; None where it has the caller's."""
    annotation = function.__annotations__.get(parameter)
    if annotation is None:
        raise TypeError(f"{function.__qualname__}: parameter {parameter} needs an annotation, it fixes the type")
    return _SCALARS.get(annotation if isinstance(annotation, str) else annotation.__name__)


def _generality(kind: Any) -> int:
    """Which of boolean, integers and floats a type is, each of which holds those before; above them all: another."""
    kinds = (types.Boolean, types.Integer, types.Float)
    return next((number for number, family in enumerate(kinds) if isinstance(kind, family)), len(kinds))


@contextmanager
def _lean_optimisation() -> Iterator[None]:
    """Compile without vectorising: in branchy code it gains nothing, and doubles the time."""
    lean = {"OPT": 2, "LOOP_VECTORIZE": False, "SLP_VECTORIZE": False}
    before = {name: getattr(numba_config, name) for name in lean}
    try:
        for name, value in lean.items():
            setattr(numba_config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(numba_config, name, value)
