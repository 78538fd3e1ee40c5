"""A policy's own defaults against the best of a short search, by capacity.

    python -m experiments.validation.defaults azure_code only=chunked,distserve

study.yaml names policies, spaces and traces. A cell is `untuned / tuned` requests/s and their ratio; `!` marks less
than half, `?` a search that ran out of requests before it had decided, `<` (with `race=2`) a rate that no trial
sustained. All runs go through the results store, and stored ones are not run again.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import optuna

from experiments.validation.defaults.report import table
from experiments.validation.defaults.run import search
from experiments.validation.defaults.study import read_study
from framework.cli.command import Arguments, command
from framework.cli.files import require_writable, write_whole
from framework.cli.terminal import results_console, tell
from framework.errors import InputError
from framework.run.live import told
from framework.run.sweep import Sweep

_KEYS = {
    "only": "policies, joined by commas; all of study.yaml by default",
    "trials": "of each search, those of study.yaml by default",
    "race": "ratio to the capacity of the defaults that a draw has to sustain, or it is given up",
    "out": "a file that the table is written to, too",
}
_RUNS = Path("outputs/defaults")
_LEAST = 0.5  # least share of the tuned capacity


@command(__doc__, operands="[TRACE ...]", keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Search cell by cell and print the table. Raises InputError for names that study.yaml lacks."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study, out = read_study(), arguments.path("out")
    trials, race = arguments.whole("trials", study.trials), arguments.number("race", study.race)
    study = replace(study, trials=trials, race=race)
    traces, policies = arguments.operands or list(study.traces), arguments.several("only") or list(study.policies)
    for name, known in (*((one, study.traces) for one in traces), *((one, study.policies) for one in policies)):
        if name not in known:
            raise InputError(f"{name!r} is not in the study; choose from {', '.join(known)}")
    if out is not None:
        require_writable(out.absolute().parent)
    cells, found = list(product(traces, policies)), []
    with told(Sweep(study.overrides(*cells[0]), _RUNS).store, "defaults", "defaults", "cells") as progress:
        for number, (trace, policy) in enumerate(cells):
            progress(number, len(cells))
            one = search(study, trace, policy, _RUNS)
            found.append(one)
            words = f"{one.untuned_rps:.4g} / {one.tuned_rps:.4g} req/s {' '.join(one.best)}"
            tell(f"{number + 1} of {len(cells)}: {policy} on {trace}: {words}")
    text = table(found, _LEAST)
    results_console().print(text, markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        write_whole(out, text.encode())
