"""A web page over a results store: `servelab ui store=results`, then the address that it prints.

It filters, groups, pivots and ranks the runs of sweeps and studies, shows which runs no other beats in two figures,
compares two, says why a run lost goodput, and follows sweeps and studies that run. It listens on this machine alone,
and writes nothing. A page of a run, and a comparison request by request, run the configuration in the record again:
open stores that you trust. Needs `pip install servelab[ui]`.
"""

from __future__ import annotations

from framework.cli.command import Arguments, command
from framework.errors import InputError
from servelab.packages import is_installed

_KEYS = {
    "store": "the directory of the store, results by default",
    "port": "the port on 127.0.0.1, 0: any that is free (8765)",
}


@command(__doc__, keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Serve until it is interrupted. Raises InputError for a wrong store, or if the server's package is missing."""
    if not is_installed("aiohttp"):
        raise InputError("servelab ui needs aiohttp: pip install 'servelab[ui]'")
    from servelab.ui.running import run

    run(arguments)
