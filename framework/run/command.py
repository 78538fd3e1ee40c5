"""The work of `run.py`: one composed configuration is measured, written and printed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import RenderableType

from framework.cli.arguments import config_dirs, program
from framework.cli.outside import as_typed, is_of_files
from framework.cli.terminal import progress_line, results_console, tell
from framework.codes import REASON_LENGTH
from framework.objective.goodput import Measurement
from framework.report.capacity_table import capacity_table
from framework.report.decisions_table import decisions_table
from framework.report.run_table import run_table
from framework.report.sensitivity_table import sensitivity_table
from framework.result import Result
from framework.run.job import chosen as chosen_options
from framework.run.job import done, sweep_job

_LEAST_LOST = 0.01  # share of the requests
_LONG_S = 1.0  # seconds in hooks that are worth a note
_OWN = ("policy.", "cluster=", "cluster.prefill", "cluster.decode")  # settings that other policies need not have
_RIVALS = ("chunked", "distserve")  # one mixes both phases on its instances, the other separates them


def execute(config: DictConfig) -> float:
    """The objective, such as the goodput in requests per second; a run of a sweep prints nothing itself."""
    if HydraConfig.get().mode == RunMode.MULTIRUN:  # a sweep ends in one table of all its runs
        return sweep_job(config).value
    chosen = chosen_options(HydraConfig.get().runtime.choices)
    directory = Path(HydraConfig.get().runtime.output_dir)
    unit = "requests" if chosen["objective"] == "goodput" else "steps of the search"
    with progress_line(f"{chosen['policy']} on {chosen['trace']}", unit) as progress:
        outcome = done(config, directory, progress)
    measurement = outcome.measurement
    console = results_console()
    console.print(run_table(measurement.evaluation, measurement.slo))
    if outcome.sensitivity is not None:
        console.print(sensitivity_table(outcome.sensitivity, measurement.evaluation.summary))
    if outcome.decisions is not None:
        console.print(decisions_table(outcome.decisions))
    if outcome.limits is not None:
        console.print(outcome.limits.shown)
    elif (reason := why(measurement)) is not None:
        console.print(reason)
    if measurement.probes is not None:
        console.print(capacity_table(measurement.evaluation.summary, measurement.probes))
    for note in measurement.notes:
        console.print(note, markup=False, highlight=False)
    if measurement.probes is None:
        given, added = HydraConfig.get().overrides.task, config_dirs(HydraConfig.get().overrides.hydra)[1:]
        arguments = [word for word in given if not word.startswith(("policy=", "predictor=", "report=", "diagnose="))]
        arguments += _total(config, arguments)
        arguments += (
            [f"predictor={_as_typed(config, 'predictor')}"]
            if any(word.startswith("predictor=") for word in given)
            else []
        )
        command = comparison_command(
            _as_typed(config, "policy"), arguments, [path for path in added if not is_of_files(path)]
        )
        console.print(command, markup=False, highlight=False, style="dim", soft_wrap=True)
    _tell_of_hooks(measurement.result)
    _tell_of_cuts(measurement.result)
    tell(f"results in {directory}")
    return measurement.value


def _as_typed(config: DictConfig, group: str) -> str:
    """The option of a group as a command names it."""
    return as_typed(str(HydraConfig.get().runtime.choices[group]), config[group])


def why(measurement: Measurement) -> RenderableType | None:
    """The causes why requests missed the SLO, if more than a few did."""
    summary = measurement.evaluation.summary
    if 1 - summary["slo_attainment"] < _LEAST_LOST:
        return None
    from framework.diagnosis.findings import diagnose
    from framework.report.why_table import why_table

    diagnosis = diagnose(measurement.result, measurement.evaluation, measurement.slo)
    return why_table(diagnosis) if diagnosis.findings else None


def _tell_of_hooks(result: Result) -> None:
    if result.hooks_s > max(_LONG_S, 0.5 * result.replay_s):
        share = min(1.0, result.hooks_s / result.replay_s)
        print(f"note: hooks in Python took {share:.0%} of the simulation; docs/hooks.md says why", file=sys.stderr)


def _tell_of_cuts(result: Result) -> None:
    cut = int((result.requests["reason"] == REASON_LENGTH).sum())
    if cut:
        ends = f"after {result.model.max_context:,} tokens of prompt and output (model.max_context)"
        print(f"warning: {cut:,} outputs were cut where the context ends, {ends}", file=sys.stderr)


def _total(config: DictConfig, arguments: Sequence[str]) -> list[str]:
    """The setting that gives any cluster as many instances as these arguments gave to its pools."""
    pools = [config.cluster.get(name) for name in ("prefill", "decode")]
    given = any(word.startswith("cluster.instances=") for word in arguments)
    return [] if given or not all(isinstance(count, int) for count in pools) else [f"cluster.instances={sum(pools)}"]


def comparison_command(policy: str, arguments: Sequence[str], directories: Sequence[Path] = ()) -> str:
    """The command that compares a run with others. It keeps the arguments, except those that only its policy or a
    cluster with two pools has, and the added directories of YAMLs.
    """
    here = Path.cwd()
    added = [path.relative_to(here) if path.is_relative_to(here) else path for path in directories]
    config_dirs = [word for path in added for word in ("--config-dir", str(path))]
    shared = [word for word in arguments if not word.startswith(_OWN)]
    policies = dict.fromkeys((policy, *_RIVALS))
    chosen = f"policy={','.join(policies)}"
    return f"with others: {program()} -m {shlex.join([*config_dirs, chosen, *shared])}"
