"""When functions are compiled, and for which types: not before they are needed, and inner ones once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from numba.core import compiler, config, event, registry, types, typing
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typing.typeof import typeof

from framework.compiler import linking
from framework.compiler.cache import FunctionCache
from framework.compiler.telling import tell_of_compiling

numba_config: Any = config
numba_typing: Any = typing
CPUDispatcher: Any = registry.CPUDispatcher
_KINDS = {"int": types.int64, "float": types.float64, "bool": types.boolean}


class Function(CPUDispatcher):
    """A function that Python calls: compiled, or loaded from the disk cache, when it is first needed.

    With declared signatures it is compiled for these and no others.
    """

    _cache: Any
    _pipeline: Any = linking.EntryCompiler
    _settings: Mapping[str, Any] = {}  # of numba's configuration

    def __init__(self, function: Callable[..., Any], locals: Any = None, targetoptions: Any = None) -> None:
        pipeline = self._pipeline if linking.SUPPORTED else compiler.Compiler
        super().__init__(function, locals, targetoptions, pipeline)
        self._imported_ns = time.time_ns()
        self._declared: list[Any] = []
        self._kinds = {name: _annotated(function, name) for name in _parameters(function)}
        self._has_looked_for_cache = False

    def declare(self, signatures: list[Any]) -> None:
        """Fix the signatures to compile for, if any."""
        self._declared = signatures

    def bind(self) -> None:
        """Get machine code for every declared signature."""
        if not self._declared or not self._can_compile:
            return
        with global_compiler_lock:
            if self._can_compile:
                for signature in self._declared:
                    self.compile(signature)
                self.disable_compile()

    def compile(self, sig: Any) -> Any:
        """Compile for one signature, unless the cache has it."""
        with global_compiler_lock, _configured(self._settings):
            if not self._has_looked_for_cache:
                self._has_looked_for_cache = True
                self._cache = FunctionCache.of(self.py_func, self._imported_ns) or self._cache
            if not isinstance(self._cache, FunctionCache):
                tell_of_compiling()
                return super().compile(sig)
            with self._cache.alone(sig):
                return super().compile(sig)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What a compiled caller calls: without a declared signature, the function for the types of its annotations."""
        self.bind()
        if not self._declared:
            signature, passed = self._compiler.fold_argument_types(args, kws)
            args, kws = tuple(map(self._widened, signature.parameters, passed)), {}
        return super().get_call_template(args, kws)

    def _widened(self, parameter: str, passed: Any) -> Any:
        kind, declared = _plain(passed), self._kinds[parameter]
        return kind if declared is None or _generality(kind) > _generality(declared) else declared

    def get_function_type(self) -> Any:
        """The type of this function as a value."""
        self.bind()
        return super().get_function_type()

    def get_compile_result(self, sig: Any) -> Any:
        """The compiled result for a signature."""
        self.bind()
        return super().get_compile_result(sig)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        if not self._declared:
            return super()._compile_for_args(*args, **kws)
        self.bind()
        return self  # numba calls it with the same arguments, and nothing is left to compile by then

    def _reduce_states(self) -> Any:
        self.bind()  # a copy that is sent to another process has the same signatures there
        return super()._reduce_states()


class Outermost(Function):
    """A function that nothing but Python calls. Vectorising such branchy code doubles its compile time for nothing."""

    _pipeline: Any = linking.OutermostCompiler
    _settings = {"OPT": 2, "LOOP_VECTORIZE": False, "SLP_VECTORIZE": False}  # noqa: RUF012 (nothing writes to it)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Refuse the call: the cache keeps no code that could be linked into a caller."""
        raise TypeError(f"{self.py_func.__qualname__} is for Python alone; compiled code cannot call it")


