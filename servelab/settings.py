"""A configuration of `run.py` made from Python values, and the experiment that it describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra import compose as compose_config
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

from framework.cli.arguments import name_files, with_config_dirs
from framework.cli.composition import composing
from framework.cli.conf import CONF
from framework.cli.explain import explain
from framework.errors import InputError
from framework.objective.experiment import Experiment
from framework.run.compose import compose
from framework.workload import Workload
from servelab.objects import is_object, objects_of, quoted, without_folder

_OF_THE_TRACE = ("limit", "path", "rate", "rate_scale", "requests", "window_s")
_PLAIN_PUNCTUATION = frozenset("_-./:+@%~ ")


def experiment_of(arguments: Mapping[str, Any]) -> Experiment:
    """The experiment that the same arguments on the command line of `run.py` describe, with these objects in it.

    `arguments` are keys of the configuration, with `__` for dots: model="llama3_70b", cluster__prefill=4. `rate`,
    `limit` and other arguments of the trace may stand alone. Raises InputError for wrong ones.
    """
    try:
        return _experiment(arguments)
    except Exception as error:
        line = explain(error)
        if line is None:
            raise
        raise InputError(without_folder(line)) from error


def _experiment(arguments: Mapping[str, Any]) -> Experiment:
    _refuse_changes_of_a_workload(arguments)
    objects = objects_of(arguments)
    given = {name: value for name, value in arguments.items() if name != "trace" and not is_object(name, value)}
    overrides = with_config_dirs(
        _with_files([*objects.overrides, *(word(name, value) for name, value in given.items())])
    )
    with composing(CONF):
        config = compose_config("config", overrides=name_files(overrides))
    for name, settings in objects.settings.items():
        OmegaConf.update(config, name, settings, merge=False)
    return compose(config, objects.made)


def _refuse_changes_of_a_workload(arguments: Mapping[str, Any]) -> None:
    """Raise InputError for a setting of the trace together with a Workload, since it would change nothing."""
    if isinstance(arguments.get("trace"), Workload):
        for name in arguments:
            if name in _OF_THE_TRACE or name.startswith("trace__"):
                raise InputError(f"{name}: a Workload is played as it is; give {name} to servelab.load_trace")


def _with_files(overrides: list[str]) -> list[str]:
    """The arguments with a YAML for each class of a file, `policy=FILE.py:CLASS`, as on the command line."""
    if not any(".py:" in one for one in overrides):
        return overrides
    from framework.cli.outside import with_files  # reads sources, which most runs do not need

    return with_files(overrides)


def word(name: str, value: Any) -> str:
    """A setting in the form of the command line."""
    key = f"trace.{name}" if name in _OF_THE_TRACE else name.replace("__", ".")
    return f"{key}={_text(value, key)}"


def _text(value: Any, key: str = "a") -> str:
    """A value in the grammar of overrides."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        texts = {name: quoted(one) if isinstance(one, str) else _text(one) for name, one in value.items()}
        return "{" + ",".join(f"{name}:{text}" for name, text in texts.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    if isinstance(value, Path):
        return quoted(str(value))
    text = str(value)
    is_plain = all(one.isalnum() or one in _PLAIN_PUNCTUATION for one in text)
    return text if is_plain or _is_one_value(f"{key}={text}") else quoted(text)


def _is_one_value(text: str) -> bool:
    """Whether it is already a setting of one value: a list, a mapping, a quoted text, a reference."""
    try:
        return not OverridesParser.create().parse_override(text).is_sweep_override()
    except HydraException:
        return False
