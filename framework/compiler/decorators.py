"""Compilation with numba whose disk cache notices an edit anywhere in the framework.

numba keys its disk cache by the file of the compiled function alone, so an edit in a callee of another module leaves
stale machine code behind. Here the cache directory is named after a hash of the function's file and of every file of
this project that it imports, directly or not. numba's own configuration is left as it was.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import inspect
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import numba
from llvmlite import ir
from numba.core import caching, cgutils, config, sigutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typing.templates import Signature
from numba.extending import intrinsic

from framework.compiler.sources import import_closure, source_hash

F = TypeVar("F", bound=Callable[..., Any])
Signatures = str | Signature | list[str | Signature]

numba_config: Any = config
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
_FRAMEWORK = Path(__file__).resolve().parents[1]
_NAME = "servelab"
_KEPT_DIRECTORIES = 32
_YOUNG_S = 3600.0  # a directory used within the last hour may belong to a running process


@overload
def compiled(target: F, /) -> F: ...


@overload
def compiled(target: Signatures, /) -> Callable[[F], F]: ...


def compiled(target: Callable[..., Any] | Signatures, /) -> Any:
    """Compile with numba: `@compiled` on first call, `@compiled(signature)` at once and for that signature only.

    A signature is anything `numba.njit` takes: a string, a signature object, or a list of them. Division follows numpy
    (no ZeroDivisionError), indices are not checked, the GIL is released, and no floating-point shortcut is taken, so
    results are those of the written expression. With NUMBA_DISABLE_JIT=1 the function is returned as it is.
    """
    if inspect.isfunction(target):
        return _compile(target, [])
    signatures = list(target) if isinstance(target, list) else [target]
    is_signature: Callable[[Any], bool] = sigutils.is_signature
    if not all(map(is_signature, signatures)):
        raise TypeError(f"compiled: {target!r} is neither a function nor a signature")
    return lambda function: _compile(function, signatures)


def inner(function: F) -> F:
    """Compile a function that only compiled code calls and that allocates nothing: no wrappers, no reference counts.

    Its machine code becomes part of its callers'.
    """
    return _inner(function, forceinline=False)


def _inner(function: F, **options: bool) -> F:
    if numba_config.DISABLE_JIT:
        return function
    options |= {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, numba.njit(**(_OPTIONS | options))(function))


if numba_config.DISABLE_JIT:

    def unlikely(condition: Any) -> bool:
        """`condition`, of which compiled code expects that it is false: what it guards costs the usual path nothing."""
        return bool(condition)

else:

    @intrinsic
    def unlikely(typingctx: Any, condition: Any) -> Any:
        """`condition`, of which compiled code expects that it is false: what it guards costs the usual path nothing."""

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            truth = context.cast(builder, args[0], signature.args[0], types.boolean)
            bit = ir.IntType(1)
            function = ir.FunctionType(bit, [bit, bit])
            expect = cgutils.get_or_insert_function(builder.module, function, "llvm.expect.i1")
            return builder.call(expect, [truth, ir.Constant(bit, 0)])

        return types.boolean(condition), codegen


def entry(signature: Any) -> Callable[[F], F]:
    """Compile, for one signature and at once, the function through which Python enters a large body of kernels.

    Vectorising such branchy code doubles the time it takes to compile and gains nothing.
    """

    def decorate(function: F) -> F:
        with _lean_optimisation():
            return _compile(function, [signature], _nrt=False)

    return decorate


@contextmanager
def _lean_optimisation() -> Iterator[None]:
    lean = {"OPT": 2, "LOOP_VECTORIZE": False, "SLP_VECTORIZE": False}
    with global_compiler_lock:
        before = {name: getattr(numba_config, name) for name in lean}
        try:
            for name, value in lean.items():
                setattr(numba_config, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(numba_config, name, value)


def _compile(function: F, signatures: list[Any], **options: Any) -> F:
    if numba_config.DISABLE_JIT:
        return function
    dispatcher: Any = numba.njit(**_OPTIONS, **options)(function)
    if cache_directory(Path(inspect.getfile(function))) is not None:
        # What `enable_caching` does, with a cache that knows where to look instead of asking the global configuration.
        dispatcher._cache = _SourceKeyedCache(function)
    for signature in signatures:
        dispatcher.compile(signature)
    if signatures:
        dispatcher.disable_compile()
    return cast(F, dispatcher)


class _Locator(caching.UserProvidedCacheLocator):
    """Puts the files of one function under `cache_directory`."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        directory = cache_directory(Path(py_file))
        if directory is None:
            raise OSError("no writable cache directory")
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        self._cache_path = str(directory / hashlib.sha256(py_file.encode()).hexdigest()[:16])

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func, py_file)


class _CacheFiles(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (as numba declares it)


class _SourceKeyedCache(caching.FunctionCache):
    """A cache is a convenience: what cannot be read is compiled again, what cannot be written is not kept."""

    _impl_class = _CacheFiles

    def __init__(self, py_func: Callable[..., Any]) -> None:
        parent: Any = super()  # numba has no types
        parent.__init__(py_func)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        parent: Any = super()
        try:
            return parent.load_overload(sig, target_context)
        except Exception:  # a damaged file shows as almost any error of unpickling
            self._forget()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        parent: Any = super()
        try:
            with _locked(Path(self.cache_path)):  # numba's index is read, changed and written back
                parent.save_overload(sig, data)
        except OSError:
            return

    def _forget(self) -> None:
        """Start the index anew: saving reads it first."""
        parent: Any = super()
        try:
            with _locked(Path(self.cache_path)):
                parent.flush()
        except OSError:
            return


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def cache_directory(source: Path) -> Path | None:
    """Where compiled code of the functions in file `source` is kept, or None where no directory can be written.

    Under $NUMBA_CACHE_DIR, else the user's cache ($XDG_CACHE_HOME, ~/.cache), else a private temporary directory.
    """
    if not source.exists():  # typed at a prompt
        return None
    return _prepared(source.resolve())


@functools.cache
def _prepared(source: Path) -> Path | None:
    root = _writable_root()
    if root is None:
        return None
    directory = root / source_hash(import_closure(source, _FRAMEWORK.parent))
    try:
        directory.mkdir(exist_ok=True)
        os.utime(directory)
        prune(root)
    except OSError:
        return None
    return directory


def prune(root: Path) -> None:
    """Remove all directories in `root` but the most recently used few and those used within the last hour."""
    used = sorted(((entry.stat().st_mtime, entry) for entry in root.iterdir() if entry.is_dir()), reverse=True)
    for mtime_s, directory in used[_KEPT_DIRECTORIES:]:
        if time.time() - mtime_s > _YOUNG_S:
            shutil.rmtree(directory, ignore_errors=True)


def _writable_root() -> Path | None:
    environment = os.environ
    if environment.get("NUMBA_CACHE_DIR"):
        first = Path(environment["NUMBA_CACHE_DIR"])
    elif environment.get("XDG_CACHE_HOME"):
        first = Path(environment["XDG_CACHE_HOME"])
    else:
        first = Path("~/.cache").expanduser()
    if _is_writable(first / _NAME / "compiled"):
        return (first / _NAME / "compiled").absolute()
    shared = Path(tempfile.gettempdir()) / f"{_NAME}-{os.getuid()}"
    return shared if _is_private(shared) and _is_writable(shared) else None


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def _is_private(directory: Path) -> bool:
    """Cached code is executed: a directory in a place that all users share must be this user's alone."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o077 == 0
