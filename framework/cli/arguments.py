"""Command lines of `key=value` words, and the parts of the configuration that they choose.

Options that name a file: `engine.attention=pod` is short for `engine/attention=pod`.

Hydra tells groups of files (`/`) from settings (`.`). A group within a group is both: what is written as a setting, but
with a name as its value, chooses the file of that name, so that settings of the file can still be given beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from framework.errors import InputError

_CONF = Path(__file__).resolve().parents[2] / "conf"
_NO_NAME = "{$"  # settings written out, a reference to another setting


def name_files(overrides: Sequence[str], conf: Path = _CONF) -> list[str]:
    """The same overrides, as Hydra wants them; several names for a sweep may stand where one may."""
    return [_name_file(word, conf) for word in overrides]


def _name_file(word: str, conf: Path) -> str:
    key, equals, value = word.partition("=")
    group = key.replace(".", "/")
    if not equals or group == key or value.startswith(tuple(_NO_NAME)):
        return word
    return f"{group}={value}" if key[0].isalpha() and (conf / group).is_dir() else word


# --- words of `key=value` ---------------------------------------------------------------------------------------------


_LARGEST = 10**9


def split_arguments(
    words: Sequence[str], own: Sequence[str], groups: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """The values of the keys `own`, and the words that choose from, or override, the config groups.

    InputError for a word that is neither, and for one that is given twice.
    """
    values: dict[str, str] = {}
    overrides: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        kept = values if key in own else overrides
        if not equals or (key not in own and key.split(".")[0] not in groups):
            known = ", ".join(f"{name}=" for name in dict.fromkeys((*groups, *own)))
            raise InputError(f"{word}: not understood; give any of {known}")
        if key in kept:
            raise InputError(f"{word}: {key} is given twice")
        kept[key] = value
    return values, [f"{key}={value}" for key, value in overrides.items()]


def configured(overrides: Sequence[str], groups: Sequence[str]) -> Mapping[str, Any]:
    """What `overrides` of conf/config.yaml choose from `groups`, built. Hydra's errors where they cannot be."""
    with initialize_config_dir(str(_CONF), version_base="1.3"):
        config = compose("config", overrides=name_files(overrides))
    return {group: instantiate(config[group], _convert_="all") for group in groups}


def whole(name: str, text: str, largest: int = _LARGEST) -> int:
    """A whole number from 1 to `largest`, underscores and commas allowed; InputError for anything else."""
    digits = text.replace("_", "").replace(",", "")
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits) <= largest:
        raise InputError(f"{name} must be a whole number from 1 to {largest:,}, got {text!r}")
    return int(digits)


def truth(name: str, text: str) -> bool:
    """True or false; InputError for anything else."""
    if text.lower() not in ("true", "false"):
        raise InputError(f"{name} must be true or false, got {text!r}")
    return text.lower() == "true"
