"""Tests whether short searches find the best: every point of a space is run, then short searches are compared with it.

    python -m experiments.validation.optimum only=chunked

scenarios.yaml names the scenarios. All points go through the results store, and stored ones are not run again. Searches
draw from the same points, and take their figures from there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import optuna

from experiments.validation.optimum.file import read_scenarios
from experiments.validation.optimum.report import draw, table, write
from experiments.validation.optimum.solve import Searches, solve
from framework.cli.arguments import ANY
from framework.cli.command import Arguments, command
from framework.cli.files import require_writable
from framework.cli.terminal import results_console, tell

_KEYS = {
    "only": "scenarios of this policy, model or trace; of all that are named, joined by commas",
    "sampler": "of the searches, that of scenarios.yaml by default",
    "out": "directory of the results, outputs/optimum by default",
}


@command(__doc__, keys=_KEYS, settings=ANY)
def main(arguments: Arguments) -> None:
    """Solve the scenarios and print the result."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    out = arguments.path("out") or Path("outputs/optimum")
    require_writable(out)
    study, scenarios = read_scenarios(arguments.several("only"), arguments.settings)
    sampler = arguments.own.get("sampler", study["sampler"])
    searches = Searches(sampler, study["trials"], study["seeds"], study["first_seed"])
    solved = []
    for scenario in scenarios:
        solved.append(solve(scenario, searches, out))
        print(f"{len(solved)} of {len(scenarios)}: {scenario.name}", file=sys.stderr)
    results_console().print(table(solved, study["near"]))
    write(out, solved, study["near"])
    draw(out, solved)
    tell(f"results in {out}")
