"""Latency and goodput against load: series of runs at increasing rates, or numbers of clients.

    python -m experiments.curve policy=chunked,distserve trace=azure_conv rates=1:8:8
    python -m experiments.curve policy=chunked trace=azure_conv concurrency=1:256:x2 hydra/launcher=joblib
    python -m experiments.curve series='policy=chunked cluster.instances=8' \\
        series='policy=distserve cluster.prefill=4 cluster.decode=4' trace=azure_conv seed=0,1,2

Arguments are KEY=VALUE. Keys that are not this command's own are settings of every run, as for run.py; each combination
of settings with several values, as policy=chunked,distserve, is a series. Several seeds make intervals.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from experiments.curve.arguments import Plan, read_plan
from experiments.curve.figures import tabulated
from experiments.curve.plots import draw
from experiments.curve.table import report
from framework.cli.arguments import ANY
from framework.cli.command import Arguments, command
from framework.cli.files import require_writable, write_whole
from framework.cli.launch import USER_ERROR
from framework.cli.streams import report_error
from framework.cli.terminal import results_console, tell
from framework.run.callback import FreshDirectory
from framework.run.sweep import Outcome, Sweep

_KEYS = {
    "rates": "requests/s: 1,2,4, or 1:8:15 (15 of them, evenly spaced), or 1:64:x2 (each twice the one before); "
    "auto, the default: 1/4 to 4 times the rate of the trace",
    "concurrency": "the same of clients, each with one request under way, instead of rates",
    "series": "settings of a series of its own, in quotes; may be given several times",
    "attainment": "share of requests that must keep the SLO, 0.9 by default",
    "out": "directory of the results, one of its own in outputs/ by default",
}


@command(
    __doc__, keys=_KEYS, repeated=("series",), settings=ANY, interrupted="interrupted; the runs that ended are kept"
)
def main(arguments: Arguments) -> int:
    """Run what the command line describes, print and draw it; the exit code is not 0 if points are missing."""
    return curve(arguments.every)


def curve(arguments: Sequence[str]) -> int:
    """Run, print and draw a curve; return a code other than 0 if points are missing. Raises InputError, and Hydra's
    errors.
    """
    plan = read_plan(arguments)
    directory = plan.out or Path(f"outputs/{datetime.now():%Y-%m-%d/%H-%M-%S}-curve-{os.getpid()}")
    before = FreshDirectory.watch(directory)
    require_writable(directory)
    try:
        found = tabulated(plan, plan.jobs(), run(plan, directory))
        results_console().print(report(found), highlight=False)
        write_whole(directory / "curve.csv", found.runs.write_csv().encode())
        draw(found, directory)
    finally:
        before.discard()  # It is removed if it is still empty.
    tell(f"results in {directory}")
    for line in found.refusals:
        report_error(line)
    return USER_ERROR if found.refusals else 0


def run(plan: Plan, directory: Path) -> list[Outcome]:
    """Run every job, or find it in the store; progress goes to stderr."""
    return Sweep(plan.launcher, directory).shown([job.overrides for job in plan.jobs()])
