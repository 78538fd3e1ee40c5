"""A stored run, run again from its flat settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from framework.objective.goodput import Measurement
from framework.run.job import parts_of, settings_of
from framework.run.run_key import run_key

_NOTHING_ELSE = {"force": False, "report": False, "diagnose": False, "store": "results"}
_NO_OUTPUT = {"steps": False, "timeline": False, "window_s": None, "series_s": None, "phases": False, "gaps": False}


@dataclass(frozen=True)
class Repeated:
    """A run, and its `key`, which is that of the stored one if the code, step times and requests are the same."""

    key: str
    measurement: Measurement


def repeated(settings: Mapping[str, Any]) -> Repeated:
    """Run these settings of a record; nothing is written. Raises the errors of a run of them."""
    config = nested(settings)
    objective, experiment = parts_of(config)
    return Repeated(run_key(settings_of(config, experiment), experiment), objective.measure(experiment))


def nested(settings: Mapping[str, Any]) -> DictConfig:
    """The configuration of flat settings, as `framework.run.job.flattened` makes them."""
    found: dict[Any, Any] = {}
    for name, value in settings.items():
        *groups, last = (int(part) if part.isdigit() else part for part in name.split("."))
        place = found
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return OmegaConf.create({**found, **_NOTHING_ELSE, "output": {**_NO_OUTPUT, "sensitivity": None}})
