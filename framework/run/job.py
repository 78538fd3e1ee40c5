"""The results of one configuration: its measurement and files, and, as a job of a sweep, its record in the store."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import RenderableType

from framework.checks import require_name
from framework.cli.arguments import program
from framework.cli.files import write_whole
from framework.cli.terminal import warn_once
from framework.errors import InputError
from framework.objective.decisions import Decisions, decisions
from framework.objective.experiment import Experiment
from framework.objective.goodput import Goodput, Measurement, Objective, Progress
from framework.objective.sensitivity import Sensitivity, sensitivity
from framework.report.timeline.perfetto import ALWAYS_S
from framework.run.building import build
from framework.run.compose import AUTO, compose
from framework.run.output import tables_of, write, write_summary
from framework.run.run_key import run_key
from framework.run.store import Record, Store
from framework.timing.calibration_terms import SERVER_TERMS
from framework.timing.measured import Measured
from framework.timing.uncertainty.widths import Width, width_of

_LONGEST_SLO_S = 600.0
_REPLAYS = 20  # of output.decisions=true
CACHE = "engine.prefix_cache"  # setting that the requests of a run decide if it is `auto`
_NOT_OF_THE_RUN = ("hydra", "output", "report", "diagnose", "store", "force")  # where results go


@dataclass(frozen=True)
class Limits:
    """What limits a run: for the terminal, as a chapter of its page, and as the content of diagnosis.json."""

    shown: RenderableType
    chapter: str
    data: str


@dataclass(frozen=True)
class Done:
    """The results of a configuration; `limits`, `sensitivity` and `decisions` on request (`diagnose`, `output`)."""

    measurement: Measurement
    limits: Limits | None
    sensitivity: Sensitivity | None
    decisions: Decisions | None = None


def perform(config: DictConfig, directory: Path, progress: Progress | None = None) -> Measurement:
    """The measurement of `done`."""
    return done(config, directory, progress).measurement


def done(config: DictConfig, directory: Path, progress: Progress | None = None) -> Done:
    """Measure what `config` describes and write the files of the run into `directory`."""
    objective, experiment = parts_of(config)
    return _done(config, objective, experiment, directory, progress)


def stored(config: DictConfig, choices: Mapping[str, str], store: Store, directory: Path | None = None) -> Record:
    """The record of `config` in `store`; if there is none, or if `config.force` is set, the run is done first.

    The files of the run go to `directory`, if given; a run that is not repeated leaves its summary there. A run that
    should leave more (`output`, `report`, `diagnose`) is repeated.
    """
    objective, experiment = parts_of(config)
    settings = settings_of(config, experiment)
    key = run_key(settings, experiment)
    record = None if _is_repeated(config) else store.get(key)
    if record is None:
        measurement = _measured(config, objective, experiment, directory)
        record = Record(key, settings, dict(choices), measurement.evaluation.summary, measurement.value)
        store.put(record)
    elif directory is not None:
        write_summary(directory, record.summary)
    return record


def _is_repeated(config: DictConfig) -> bool:
    return bool(config.force or config.report or config.diagnose or any(config.output.values()))


def sweep_job(config: DictConfig) -> Record:
    """`stored` as the task of a Hydra launcher, with the store and the run's directory of the Hydra config."""
    hydra = HydraConfig.get()
    return stored(config, chosen(hydra.runtime.choices), _store(config), Path(hydra.runtime.output_dir))


def study_job(config: DictConfig) -> Record:
    """`stored` without files of its own, as the task of a Hydra launcher."""
    hydra = HydraConfig.get()
    return stored(config, chosen(hydra.runtime.choices), _store(config))


def _store(config: DictConfig) -> Store:
    require_name("store", config.store)
    return Store(Path(HydraConfig.get().runtime.cwd) / config.store)


def flattened(config: DictConfig) -> dict[str, Any]:
    """The settings that determine a run, resolved: {"cluster.prefill": 4, ...}."""
    flat: dict[str, Any] = {}
    for name in config:
        if name not in _NOT_OF_THE_RUN:
            value = config[name]
            plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            _flatten(str(name), plain, flat)
    return flat


def settings_of(config: DictConfig, experiment: Experiment) -> dict[str, Any]:
    """The settings of the configuration of this experiment, with those that its requests decide (`auto`)."""
    return flattened(config) | {CACHE: experiment.engine.prefix_cache}


def chosen(choices: Mapping[str, Any]) -> dict[str, str]:
    """The option of each config group, except Hydra's own groups; groups within groups have names like
    settings: a.b.
    """
    kept = {str(group): str(choice) for group, choice in choices.items() if not str(group).startswith("hydra/")}
    return {group.replace("/", "."): choice for group, choice in kept.items()}


def _flatten(name: str, value: Any, flat: dict[str, Any]) -> None:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            _flatten(f"{name}.{key}", inner, flat)
    else:
        flat[name] = value


