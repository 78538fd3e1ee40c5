"""How much of each paper's headline the simulator shows, in the paper's regime and in one that all have in common.

    python -m experiments.claims [--only WORD] [--own] [--fast] [--out DIR]

Rows are the files of conf/experiment, one folder a system; --only takes a system (ares) or a row (ares/tpot). All runs
go through the results store: what it has is not run again. --own leaves out what is shown beside a verdict: the common
regime, and what was chosen otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from framework.cli.files import require_writable, write_whole
from framework.cli.launch import guard


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for, print and write the table; the exit code."""
    options = _parser().parse_args(arguments)
    return guard(
        lambda: show_claims(options.only or (), options.own, options.fast, options.out),
        "interrupted; the runs that ended are kept",
    )


def show_claims(only: Sequence[str], is_own: bool, is_fast: bool, out: Path | None) -> None:
    """Test the claims that the words of `only` mean, `is_own` in their own regimes alone.

    Raises InputError for rows that cannot be run.
    """
    from experiments.claims.file import read_claims, read_common
    from experiments.claims.run import put_to_test
    from experiments.claims.sheet import as_csv, lay_out
    from experiments.table.formats import as_latex, as_markdown, print_table

    claims, common = read_claims(only), read_common()
    if is_own:
        claims = [replace(claim, sensitivity={}, common={}) for claim in claims]
    directory = out or Path(f"outputs/{datetime.now():%Y-%m-%d/%H-%M-%S}-claims-{os.getpid()}")
    require_writable(directory)
    rows = put_to_test(claims, common, is_fast, directory)
    sheet = lay_out(rows, common, is_fast)
    print_table(sheet)
    for name, content in {"md": as_markdown(sheet), "tex": as_latex(sheet), "csv": as_csv(rows, common)}.items():
        write_whole(directory / f"claims.{name}", content.encode())
    print(f"results in {directory}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.claims", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", metavar="WORD", help="of a system (ares) or one row (ares/tpot)")
    parser.add_argument("--own", action="store_true", help="the row's own regime alone, which its verdict hangs on")
    parser.add_argument("--fast", action="store_true", help="fewer replicates and shorter traces")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the results, one of its own in outputs/")
    return parser
