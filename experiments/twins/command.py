"""Whether a fitted trace tells what its recording tells: the same runs on both, cell by cell.

    python -m experiments.twins [TRACE ...] [--samples N] [--resamples N] [--capacity-resamples N] [--out FILE]

conf/twins/study.yaml names the cells: policies, memories and rates. Each is played on the whole trace and on each third
of it. A figure is near if it is off by at most what `experiments/twins/judge.py` allows; else it may lie in the
interval that resampled blocks of the recording span.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments.twins.report import cells, summary
from experiments.twins.run import Extent, measure
from experiments.twins.study import CONF, read_study
from framework.cli.composition import composing
from framework.cli.files import require_writable, write_whole
from framework.cli.launch import guard
from framework.cli.terminal import results_console
from framework.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and print it in Markdown; the exit code."""
    options = _parser().parse_args(arguments)
    return guard(lambda: compare(options))


def compare(options: argparse.Namespace) -> None:
    """The same. Raises InputError for an unknown trace and where a recording is not at hand."""
    study = read_study()
    for name in options.traces:
        if name not in study.traces:
            raise InputError(f"{name!r}: there is no such trace in the study; choose from {', '.join(study.traces)}")
    extent = Extent(options.samples, options.resamples, options.capacity_resamples)
    if extent.samples < 1 or min(extent.resamples, extent.capacity_resamples) < 0:
        raise InputError("--samples must be at least 1, and the resamples at least 0")
    if options.out is not None:
        require_writable(options.out.absolute().parent)
    started_s = time.monotonic()

    def tell(words: str) -> None:
        print(f"{words}, {time.monotonic() - started_s:.0f} s", file=sys.stderr)

    with composing(CONF):
        found = [measure(study, name, extent, tell) for name in options.traces or study.traces]
    text = "\n".join([summary(study, found), *(cells(study, one) for one in found)])
    results_console().print(text, markup=False, highlight=False, soft_wrap=True)
    if options.out is not None:
        write_whole(options.out, text.encode())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m experiments.twins", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="*", metavar="TRACE", help="fitted traces of the study; all if none is named")
    parser.add_argument("--samples", type=int, default=Extent.samples, help="of the fitted trace, seeds 0, 1, ...")
    parser.add_argument("--resamples", type=int, default=Extent.resamples, help="of the recording, for cells")
    parser.add_argument(
        "--capacity-resamples", type=int, default=Extent.capacity_resamples, help="of the recording, for capacities"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the tables there")
    return parser
