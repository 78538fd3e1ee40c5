"""One page that compares finished runs, or shows a sweep: `servelab report DIR DIR ... out=comparison.html`.

Each DIR is the directory of a run (hydra.run.dir, or one below outputs/ or multirun/), from which it reads
summary.json, requests.parquet and the configuration. The page shows what changed in the settings, the figures side by
side, latencies with the limits of the SLO, and differences of each run from the first, request by request. It needs no
network.

If the one DIR is a sweep's (hydra.sweep.dir), it has curves over swept settings, maps of two settings, and goodput
against cost.
"""

from __future__ import annotations

from pathlib import Path

from framework.cli.command import Arguments, command


@command(__doc__, operands="DIR ...", keys={"out": "the page, comparison.html by default"})
def main(arguments: Arguments) -> None:
    """Write the page. Raises InputError if a directory has no run."""
    from framework.cli.files import write_whole
    from framework.cli.terminal import tell
    from framework.report.arms import Arm, unlike
    from framework.report.page.compare_page import compare_page
    from framework.report.page.sweep_page import sweep_page
    from framework.run.finished import finished_runs, is_sweep, setup_of_sweep, sweep_points

    out = arguments.path("out") or Path("comparison.html")
    directories = [Path(word) for word in arguments.operands]
    if len(directories) == 1 and is_sweep(directories[0]):
        points, unfinished = sweep_points(directories[0], out.parent)
        title = f"Sweep of {len(points) + unfinished:,} runs"
        page = sweep_page(points, title, unfinished, setup_of_sweep(directories[0], points))
    else:
        runs = finished_runs(directories, out.parent)
        page = compare_page(runs)
        print(unlike([Arm(run.label, run.settings) for run in runs]) or "The runs have the same settings.")
    write_whole(out, page.encode())
    tell(f"page in {out}")
