"""What each part of a mechanism is worth: its variants on the same samples of a trace, in one table.

    python -m experiments.ablation NAME [--replicates N] [--out DIR] [KEY=VALUE ...]

conf/ablation/NAME.yaml names the variants. Every (variant, replicate) is run once; differences are paired by replicate,
intervals are Student's t over replicates.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.ablation.file import read_ablation
from experiments.ablation.report import as_table, remarks, require_writable, write
from experiments.ablation.run import run
from framework.cli.arguments import add_config_dir, all_words
from framework.cli.launch import guard
from framework.cli.terminal import results_console
from framework.errors import InputError

_TABLE_COLUMNS = 170  # of a file or a pipe; narrower terminals fold the table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ablation named on the command line and print its table; the exit code."""
    options = _parser().parse_intermixed_args(arguments)

    def run_and_show() -> None:
        ablation = read_ablation(options.name)
        replicates = ablation.replicates if options.replicates is None else options.replicates
        if replicates < 1:
            raise InputError(f"--replicates is {replicates}, must be at least 1")
        if options.out is not None:
            require_writable(options.out)
        outcome = run(ablation, replicates, all_words(options.overrides, options.config_dirs))
        console = results_console()
        if not console.is_terminal:
            console.width = max(console.width, _TABLE_COLUMNS)
        console.print(as_table(outcome))
        for remark in remarks(outcome):
            console.print(f"- {remark}", highlight=False, markup=False)
        if options.out is not None:
            write(options.out, outcome)

    return guard(run_and_show)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.ablation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="a file of conf/ablation, without .yaml")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of every run, as for run.py")
    add_config_dir(parser)
    parser.add_argument("--replicates", type=int, help="instead of the file's number")
    parser.add_argument("--out", type=Path, metavar="DIR", help="also write NAME.md, NAME.csv and NAME.json there")
    return parser
