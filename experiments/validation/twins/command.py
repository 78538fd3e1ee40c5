"""Whether a fitted trace gives the results of its recording: the same runs on both, cell by cell.

    python -m experiments.validation.twins azure_conv samples=3 resamples=12 capacity_resamples=3

study.yaml names the cells: policies, memories and rates. Each is played on the whole trace and on each third of it. A
figure is near if it differs by at most what `judge.py` allows; else it may lie in the interval of resampled blocks of
the recording.
"""

from __future__ import annotations

import sys
import time

from experiments.validation.twins.report import cells, samples, summary
from experiments.validation.twins.run import Extent, measure
from experiments.validation.twins.study import read_study
from framework.cli.command import Arguments, command
from framework.cli.composition import composing
from framework.cli.conf import CONF
from framework.cli.files import require_writable, write_whole
from framework.cli.terminal import results_console
from framework.errors import InputError

_KEYS = {
    "samples": f"of the fitted trace, seeds 0, 1, ..., {Extent.samples} by default",
    "resamples": f"of the recording, for cells, {Extent.resamples} by default",
    "capacity_resamples": f"of the recording, for capacities, {Extent.capacity_resamples} by default",
    "out": "a file that the tables are written to, too",
}


@command(__doc__, operands="[TRACE ...]", keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Run the comparison and print it in Markdown.

    Raises InputError for an unknown trace and for a missing recording.
    """
    study, out = read_study(), arguments.path("out")
    for name in arguments.operands:
        if name not in study.traces:
            raise InputError(f"{name!r}: there is no such trace in the study; choose from {', '.join(study.traces)}")
    extent = Extent(
        arguments.whole("samples", Extent.samples),
        arguments.whole("resamples", Extent.resamples, least=0),
        arguments.whole("capacity_resamples", Extent.capacity_resamples, least=0),
    )
    if out is not None:
        require_writable(out.absolute().parent)
    started_s = time.monotonic()

    def tell(what: str) -> None:
        print(f"{what}, {time.monotonic() - started_s:.0f} s", file=sys.stderr)

    with composing(CONF):
        found = [measure(study, name, extent, tell) for name in arguments.operands or study.traces]
    text = "\n".join([summary(study, found), samples(study, found), *(cells(study, one) for one in found)])
    results_console().print(text, markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        write_whole(out, text.encode())