def parts_of(config: DictConfig) -> tuple[Objective, Experiment]:
    """What a configuration measures, and on which experiment. Raises InputError and Hydra's errors for wrong ones."""
    for name in ("force", "report", "diagnose"):
        if not isinstance(config[name], bool):
            raise InputError(f"{name} must be true or false, got {config[name]!r}")
    objective = build(config, "objective")
    if not isinstance(objective, Objective):
        raise InputError(f"objective: _target_ must make an Objective, it made a {type(objective).__name__}")
    if config.diagnose and objective.key != Goodput.key:
        raise InputError("diagnose=true runs the trace at one rate again and again; choose objective=goodput")
    experiment = compose(config)
    for name, runs in (("sensitivity", "twice more"), ("decisions", "again and again")):
        if config.output.get(name) not in (None, False) and objective.key != Goodput.key:
            raise InputError(f"output.{name} runs the trace at one rate {runs}; choose objective=goodput")
    for name in ("ttft_s", "tpot_s"):
        limit = getattr(experiment.slo, name)
        if limit is not None and limit > _LONGEST_SLO_S:
            warn_once(f"WARNING: slo.{name} is {limit:g} s; is it meant in milliseconds? Nearly every request keeps it")
    _warn_of_unused_terms(experiment)
    for pool in experiment.cluster.pools:
        if pool.ranks > 1:
            seats, tokens = experiment.engine.seats_of(pool), experiment.engine.budget_of(pool)
            warn_once(
                f"note: an instance of pool {pool.name} has {pool.ranks} data-parallel ranks; engine.max_batch and"
                f" engine.token_budget are of each: {seats:,} seats and {tokens:,} tokens a step in all"
            )
    return objective, experiment


def _warn_of_unused_terms(experiment: Experiment) -> None:
    """Tell of times of the server that the command line gives and the step times do not take."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    names = [override.partition("=")[0].lstrip("+") for override in given]
    terms = [name for name in names if name.removeprefix("server.") in SERVER_TERMS and name.startswith("server.")]
    timing, pools = experiment.timing, experiment.cluster.pools
    if not terms:
        return
    if not isinstance(timing, Measured):
        warn_once(f"note: {', '.join(terms)} counts for nothing: only timing=measured has a server")
    elif all(timing.is_fitted(experiment.model, pool.gpu, pool.parallelism) for pool in pools):
        warn_once(
            f"note: {', '.join(terms)} counts for nothing: step times are fitted to whole servers;"
            " timing.calibrated=false makes them of kernels and the server's terms"
        )


def _measured(config: DictConfig, objective: Objective, experiment: Experiment, directory: Path | None) -> Measurement:
    return _done(config, objective, experiment, directory).measurement


def _done(
    config: DictConfig,
    objective: Objective,
    experiment: Experiment,
    directory: Path | None,
    progress: Progress | None = None,
) -> Done:
    width = _width(config, experiment)  # refused before the run
    measurement = objective.measure(experiment, progress)
    settings = settings_of(config, experiment)
    limits = _limits(config, settings, experiment, measurement) if config.diagnose else None
    ranges = None if width is None else sensitivity(experiment, measurement, width)
    routes = _decisions(config, experiment, measurement)
    if directory is not None:
        result, evaluation = measurement.result, measurement.evaluation
        asked = config.output
        further = tables_of(result, evaluation, asked.series_s, phases=asked.phases, gaps=asked.gaps)
        if config.report:
            further["report.html"] = partial(_page, measurement, settings, limits, routes)
        if limits is not None:
            further["diagnosis.json"] = partial(str, limits.data)
        if ranges is not None:
            further["sensitivity.json"] = partial(json.dumps, ranges.data(), indent=2)
        if routes is not None:
            further["decisions.parquet"] = routes.table
        window_s = ALWAYS_S if asked.window_s is None else (asked.window_s[0], asked.window_s[1])
        write(
            directory,
            result,
            evaluation,
            steps=asked.steps,
            timeline=asked.timeline,
            further=further,
            window_s=window_s,
            slo=measurement.slo,
        )
        if measurement.probes is not None:
            write_whole(directory / "probes.csv", measurement.probes.write_csv().encode())
    return Done(measurement, limits, ranges, routes)


def _decisions(config: DictConfig, experiment: Experiment, measurement: Measurement) -> Decisions | None:
    """The routing decisions, if `output.decisions` asks for them."""
    asked = config.output.get("decisions", False)
    if asked is False:
        return None
    return decisions(experiment, measurement, _REPLAYS if asked is True else int(asked))


def _width(config: DictConfig, experiment: Experiment) -> Width | None:
    """The assumed error of step times, if `output.sensitivity` asks for its effect."""
    asked = config.output.sensitivity
    if asked is None:
        return None
    if asked != AUTO:
        return Width(asked, 1 + asked, "")
    pool = experiment.setting.cluster.pools[experiment.setting.cluster.entrance]
    return width_of(experiment.timing, experiment.model, pool.gpu, pool.parallelism)


def _limits(
    config: DictConfig, settings: Mapping[str, Any], experiment: Experiment, measurement: Measurement
) -> Limits:
    """What limits the run, found by running it again and again; the code for that is loaded only here."""
    from framework.report.page.limits import limits
    from framework.report.trials_table import TrialsTable
    from framework.run.trying import diagnosis_text, tried

    found = tried(config, settings, experiment, measurement)
    return Limits(TrialsTable(found), limits(found), diagnosis_text(found))


def _page(
    measurement: Measurement, settings: Mapping[str, Any], limits: Limits | None, routes: Decisions | None
) -> str:
    """The report, whose code is loaded only here."""
    from framework.report.decisions_chapter import decisions_chapter
    from framework.report.page.run_page import run_page

    regrets = None if routes is None else decisions_chapter(routes, measurement.result)
    arguments = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    command = f"{program()} {shlex.join(arguments)}"
    return run_page(measurement, settings, command, limits.chapter if limits else None, regrets)
