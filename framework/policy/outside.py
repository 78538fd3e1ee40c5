"""Policies and predictors in a file of the user's own: `policy=./soonest.py:Soonest`."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from framework.errors import InputError


def make(file: str, name: str, **settings: Any) -> Any:
    """An object of class `name` of a Python file. Raises InputError for a file or a class that is not there."""
    return class_of(Path(file), name)(**settings)


def class_of(file: Path, name: str) -> type:
    """The class; modules beside the file can be imported by it. Raises InputError as `make` does."""
    module = _module(file, file.stat().st_mtime_ns if file.is_file() else None)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        own = [key for key, one in vars(module).items() if isinstance(one, type) and one.__module__ == module.__name__]
        raise InputError(f"{file}: has no class {name}; it has {', '.join(own) or 'none'}")
    return found


def settings_of(kind: type) -> dict[str, Any]:
    """The arguments of a class with their defaults, for a YAML; `???`, Hydra's mark, stands for one without.

    Raises InputError for a default that no YAML can hold.
    """
    found: dict[str, Any] = {}
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = "???" if parameter.default is parameter.empty else parameter.default
        if not _is_plain(default):
            raise InputError(f"{kind.__name__}: the default of {parameter.name} is no number, text, list or mapping")
        found[parameter.name] = default
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


@functools.cache
def _module(file: Path, changed_ns: int | None) -> ModuleType:
    """The file as a module under its own name; `changed_ns` only says which of its states."""
    if changed_ns is None:
        raise InputError(f"{file}: there is no such file; a policy of your own is policy=FILE.py:CLASS")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(file.stem)
    sys.modules[file.stem] = module  # where dataclasses, and numba, look for it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if before is None:
            del sys.modules[file.stem]
        else:
            sys.modules[file.stem] = before
        raise InputError(f"{file}{_line_of(error, file)}: {type(error).__name__}: {error}") from error
    return module


def _line_of(error: Exception, file: Path) -> str:
    """Where in the file it went wrong, as `:12`."""
    if isinstance(error, SyntaxError):
        return "" if error.lineno is None else f":{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return f":{lines[-1]}" if lines else ""
