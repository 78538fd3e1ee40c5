"""One experiment: `python run.py policy=ares trace=mooncake`; `-m` for a sweep, `--cfg job` to see every setting."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from framework.cli.launch import launch


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> float:
    """Compose, measure, write, print; return the objective, such as the goodput in requests per second."""
    from framework.run.job import perform, sweep_job  # compiled code loads here, not for --help or --cfg

    if HydraConfig.get().mode == RunMode.MULTIRUN:  # a sweep ends in one table of all its runs
        return sweep_job(config).value
    from framework.cli.terminal import progress_bar, results_console
    from framework.report.capacity_table import capacity_table
    from framework.report.run_table import run_table

    chosen = HydraConfig.get().runtime.choices
    directory = Path(HydraConfig.get().runtime.output_dir)
    with progress_bar(f"{chosen.policy} on {chosen.trace}") as progress:
        measurement = perform(config, directory, progress)
    console = results_console()
    console.print(run_table(measurement.evaluation, measurement.slo))
    if measurement.probes is not None:
        console.print(capacity_table(measurement.evaluation.summary, measurement.probes))
    for note in measurement.notes:
        console.print(note, markup=False, highlight=False)
    print(f"results in {directory}", file=sys.stderr)
    return measurement.value


if __name__ == "__main__":
    launch(main)
