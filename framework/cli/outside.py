"""`policy=FILE.py:CLASS` and `predictor=FILE.py:CLASS`: a user's own classes, without a YAML or a package."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from framework.cli.suggest import nearest
from framework.cli.typed_settings import require_types
from framework.compiler.sources import import_closure, source_hash
from framework.compiler.user_cache import user_directory, write_whole
from framework.errors import InputError, instead_of, is_of_a_library, text_of

_GROUPS = ("policy", "predictor")
_FILE = ".py"
_MARK = f"{_FILE}:"
_CLUSTER = "# @package _global_\ndefaults:\n  - override /cluster: {}\n\n"  # head of the YAMLs of conf/policy


def with_files(arguments: Sequence[str]) -> list[str]:
    """The arguments with a YAML, in a directory that is added to Hydra's, for each class of a file.

    Raises InputError for a missing file or class, and for arguments that no YAML can hold.
    """
    kept: list[str] = []
    directories: list[Path] = []
    for word in arguments:
        group, _, value = word.partition("=")
        if group not in _GROUPS or _FILE not in value:
            kept.append(word)
            continue
        names: list[str] = []
        for choice in value.split(","):  # several for a sweep
            if _MARK in choice:
                directory, choice = _written(group, choice)
                directories.append(directory)
            elif choice.endswith(_FILE):
                own = ", ".join(_classes(_module_of(Path(choice).expanduser().absolute()))) or "none"
                raise InputError(f"{group}={choice}: name the class, too: {group}={choice}:CLASS; it has {own}")
            names.append(choice)
        kept.append(f"{group}={','.join(names)}")
    return [*kept, *(f"--config-dir={directory}" for directory in dict.fromkeys(directories))]


def _written(group: str, choice: str) -> tuple[Path, str]:
    """The directory that has the YAML of a class, and the name of its choice."""
    path, _, name = choice.rpartition(":")
    file = Path(path).expanduser().absolute()
    kind = class_of(file, name)
    source = source_hash(import_closure(file, file.parent), file.parent)  # changed code makes another run
    part = {"_target_": "framework.cli.outside.make", "file": str(file), "name": name, "source": source}
    text = _as_yaml(group, kind, part | settings_of(kind))
    cache = user_directory("outside")
    if cache is None:
        raise InputError(f"{choice}: there is no directory to write its YAML to; set XDG_CACHE_HOME to one")
    directory = cache / hashlib.sha256(text.encode()).hexdigest()[:24]
    target = directory / group / f"{file.name}:{name}.yaml"
    if not _holds(target, text):  # it is missing, or damaged
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, text.encode())
        except OSError as error:
            raise InputError(f"{target}: cannot be written ({error.strerror})") from error
    return directory, target.stem


def _holds(file: Path, text: str) -> bool:
    try:
        return file.read_bytes() == text.encode()
    except OSError:
        return False


def is_of_files(directory: Path) -> bool:
    """Whether the directory is one that `policy=FILE.py:CLASS` adds."""
    cache = user_directory("outside")
    return cache is not None and directory.is_relative_to(cache.resolve())


def as_typed(choice: str, part: Mapping[str, Any]) -> str:
    """A choice as a command names it; `part` is its configuration. A class in a user's file has its path from here."""
    if _MARK not in choice:
        return choice
    file, here = Path(part["file"]), Path.cwd()
    place = f"./{file.relative_to(here)}" if file.is_relative_to(here) else file
    return f"{place}:{part['name']}"


def _as_yaml(group: str, kind: type, part: dict[str, Any]) -> str:
    cluster = getattr(kind, "suggested_cluster", None)
    if cluster is None:
        return str(yaml.safe_dump(part, sort_keys=False))
    return _CLUSTER.format(cluster) + str(yaml.safe_dump({group: part}, sort_keys=False))


# --- the classes ------------------------------------------------------------------------------------------------------


def make(file: str, name: str, source: str, **settings: Any) -> Any:
    """An object of class `name` of a Python file. Raises InputError for a missing file or class.

    `source`: a hash of the file, by which settings distinguish runs of its versions.
    """
    kind = class_of(Path(file), name)
    require_types(name, kind, settings)
    try:
        return kind(**settings)
    except TypeError as error:
        if all(is_of_a_library(frame.filename) for frame in traceback.extract_tb(error.__traceback__)):  # not its code
            raise InputError(f"{file}: {name} cannot be made: {text_of(error)}") from error
        raise


def class_of(file: Path, name: str) -> type:
    """The class, which can import modules next to its file. Raises InputError as `make` does."""
    module = _module_of(file)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        own = _classes(module)
        near = nearest(name, own)
        raise InputError(f"{file}: there is no class {name}{near or ';'} it has {', '.join(own) or 'none'}")
    return found


def _module_of(file: Path) -> ModuleType:
    return _module(file, file.stat().st_mtime_ns if file.is_file() else None)


def _classes(module: ModuleType) -> list[str]:
    """The names of the classes that it defines."""
    return [key for key, one in vars(module).items() if isinstance(one, type) and one.__module__ == module.__name__]


def settings_of(kind: type) -> dict[str, Any]:
    """The arguments of a class with their defaults, for a YAML; `???`, Hydra's mark, for one without a default.

    Raises InputError for a default that no YAML can hold.
    """
    found: dict[str, Any] = {}
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        raise InputError(f"{kind.__name__}: its arguments are not known; write a class with an __init__") from None
    for parameter in parameters:
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
    """The file as a module under its own name; `changed_ns` only distinguishes its versions."""
    if changed_ns is None:
        raise InputError(f"{file}: there is no such file; a policy of your own is policy=FILE.py:CLASS")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    known = importlib.util.find_spec(file.stem)
    name = file.stem if known is None or known.origin == str(file) else f"{file.stem}_"  # Another module has its name.
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # Dataclasses and numba look for it there.
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        line, said = _line_of(error, file), text_of(instead_of(error) if isinstance(error, SystemExit) else error)
        raise InputError(f"{file}{line}: {type(error).__name__}: {said}") from None
    return module


def _line_of(error: BaseException, file: Path) -> str:
    """The line of the file where the error occurred, as `:12`."""
    if isinstance(error, SyntaxError):
        return "" if error.lineno is None else f":{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return f":{lines[-1]}" if lines else ""