class Inner:
    """A function that only compiled code calls, compiled once: for the types of its annotations.

    `int`, `float` and `bool` are int64, float64 and boolean, whatever a caller has (a literal, a narrow integer). A
    parameter of another kind, such as the state of the engine, has the type that the caller passes. `plain`: what
    Python gets when it calls this, None: an error. numba's own object is made for the first caller that is compiled,
    since the cache has the machine code of most callers.
    """

    plain: Callable[..., Any] | None = None

    def __init__(self, function: Callable[..., Any], targetoptions: Mapping[str, Any]) -> None:
        self.py_func = function
        self._targetoptions = targetoptions
        self._kinds = {name: _declared_kind(function, name) for name in _parameters(function)}

    @property
    def overloads(self) -> Mapping[Any, Any]:
        """What it was compiled for: results by the types of the parameters."""
        overloads: Mapping[Any, Any] = self._dispatcher.overloads
        return overloads

    @property
    def _numba_type_(self) -> Any:
        """What numba asks for where compiled code names this function."""
        return self._dispatcher._numba_type_

    @cached_property
    def _dispatcher(self) -> Any:
        made = _InnerDispatcher(self.py_func, targetoptions=dict(self._targetoptions))
        made.kinds = self._kinds
        return made

    def __call__(self, *args: Any, **kws: Any) -> Any:
        """Refuse the call: there is no machine code that Python could call."""
        if self.plain is not None:
            return self.plain(*args, **kws)
        raise TypeError(f"{self.py_func.__qualname__} is a part of its compiled callers; Python cannot call it")


class _InnerDispatcher(CPUDispatcher):
    """An inner function for numba."""

    kinds: Mapping[str, Any]  # the type of each parameter, None: the caller's

    def __init__(self, function: Callable[..., Any], locals: Any = None, targetoptions: Any = None) -> None:
        pipeline = linking.InnerCompiler if linking.SUPPORTED else compiler.Compiler
        super().__init__(function, locals, targetoptions, pipeline)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """What a compiled caller calls."""
        signature, passed = self._compiler.fold_argument_types(args, kws)
        kinds = tuple(map(self._kind, signature.parameters, passed))
        name = self.py_func.__name__
        own = self._compiled_for(kinds).signature
        return numba_typing.make_concrete_template(f"CallTemplate({name})", name, [own]), signature, kinds, {}

    def _kind(self, parameter: str, passed: Any) -> Any:
        """The type of a parameter if a caller passes this one."""
        kind, declared = _plain(passed), self.kinds[parameter]
        if declared is None:
            return kind
        if _generality(kind) > _generality(declared):
            raise TypeError(f"{self.py_func.__qualname__}: {parameter} is declared {declared} and passed {kind}")
        return declared

    def _compiled_for(self, kinds: tuple[Any, ...]) -> Any:
        with global_compiler_lock, self._compiling_counter:
            if kinds not in self.overloads:
                with event.trigger_event("numba:compile", data={"dispatcher": self, "args": kinds}):
                    self.overloads[kinds] = self._compiler.compile(kinds, None)
            return self.overloads[kinds]


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    code = function.__code__  # inspect.signature says the same in a hundred times the time
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _declared_kind(function: Callable[..., Any], parameter: str) -> Any:
    """The kind that `_annotated` gives, for a function whose parameters all have annotations."""
    if function.__annotations__.get(parameter) is None:
        raise TypeError(f"{function.__qualname__}: {parameter} has no annotation, which an inner function needs")
    return _annotated(function, parameter)


def _plain(passed: Any) -> Any:
    """The type of a caller's argument, whether or not its value is known."""
    return types.unliteral(typeof(passed.value) if isinstance(passed, types.Omitted) else passed)


def _annotated(function: Callable[..., Any], parameter: str) -> Any:
    """The type that a parameter's annotation fixes; None if it has the caller's."""
    annotation = function.__annotations__.get(parameter)
    return _KINDS.get(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))


def _generality(kind: Any) -> int:
    """The rank of a boolean, an integer, a float, anything else: a type can hold those before it."""
    families = (types.Boolean, types.Integer, types.Float)
    return next((number for number, family in enumerate(families) if isinstance(kind, family)), len(families))


@contextmanager
def _configured(settings: Mapping[str, Any]) -> Iterator[None]:
    """A context with these settings of numba's configuration."""
    before = {name: getattr(numba_config, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(numba_config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(numba_config, name, value)
