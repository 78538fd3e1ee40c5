"""Builds a part from its settings, which name a class by `_target_`."""

from __future__ import annotations

from importlib import import_module
from pkgutil import resolve_name
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from framework.cli.typed_settings import require_types
from framework.errors import InputError

_OWN = ("framework", "policies", "predictors", "traces")  # packages in which a setting may name anything
_TARGET, _CONVERT = "_target_", "_convert_"
_LEFT_TO_HYDRA = ("_args_", "_partial_", "_recursive_")


class _NotPlainError(Exception):
    """These settings need more than a call of one of the project's own classes."""


def build(config: DictConfig, name: str) -> Any:
    """The part that `config[name]` describes, with plain lists and mappings: a faster `instantiate` of Hydra.

    Raises InputError for what the part refuses, and Hydra's errors, which state the setting, for anything else.
    """
    try:
        return _made(OmegaConf.to_container(config[name], resolve=True, throw_on_missing=True), name)
    except InputError:
        raise
    except Exception:  # Hydra finds it too, and names the setting
        _require_types_outside(config, name)
        return instantiate(config[name], _convert_="all")


def _require_types_outside(config: DictConfig, name: str) -> None:
    """Check the settings of a class of another package, except those that are parts themselves; leave errors to Hydra.

    Raises InputError.
    """
    try:
        settings = OmegaConf.to_container(config[name], resolve=True, throw_on_missing=True)
        if not isinstance(settings, dict) or any(key in settings for key in _LEFT_TO_HYDRA):
            return
        kind = resolve_name(str(settings[_TARGET]))  # Hydra's own function logs a failure
    except Exception:
        return
    plain = {str(key): one for key, one in settings.items() if not (isinstance(one, dict) and _TARGET in one)}
    require_types(name, kind, {key: one for key, one in plain.items() if key not in (_TARGET, _CONVERT)})


def _made(settings: Any, where: str) -> Any:
    if isinstance(settings, list):
        return [_made(one, f"{where}[{index}]") for index, one in enumerate(settings)]
    if not isinstance(settings, dict):
        return settings
    if _TARGET not in settings:
        return {key: _made(value, f"{where}.{key}") for key, value in settings.items()}
    if any(key in settings for key in _LEFT_TO_HYDRA) or settings.get(_CONVERT, "all") != "all":
        raise _NotPlainError
    kind = _own_class(settings[_TARGET])
    own = (_TARGET, _CONVERT)
    values = {key: _made(value, f"{where}.{key}") for key, value in settings.items() if key not in own}
    try:
        made = kind(**values)
    except InputError:
        raise
    except Exception:  # nearly always from a value of another type
        require_types(where, kind, values)
        raise
    require_types(where, kind, values)
    return made


def _own_class(target: Any) -> Any:
    module, _, name = str(target).rpartition(".")
    if module.partition(".")[0] not in _OWN:
        raise _NotPlainError
    return getattr(import_module(module), name)
