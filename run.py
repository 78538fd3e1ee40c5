"""One experiment: `python run.py policy=ares trace=mooncake`; `-m` for a sweep, `--cfg job` to see every setting."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from framework.launch import launch


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> float:
    """Compose, simulate, write, print; return the goodput in requests per second."""
    from framework.compose import compose  # compiled code loads here, not for --help or --cfg
    from framework.metrics import evaluate
    from framework.output import write
    from framework.report.table import run_table
    from framework.terminal import results_console

    experiment = compose(config)
    result = experiment.run()
    evaluation = evaluate(result, experiment.slo)
    directory = Path(HydraConfig.get().runtime.output_dir)
    write(directory, result, evaluation, steps=config.output.steps, timeline=config.output.timeline)
    if HydraConfig.get().mode != RunMode.MULTIRUN:  # a sweep ends in one table of all its runs
        results_console().print(run_table(evaluation, experiment.slo))
        print(f"results in {directory}", file=sys.stderr)
    return float(evaluation.summary["request_goodput"])


if __name__ == "__main__":
    launch(main)
