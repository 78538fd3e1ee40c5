"""The work of `run.py`: one composed configuration, measured, written and printed."""

from __future__ import annotations

import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from framework.cli.terminal import progress_bar, results_console
from framework.codes import REASON_LENGTH
from framework.report.capacity_table import capacity_table
from framework.report.run_table import run_table
from framework.result import Result
from framework.run.job import chosen as chosen_options
from framework.run.job import perform, sweep_job


def execute(config: DictConfig) -> float:
    """The objective, such as the goodput in requests per second; a run of a sweep prints nothing of its own."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:  # a sweep ends in one table of all its runs
        return sweep_job(config).value
    chosen = chosen_options(HydraConfig.get().runtime.choices)
    directory = Path(HydraConfig.get().runtime.output_dir)
    with progress_bar(f"{chosen['policy']} on {chosen['trace']}") as progress:
        measurement = perform(config, directory, progress)
    console = results_console()
    console.print(run_table(measurement.evaluation, measurement.slo))
    if measurement.probes is not None:
        console.print(capacity_table(measurement.evaluation.summary, measurement.probes))
    for note in measurement.notes:
        console.print(note, markup=False, highlight=False)
    _tell_of_cuts(measurement.result)
    print(f"results in {directory}", file=sys.stderr)
    return measurement.value


def _tell_of_cuts(result: Result) -> None:
    cut = int((result.requests["reason"] == REASON_LENGTH).sum())
    if cut:
        ends = f"after {result.model.max_context:,} tokens of prompt and output (model.max_context)"
        print(f"warning: {cut:,} outputs were cut where the context ends, {ends}", file=sys.stderr)
