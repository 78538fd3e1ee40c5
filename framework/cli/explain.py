"""The user's mistakes, each as one line: of this project, of Hydra, of OmegaConf and of YAML."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from framework.checks import checked
from framework.cli.arguments import program
from framework.cli.conf import CONF
from framework.cli.safe_text import one_line
from framework.cli.streams import CLOSED
from framework.cli.suggest import nearest
from framework.errors import InputError, chain, hook_noted, text_of

_NO_CLASS = re.compile(r"Expected a callable target, got '(.*)' of type ")
_NO_HOME = "Could not determine home directory."  # message of Path.expanduser
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_VALUE = "quote a text with other than letters, digits and _-./:+@%, as in \"key='a text'\", and close each bracket"
_NOT_MERGED = "Error merging override "


def explain(error: BaseException) -> str | None:
    """One printable line about what the user can fix, or None if `error` is a bug."""
    line = _explained(error)
    if line is None and getattr(sys.stdout, "closed", False):
        return CLOSED
    return None if line is None else one_line(line)


def _explained(error: BaseException) -> str | None:
    for link in chain(error):
        if isinstance(link, InputError):
            return _one_line(link)
        if line := hook_noted(link):
            return line.splitlines()[0]
        if isinstance(link, RuntimeError) and str(link) == _NO_HOME:
            return "a path begins with ~, and there is no such home directory; write the path out, or set HOME"
        if isinstance(link, OSError) and link.errno in _FULL:
            return f"{link.filename or 'the output'}: cannot be written ({link.strerror}); make room, or choose another"
    if isinstance(error, MissingConfigException):
        return _unknown_choice(error)
    if isinstance(error, InstantiationException):
        return _not_instantiated(error)
    if isinstance(error, HydraException):
        return _not_composed(error)
    if isinstance(error, OmegaConfBaseException):
        return _bad_value(error)
    if isinstance(error, YAMLError):
        return _one_line(error)
    if _innermost_package(error.__traceback__) == "hydra":
        return _refused_by_hydra(error)
    return None


def _unknown_choice(error: MissingConfigException) -> str:
    if not error.missing_cfg_file or error.options is None:
        return _one_line(error).split(" Config search path:")[0]
    if error.missing_cfg_file.startswith("trace/") and is_file_name(name := error.missing_cfg_file[len("trace/") :]):
        return f"trace={name}: a file is given as trace.path={name}; trace takes a name of {_names(error.options)}"
    group, _, name = error.missing_cfg_file.rpartition("/")
    near = nearest(name, error.options)
    return f"{group}={name}: there is no {group} of that name{near or ';'} choose one of {_names(error.options)}"


def is_file_name(text: str) -> bool:
    """Whether a text names a file rather than an option: it has a / or an ending."""
    return "/" in text or Path(text).suffix != ""


def _names(options: Sequence[str]) -> str:
    return ", ".join(sorted(option for option in options if not option.startswith("_")))  # _x.yaml: a part of others


def _not_instantiated(error: InstantiationException) -> str | None:
    """The line for a failed instantiation: wrong arguments and unknown names are mistakes; an error inside a
    constructor is a bug.
    """
    cause = error.__cause__
    where = _full_key(error)
    if isinstance(cause, TypeError) and _innermost_package(cause.__traceback__) == "hydra":
        return f"{where}: {_one_line(cause)}; see the class's own arguments"
    if isinstance(cause, ImportError):
        target, missing = _quoted(error), cause.__cause__
        is_misnamed = isinstance(missing, ModuleNotFoundError) and target.startswith(missing.name or target)
        is_no_name = missing is None and str(error).startswith("Error locating")
        if is_misnamed or is_no_name:
            return f"{where}: there is no {target or 'class without a name'} ({missing or cause}); fix _target_"
        return None
    if isinstance(cause, ValueError) and _innermost_package(cause.__traceback__) == "hydra":
        return f"{where}._target_ must be the name of a class, got {_quoted(error)}"
    if isinstance(cause, MissingMandatoryValue) or isinstance(error, MissingMandatoryValue):
        return _without_value(where)
    if cause is None or isinstance(cause, OmegaConfBaseException):
        said = _one_line(cause or error)
        if wrong := _NO_CLASS.match(said):
            return f"{where}._target_ must be the name of a class, got {wrong[1]}"
        return f"{where}: {said}"
    return None


def _not_composed(error: HydraException) -> str:
    text = next(filter(None, map(_one_line, chain(error))), type(error).__name__)
    if text.startswith("Ambiguous value"):
        override = text.split("'")[1]
        return f"{override}: several values for one run; add -m to run each of them, or write a list as [a,b]"
    if isinstance(error, OverrideParseException):
        key, equals, value = str(error.override).partition("=")
        if not equals or key != key.rstrip() or value != value.lstrip():
            return f"{error.override}: a setting is written key=value, without spaces"
        return f"{error.override}: {value or 'nothing'} cannot be read as a value; {_VALUE}"
    if text.startswith("Could not override"):
        if (CONF / (group := text.split("'")[1])).is_dir():
            names = _names([path.stem for path in sorted((CONF / group).glob("*.yaml"))])
            return f"{group} takes a name, one of {names}; a setting of it is written {group}.NAME=VALUE"
        return f"{group}: not every run has this setting; {program()} --cfg job shows those of one"
    if text.startswith(_NOT_MERGED):
        override = text.removeprefix(_NOT_MERGED)
        key = override.partition("=")[0].lstrip("+")
        return f"{override}: {key} holds settings by name; write {key}.NAME=VALUE, or {key}={{NAME: VALUE}}"
    return text


def _bad_value(error: OmegaConfBaseException) -> str:
    message = str(error).splitlines()[0].strip()
    key = getattr(error, "full_key", None)
    if isinstance(error, MissingMandatoryValue):
        return _without_value(key or message.rpartition(" ")[2])
    if isinstance(error, InterpolationKeyError):
        message = f"there is no setting {message.split(chr(39))[1]} to refer to"
    return f"{key}: {message}" if key else message


def _without_value(key: str) -> str:
    return f"{key} has no default; give it a value, as in {key}=VALUE"


def _refused_by_hydra(error: BaseException) -> str | None:
    """The line for an error of Hydra's own: it makes the run directory and its first files, and refuses unknown flags
    and groups.
    """
    for link in chain(error):
        if isinstance(link, OSError):
            path = link.filename or "the run directory"
            return f"{path}: cannot be written ({link.strerror}); choose another directory with hydra.run.dir=DIR"
    return _one_line(error) if isinstance(error, ValueError) else None


def _innermost_package(trace: TracebackType | None) -> str:
    """Top-level package of the deepest frame outside the standard library and outside argument checks."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(trace)]
    names = [module.split(".")[0] for module in modules if module != checked.__module__]
    names = [name for name in names if name not in sys.stdlib_module_names]
    return names[-1] if names else ""


def _quoted(error: BaseException) -> str:
    return str(error).split("'")[1]


def _full_key(error: InstantiationException) -> str:
    for line in str(error).splitlines():
        if line.startswith("full_key:"):
            return line.removeprefix("full_key:").strip()
    return "config"


def _one_line(error: BaseException) -> str:
    return " ".join(text_of(error).split())
