"""Short names for numba's record types.

numba names a record type by the full text of its fields, and every symbol of a function by the names of its types: 15
KB a symbol where the engine's records are passed on. A name of constant length keeps symbols, and the cache of compiled
code, small. Record types are equal exactly when their names are, so the name is a hash of the text.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

from numba import types

Record: Any = types.Record
_LONGEST = 80  # characters up to which a name stays as it is


def shorten_record_names() -> None:
    """Give every record type that numba makes in this process from now on a short name."""
    make = Record.__init__
    if hasattr(make, "__wrapped__"):
        return

    @functools.wraps(make)
    def make_with_short_name(record: Any, *arguments: Any, **options: Any) -> None:
        make(record, *arguments, **options)
        record.name = short_name(record.name)

    Record.__init__ = make_with_short_name


def short_name(name: str) -> str:
    """A unique name for this one."""
    return name if len(name) <= _LONGEST else f"Record({hashlib.sha256(name.encode()).hexdigest()[:24]})"
