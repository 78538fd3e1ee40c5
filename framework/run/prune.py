"""Removes from a store the records that today's runs would not reuse, because other code made them.

    python -m framework.run.prune store=results remove=true

It counts them by version, and removes them with remove=true. Until then tables can be made of them.
Records of classes that cannot be imported here stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from framework.cli.command import Arguments, command
from framework.errors import InputError
from framework.run.run_key import is_of_this_code
from framework.run.store import Record, Store
from framework.version import VERSION

_REMOVED, _USELESS = "removed", "made by other code, which remove=true removes"
_KEYS = {
    "store": "the directory of the store, results by default",
    "remove": "true: remove them",
}


@command(__doc__, keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Count the records of other code, and remove them if asked."""
    store = Store(arguments.path("store") or Path("results"))
    is_asked = arguments.truth("remove")
    records = store.read() if store.directory.is_dir() else []
    if not records:
        raise InputError(f"store={store.directory}: holds no runs")
    useless = [record for record in records if is_useless(record)]
    if is_asked:
        store.remove([record.key for record in useless])
    print(count_line(useless, len(records), _REMOVED if is_asked else _USELESS))


def is_useless(record: Record) -> bool:
    """Whether code other than today's made it, as far as that can be known."""
    if record.version != VERSION:
        return True
    try:
        return not is_of_this_code(record.key, record.config)
    except ImportError:  # perhaps of a policy that is on the path at other times
        return False


def count_line(useless: Sequence[Record], total: int, what: str) -> str:
    """One line: how many of how many are `what`, and of which versions."""
    counts = sorted(Counter(record.version for record in useless).items())
    versions = ", ".join(f"{count:,} of version {version}" for version, count in counts)
    kinds = f" ({versions})" if versions else ""
    return f"{len(useless):,} of {total:,} records {what}{kinds}"


if __name__ == "__main__":
    main.start()
