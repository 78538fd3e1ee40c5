"""Do short searches find the best? Every point of a space is run, then searches with few trials are held against it.

    python -m experiments.optimum [--only WORD] [--out DIR] [KEY=VALUE ...]

scenarios.yaml names the scenarios. All points go through the results store: what it has is not run again.
Searches draw from the same points, and take their figures from there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import optuna

from experiments.optimum.file import read_scenarios
from experiments.optimum.report import draw, table, write
from experiments.optimum.solve import Searches, solve
from framework.cli.arguments import add_config_dir, all_words
from framework.cli.files import require_writable
from framework.cli.launch import guard
from framework.cli.terminal import results_console


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve the scenarios and print what was found; the exit code."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options = _parser().parse_intermixed_args(arguments)

    def solve_all() -> None:
        require_writable(options.out)
        study, scenarios = read_scenarios(options.only or (), all_words(options.overrides, options.config_dirs))
        searches = Searches(study["sampler"], study["trials"], study["seeds"])
        solved = []
        for scenario in scenarios:
            solved.append(solve(scenario, searches, options.out))
            print(f"{len(solved)} of {len(scenarios)}: {scenario.name}", file=sys.stderr)
        results_console().print(table(solved, study["near"]))
        write(options.out, solved, study["near"])
        draw(options.out, solved)
        print(f"results in {options.out}", file=sys.stderr)

    return guard(solve_all)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.optimum", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of every run, as for run.py")
    add_config_dir(parser)
    parser.add_argument(
        "--only", action="extend", nargs="+", metavar="WORD", help="scenarios of this policy, model or trace"
    )
    parser.add_argument("--out", type=Path, default=Path("outputs/optimum"), metavar="DIR")
    return parser
