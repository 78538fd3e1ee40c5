"""numba's disk cache, with keys made from contents.

numba keys its cache by the path and the age of the compiled function's file. So an edit in a callee of another module
leaves stale machine code behind, and another copy of the same project compiles everything again. Here a hash names the
directory of a function. It covers the function's file and every file of this project that it imports, directly or not:
their contents, and their places within the project. numba's own configuration stays as it was.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import inspect
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import binding
from numba.core import caching
from numba.core.runtime import nrt

from framework.compiler.sources import import_closure, last_change_ns, place, source_hash
from framework.compiler.telling import progress, tell_of_compiling, tell_of_waiting
from framework.compiler.user_cache import user_directory, write_whole

_PROJECT = Path(__file__).resolve().parents[2]
_KEPT_DIRECTORIES = 32
_YOUNG_S = 3600.0  # a directory used within the last hour may belong to a running process


class _Locator(caching.UserProvidedCacheLocator):
    """Puts the files of one function under `cache_directory`."""

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        directory = cache_directory(Path(py_file))
        if directory is None:
            raise OSError("no writable cache directory")
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        self._cache_path = str(directory)

    def get_source_stamp(self) -> str:
        """Nothing: the contents of a directory never change."""
        return ""

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func, py_file)


class _CacheFiles(caching.CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (as numba declares it)


class FunctionCache(caching.FunctionCache):
    """A cache that may fail: what cannot be read is compiled again, what cannot be written is not kept."""

    _impl_class = _CacheFiles
    _source: Path

    @classmethod
    def of(cls, function: Callable[..., Any], imported_ns: int) -> FunctionCache | None:
        """The cache of a function; None if nothing can be kept.

        Nothing is kept of files that changed after `imported_ns`, since the process has their older contents.
        """
        source = Path(inspect.getfile(function))
        if not source.exists():  # typed at a prompt
            return None
        changed_ns = last_change_ns(import_closure(source.resolve(), _PROJECT))
        if imported_ns < changed_ns <= time.time_ns():
            return None
        make: Any = cls  # numba has no types
        try:
            made: FunctionCache = make(function)
        except OSError:  # of `_Locator`
            return None
        made._source = source.resolve()
        return made

    @contextmanager
    def alone(self, sig: Any) -> Iterator[None]:
        """Compile for a signature while no other process does; processes that wait then load the result."""
        needs = self._needs(sig)
        with ExitStack() as held:
            if not needs.exists():
                with suppress(OSError):
                    held.enter_context(_locked(needs.with_suffix(".compiling"), tell_of_waiting))
                if not needs.exists():
                    tell_of_compiling()
                    held.enter_context(progress(import_closure(self._source, _PROJECT)))
            yield

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Compiled code from the cache, or None.

        numba's own method first prepares the context for everything that can be compiled, which takes longer than
        loading code. It is called only if the code needs a symbol that would be missing otherwise.
        """
        own: Any = self
        parent: Any = super()
        try:
            if not self._has_what_it_needs(sig):
                return parent.load_overload(sig, target_context)
            with own._guard_against_spurious_io_errors():
                return own._load_overload(sig, target_context)
        except Exception:  # a damaged file shows as almost any error of unpickling
            self._forget()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        parent: Any = super()
        try:
            with _locked(self._index_lock):  # numba's index is read, changed and written back
                parent.save_overload(sig, data)
            write_whole(self._needs(sig), json.dumps(_symbols_from_outside(data.library)).encode())
        except OSError:
            return

    def _has_what_it_needs(self, sig: Any) -> bool:
        """Whether the code for this signature would find every symbol that it does not define."""
        try:
            names = json.loads(self._needs(sig).read_bytes())
        except (OSError, ValueError):
            return False
        _name_runtime()
        return all(binding.address_of_symbol(name) for name in names)

    @property
    def _index_lock(self) -> Path:
        return Path(self.cache_path) / "lock"

    def _needs(self, sig: Any) -> Path:
        own: Any = self
        name = hashlib.sha256(f"{own._impl.filename_base} {sig}".encode()).hexdigest()[:24]
        return Path(self.cache_path) / f"{name}.symbols"

    def _forget(self) -> None:
        """Start the index anew: saving reads it first."""
        parent: Any = super()
        try:
            with _locked(self._index_lock):
                parent.flush()
        except OSError:
            return


@functools.cache
def _name_runtime() -> None:
    """Tell the linker where numba's runtime is. Its own start does so, and then compiles what no cached code calls."""
    runtime: Any = nrt  # numba has no types
    for name, address in runtime._nrt.c_helpers.items():
        binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


def _symbols_from_outside(library: Any) -> list[str]:
    module = library._final_module
    values = (*module.functions, *module.global_variables)
    return sorted({value.name for value in values if value.is_declaration and not value.name.startswith("llvm.")})


@contextmanager
def _locked(file: Path, before_waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of that name, after calling `before_waiting` if another process has it.

    Raises OSError if the lock cannot be made.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if before_waiting is not None:
                before_waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def cache_directory(source: Path) -> Path | None:
    """The directory for the compiled code of the functions in file `source`; None if no directory can be written."""
    root = user_directory("compiled")
    return None if root is None else _prepared(root, _key(source.resolve()))


def _key(source: Path) -> str:
    """The key: the same for equal contents at equal places of the project, in any copy."""
    own = f"{place(source, _PROJECT)} {source_hash(import_closure(source, _PROJECT), _PROJECT)}"
    return hashlib.sha256(f"{own} numba {numba.__version__} llvmlite {llvmlite.__version__}".encode()).hexdigest()[:24]


@functools.cache
def _prepared(root: Path, key: str) -> Path | None:
    directory = root / key
    try:
        directory.mkdir(exist_ok=True)
        os.utime(directory)
        prune(root)
    except OSError:
        return None
    return directory


def prune(root: Path) -> None:
    """Remove all directories in `root` except the few most recently used and those used within the last hour."""
    used = sorted(((entry.stat().st_mtime, entry) for entry in root.iterdir() if entry.is_dir()), reverse=True)
    for mtime_s, directory in used[_KEPT_DIRECTORIES:]:
        if time.time() - mtime_s > _YOUNG_S:
            shutil.rmtree(directory, ignore_errors=True)
