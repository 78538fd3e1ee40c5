"""Short names for numba's record types.

numba names a record type by the full text of its fields, and every symbol of a function that takes one by the names of
its types: 15 KB a symbol where the engine's records are passed on. A name of constant length keeps symbols, and with
them the cache of compiled code, small. Records are equal exactly when their names are, so the name is a hash of the
full text.
"""

from __future__ import annotations

import hashlib
from typing import Any

from numba import types

_LONGEST = 80  # characters of a name that is left as it is


def shorten_record_names() -> None:
    """Give every record type that numba makes from now on in this process a short name."""
    original: Any = types.Record.__init__
    if hasattr(original, "__wrapped__"):
        return

    def initialise(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        self.name = short(self.name)

    initialise.__wrapped__ = original  # type: ignore[attr-defined]
    types.Record.__init__ = initialise


def short(name: str) -> str:
    """A name that stands for this one alone."""
    return name if len(name) <= _LONGEST else f"Record({hashlib.sha256(name.encode()).hexdigest()[:24]})"
