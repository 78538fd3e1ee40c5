"""Options that name a file: `engine.attention=pod` is short for `engine/attention=pod`.

Hydra tells groups of files (`/`) from settings (`.`). A group within a group is both: what is written as a setting, but
with a name as its value, chooses the file of that name, so that settings of the file can still be given beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_CONF = Path(__file__).resolve().parents[1] / "conf"
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
