"""How much of each paper's headline the simulator shows, in the paper's regime.

    python -m experiments.validation.claims only=ares,sarathi/yi own=true fast=true

Rows are the files of conf/experiment, one folder for each system. All runs go through the results store, and stored
ones are not run again.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from framework.cli.command import Arguments, command
from framework.cli.files import require_writable, write_whole
from framework.cli.terminal import tell

_KEYS = {
    "only": "systems (ares), rows (ares/tpot) or beginnings of rows, joined by commas",
    "own": "true: what decides the verdict alone, without what is chosen otherwise",
    "fast": "true: fewer replicates and shorter traces",
    "out": "directory of the results, one of its own in outputs/ by default",
}


@command(__doc__, keys=_KEYS, interrupted="interrupted; the runs that ended are kept")
def main(arguments: Arguments) -> None:
    """Test the claims that the command line names, print and write the table."""
    from experiments.table.formats import as_latex, as_markdown, print_table
    from experiments.validation.claims.file import read_claims, read_trial
    from experiments.validation.claims.pages import system_pages
    from experiments.validation.claims.run import put_to_test
    from experiments.validation.claims.sheet import as_csv, lay_out

    claims, trial = read_claims(arguments.several("only")), read_trial()
    if arguments.truth("fast"):
        trial = trial.in_fast_mode()
    if arguments.truth("own"):
        claims = [replace(claim, sensitivity={}) for claim in claims]
    directory = arguments.path("out") or Path(f"outputs/{datetime.now():%Y-%m-%d/%H-%M-%S}-claims-{os.getpid()}")
    require_writable(directory)
    rows = put_to_test(claims, trial, directory)
    sheet = lay_out(rows, trial)
    print_table(sheet)
    tables = {"md": as_markdown(sheet), "tex": as_latex(sheet), "csv": as_csv(rows, trial)}
    files = {f"claims.{kind}": content for kind, content in tables.items()}
    files |= {f"claims/{name}.md": page for name, page in system_pages(rows).items()}
    for name, content in files.items():
        write_whole(directory / name, content.encode())
    tell(f"results in {directory}")
