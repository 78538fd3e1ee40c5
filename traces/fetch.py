"""Download a public trace into the user's cache: `python -m traces.fetch NAME`. Without a name: list the known ones."""

from __future__ import annotations

from rich.table import Table

from framework.cli.command import Arguments, command
from framework.cli.terminal import results_console
from traces import catalogue

DOWNLOAD_S = 600.0


@command(__doc__, operands="[NAME]", keys={"timeout": f"seconds, {DOWNLOAD_S:g} by default"})
def main(arguments: Arguments) -> None:
    """Print the path of the trace once it is available. Raises InputError if it is not."""
    if not arguments.operands:
        results_console().print(listing())
        return
    (name,) = arguments.operands
    print(catalogue.find(name) or catalogue.download(name, arguments.number("timeout", DOWNLOAD_S)))


def listing() -> Table:
    """The known traces, one row each."""
    table = Table("name", "at hand", "fitted trace", "licence", "citation")
    for name, known in catalogue.CATALOGUE.items():
        at_hand = "file" if catalogue.find(name) else "fitted trace only" if known.url is None else "to download"
        table.add_row(name, at_hand, "yes" if known.twin else "no", known.licence, known.citation)
    return table


if __name__ == "__main__":
    main.start()
