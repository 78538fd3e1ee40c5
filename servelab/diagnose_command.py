"""What limits the goodput of a run, and what would improve it: `servelab diagnose DIR`.

DIR is the directory of a run (hydra.run.dir, or one below outputs/ or multirun/). The run is repeated, then again with
one cause after another removed (prefills or decodes ten times as fast, unlimited KV memory, a free network, ...). The
gain of each ranks the causes. Then settings that act on them are tried, each by itself. DIR gets diagnosis.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from framework.cli.command import Arguments, command


@command(__doc__, operands="DIR")
def main(arguments: Arguments) -> None:
    """Print the diagnosis. Raises InputError if there is no run in the directory."""
    from framework.cli.terminal import progress_line, results_console, tell
    from framework.objective.goodput import Goodput
    from framework.report.trials_table import TrialsTable
    from framework.run.compose import compose
    from framework.run.job import settings_of
    from framework.run.trying import config_of, tried, write_diagnosis

    directory = Path(arguments.operands[0])
    config = config_of(directory)
    experiment = compose(config)
    with progress_line("diagnosis", "runs") as progress:
        measurement = Goodput().measure(experiment)
        found = tried(config, settings_of(config, experiment), experiment, measurement, progress)
    _tell_of_another_run(directory, measurement.evaluation.summary["goodput_rps"])
    results_console().print(TrialsTable(found))
    file = write_diagnosis(directory, found)
    tell(f"the same in {file}")


def _tell_of_another_run(directory: Path, goodput: float) -> None:
    """Warn if the run that left its files there had another goodput than the repeated one."""
    try:
        before = json.loads((directory / "summary.json").read_bytes())["goodput_rps"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if before != goodput:
        line = f"the run in {directory} came to a goodput of {before:.6g} req/s; repeated, it comes to {goodput:.6g}"
        print(f"note: {line}: the code, the trace or the objective is another", file=sys.stderr)
