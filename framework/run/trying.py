"""Runs a configuration again to find what limits it: with each remedy, and from the directory of an ended run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework.cli.conf import CONF
from framework.cli.files import write_whole
from framework.cli.reading import parsed_yaml, read_text
from framework.diagnosis.trials import Trial, Trials, trials
from framework.errors import InputError
from framework.objective.experiment import Experiment
from framework.objective.goodput import Measurement, Progress
from framework.run.compose import compose_on
from framework.workload import Workload

_KEPT = Path(".hydra") / "config.yaml"  # configuration in the directory of a run


def config_of(directory: Path) -> DictConfig:
    """The configuration of the run that left its files in `directory`. Raises InputError if there is none."""
    file = directory / _KEPT
    if not file.is_file():
        hint = f"no run has left its configuration here, which is {_KEPT}; name the directory of one"
        raise InputError(f"{directory}: {hint}")
    try:
        config = OmegaConf.create(parsed_yaml(read_text(file)))
    except (ValueError, OmegaConfBaseException) as error:
        raise InputError(f"{file}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(config, DictConfig) or not {"seed", "trace", "policy"} <= set(config):
        raise InputError(f"{file}: this is no configuration of a run")
    return config


def tried(
    config: DictConfig,
    settings: Mapping[str, Any],
    experiment: Experiment,
    measurement: Measurement,
    progress: Progress | None = None,
) -> Trials:
    """What limits the run of `config`, whose flat settings are `settings`. Raises the same errors as a run of it."""
    return trials(experiment, measurement, settings, partial(with_settings, config, experiment.workload), progress)


def with_settings(config: DictConfig, workload: Workload, settings: Mapping[str, Any]) -> Experiment:
    """The experiment of `config` with these settings in place of its own, on these requests.

    A setting that is a folder of conf/ takes the name of a file there, as on a command line. Raises InputError if they
    cannot be combined.
    """
    changed = config.copy()
    for name, value in settings.items():
        file = CONF / name.replace(".", "/") / f"{value}.yaml"
        given = OmegaConf.load(file) if isinstance(value, str) and file.is_file() else value
        OmegaConf.update(changed, name, given, merge=False)
    return compose_on(changed, workload)


def write_diagnosis(directory: Path, found: Trials) -> Path:
    """Write diagnosis.json: the run, the causes with their costs, the remedies with their gains."""
    file = directory / "diagnosis.json"
    write_whole(file, diagnosis_text(found).encode())
    return file


def diagnosis_text(found: Trials) -> str:
    """The content of diagnosis.json."""
    return json.dumps(as_json(found), indent=2, allow_nan=False) + "\n"


def as_json(found: Trials) -> dict[str, Any]:
    """The content of diagnosis.json, as plain data."""
    base = found.base
    return {
        "run": _figures(base, base),
        "signature": found.seen.signature,
        "causes": [
            {"cause": one.name, "title": one.cause.title, "without": one.cause.without, "evidence": one.evidence}
            | _figures(one.trial, base)
            for one in found.removed
        ],
        "no_better_with": [cause.without for cause in found.indifferent],
        "remedies": [
            {"settings": one.remedy.text, "acts_on": list(one.remedy.acts_on)} | _figures(one.trial, base)
            for one in found.tried
        ],
    }


def _figures(trial: Trial, base: Trial) -> dict[str, Any]:
    return {
        "kept": trial.kept,
        "offered": trial.offered,
        "goodput": trial.goodput,
        "worth": trial.worth(base),
        "gpus": trial.gpus,
    }
