"""The likely meaning of a mistyped word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from framework.cli.conf import CONF

_ALIKE = 0.75  # least likeness by difflib: one or two letters of a word
_BEGINNING, _FEW = 3, 3  # least letters of a beginning, and the most words that it may match
_MOST = 12
_HIDDEN = ("hydra", "_convert_")
MADE_OF_A_FILE, OF_A_FILE = "framework.cli.outside.make", ("file", "name", "source")  # policy=FILE.py:CLASS


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing if no known word is similar.

    Case does not matter. A word that is the beginning of a few others may mean any of them.
    """
    words = {one.lower(): one for one in known}
    found = difflib.get_close_matches(word.lower(), list(words), 1, _ALIKE)
    if not found and len(word) >= _BEGINNING:
        found = sorted(one for one in words if one.startswith(word.lower()))
    if not found or len(found) > _FEW:
        return ""
    return f"; did you mean {' or '.join(words[one] for one in found)}?"


def instead_of(key: str, config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
    """The existing settings that resemble a missing one, or those next to it.

    `choices`: the chosen option of each group, such as `engine/attention`.
    """
    keys = list(_keys(config))
    parent, _, last = key.rpartition(".")
    is_within = parent in keys  # then the common part says nothing
    near = nearest(last, [one.rpartition(".")[2] for one in keys if one.rpartition(".")[0] == parent])
    if is_within and near:
        return near.replace("mean ", f"mean {parent}.")
    if not is_within and (near := nearest(key, keys)):
        return near
    elsewhere = [one for one in keys if one.rpartition(".")[2] == last][:3]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    siblings = [
        one.rpartition(".")[2] for one in keys if one.rpartition(".")[0] == parent and not one.endswith("_target_")
    ]
    group = parent.replace(".", "/")
    choice = choices.get(group)
    if choice and (having := _with_setting(group, last)):
        return f"; {' or '.join(f'{group}={one}' for one in having)} has it"
    if choice and not siblings:
        return f"; {parent}={choice} has no settings"
    if not siblings or not parent:
        return "; --cfg job shows them all"
    more = ", ..." if len(siblings) > _MOST else ""
    chosen = f"{parent}={choice}" if choice else parent
    return f"; {chosen} has {', '.join(siblings[:_MOST])}{more}"


def _with_setting(group: str, name: str) -> list[str]:
    """The shipped options of a group whose file sets that."""
    files = sorted((CONF / group).glob("*.yaml"))
    return [file.stem for file in files if re.search(rf"^{re.escape(name)}:", file.read_text(), re.MULTILINE)]


def _keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    hidden = OF_A_FILE if config.get("_target_") == MADE_OF_A_FILE else _HIDDEN
    for name, value in config.items():
        if str(name) in hidden:
            continue
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
