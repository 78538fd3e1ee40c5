"""The files of a study: every trial in a table, and the best configuration as one that `run.py` takes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from omegaconf import OmegaConf

from experiments.tune.base import Configuration
from experiments.tune.result import Findings
from experiments.tune.study import SHOWN
from framework.cli.arguments import is_config_dir
from framework.cli.conf import CONF
from framework.cli.files import write_whole
from framework.errors import InputError

_NOT_OF_THE_RUN = ("output", "report", "diagnose", "store", "force")


def write_trials(found: Findings, path: Path) -> None:
    """One row for each trial: its outcome, its goals, other figures, each setting, and why it could not be run,
    if so.
    """
    rows = []
    for row in found.rows:
        values = dict(zip((goal.key for goal in found.goals), row.values, strict=False))
        figures = {key: row.figures.get(key) for key in SHOWN} | values
        settings = {name: _cell(value) for name, value in row.point.settings.items()}
        rows.append({"trial": row.number, "outcome": row.outcome, **figures, **settings, "refusal": row.refusal})
    content = io.BytesIO()
    pl.DataFrame(rows, infer_schema_length=None, strict=False).write_csv(content)
    write_whole(path, content.getvalue())


def write_tuned(name: str, best: Configuration, title: str) -> Path:
    """Write `best` as conf/tuned/NAME.yaml, which `run.py +tuned=NAME` takes; return the path.

    Raises InputError if the file would give another configuration: it cannot say that a setting was removed.
    """
    path = CONF / "tuned" / f"{name}.yaml"
    write_whole(path, _tuned(best, title).encode())
    directories = filter(is_config_dir, best.overrides)
    if Configuration((f"+tuned={name}", *directories)).settings != best.settings:
        path.unlink()
        raise InputError(
            f"{path}: the best configuration cannot be written as one, because a setting was removed with ~"
        )
    return path


def _tuned(best: Configuration, title: str) -> str:
    """The options that `best` chooses, then the settings that differ from them."""
    directories = filter(is_config_dir, best.overrides)
    options = (f"{group}={option}" for group, option in best.choices.items() if "@" not in group)
    chosen = Configuration((*options, *directories))
    groups = [{f"override /{group.replace('.', '/')}": option} for group, option in chosen.choices.items()]
    settings: dict[str, Any] = {"defaults": [*groups, "_self_"]}
    _differing(_plain(chosen), _plain(best), settings)
    return f"# @package _global_\n# {title}\n{yaml.safe_dump(settings, sort_keys=False)}"


def _plain(configuration: Configuration) -> dict[str, Any]:
    content = OmegaConf.to_container(configuration.config)
    assert isinstance(content, dict)
    return {str(name): value for name, value in content.items() if name not in _NOT_OF_THE_RUN}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], into: dict[str, Any]) -> None:
    """Put into `into` the parts of `other` that differ from `one`."""
    for name, value in other.items():
        if name in one and isinstance(one[name], dict) and isinstance(value, dict):
            inner: dict[str, Any] = {}
            _differing(one[name], value, inner)
            if inner:
                into[name] = inner
        elif name not in one or one[name] != value:
            into[name] = value


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
