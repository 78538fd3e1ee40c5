"""What a mistyped word most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_ALIKE = 0.75  # as difflib measures it: one or two letters of a word
_MOST = 12


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no known word is like it."""
    found = difflib.get_close_matches(word, list(known), 1, _ALIKE)
    return f"; did you mean {found[0]}?" if found else ""


def instead_of(key: str, config: Mapping[str, Any]) -> str:
    """What there is instead of a setting that there is not: one that is like it, or those beside it."""
    keys = list(_keys(config))
    near = nearest(key, keys)
    if near:
        return near
    parent, _, last = key.rpartition(".")
    elsewhere = [one for one in keys if one.rpartition(".")[2] == last][:3]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    beside = [
        one.rpartition(".")[2] for one in keys if one.rpartition(".")[0] == parent and not one.endswith("_target_")
    ]
    if not beside or not parent:
        return "; --cfg job shows them all"
    more = ", ..." if len(beside) > _MOST else ""
    return f"; {parent} has {', '.join(beside[:_MOST])}{more}"


def _keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        if str(name) in ("hydra", "_convert_"):
            continue
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
