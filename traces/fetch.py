"""`python -m traces.fetch NAME`: download a public trace into the user cache. Without a name: list what there is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from framework.cli.safe_text import one_line
from framework.errors import InputError
from traces import catalogue

DOWNLOAD_S = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 2 with one line on stderr when the trace cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m traces.fetch", description=__doc__)
    parser.add_argument("name", nargs="?", help="a trace of the list")
    parser.add_argument("--timeout", type=float, default=DOWNLOAD_S, metavar="S", help="seconds (default %(default)g)")
    chosen = parser.parse_args(arguments)
    if chosen.name is None:
        Console().print(listing())
        return 0
    try:
        path = catalogue.find(chosen.name) or catalogue.download(chosen.name, chosen.timeout)
    except InputError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        return 2
    print(path)
    return 0


def listing() -> Table:
    """The known traces, one row each."""
    table = Table("name", "at hand", "twin", "licence", "citation")
    for name, known in catalogue.CATALOGUE.items():
        at_hand = "file" if catalogue.find(name) else "twin only" if known.url is None else "to download"
        table.add_row(name, at_hand, "yes" if known.twin else "no", known.licence, known.citation)
    return table


if __name__ == "__main__":
    sys.exit(main())
