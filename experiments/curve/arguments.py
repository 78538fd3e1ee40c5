"""The arguments of a curve's command line, and the runs that they describe."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose as compose_config
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.utils import instantiate
from omegaconf import DictConfig

from experiments.curve.axis import CONCURRENCY, RATE, Axis, number, values
from framework.checks import require_share, require_whole
from framework.cli.arguments import ANY, is_config_dir, name_files, split_arguments
from framework.cli.conf import CONF
from framework.errors import InputError
from framework.objective.goodput import Goodput
from framework.run.compose import fitting_parts
from framework.workload import rate_rps

_OWN = ("rates", "concurrency", "attainment", "out")
_SERIES = "series"
_AUTO = "auto"
_OF_ITS_OWN_RATE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
_DEFAULTS = {"rates": _AUTO, "attainment": "0.9"}


@dataclass(frozen=True)
class Series:
    """One line of a picture: `overrides` of conf/config.yaml, and its `values` on the axis."""

    label: str
    overrides: tuple[str, ...]
    values: tuple[float, ...]

    @property
    def given(self) -> tuple[str, ...]:
        """The settings, and the groups, that its arguments name."""
        return tuple(word.partition("=")[0].lstrip("+~").replace("/", ".") for word in self.overrides)


@dataclass(frozen=True)
class Job:
    """One run."""

    series: Series
    value: float
    seed: int
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All runs: each series at each of its values with each seed.

    `launcher`: arguments for Hydra itself. `attainment`: the share of requests that should keep the SLO. `out`: the
    directory of files, None for a new one.
    """

    axis: Axis
    series: tuple[Series, ...]
    seeds: tuple[int, ...]
    launcher: tuple[str, ...]
    attainment: float
    out: Path | None

    def jobs(self) -> list[Job]:
        """Every run, series by series."""
        return [
            Job(series, value, seed, (*series.overrides, *self.axis.overrides(value), f"seed={seed}"))
            for series in self.series
            for value in series.values
            for seed in self.seeds
        ]


def read_plan(arguments: Sequence[str]) -> Plan:
    """The plan that `arguments` describe; the parts of each series are known to fit, as far as possible without a run.

    Raises InputError, or Hydra's errors, for arguments without a meaning.
    """
    own, rest = split_arguments(arguments, (*_OWN, _SERIES), ANY, repeated=(_SERIES,))
    groups = [word.removeprefix(f"{_SERIES}=") for word in arguments if word.startswith(f"{_SERIES}=")]
    if "rates" in own and "concurrency" in own:
        raise InputError("rates= and concurrency= exclude each other: requests come by the clock, or as clients send")
    axis = CONCURRENCY if "concurrency" in own else RATE
    own = _DEFAULTS | own
    is_auto = axis is RATE and own[axis.word] == _AUTO
    points = None if is_auto else values(axis, own[axis.word])
    attainment = number("attainment", own["attainment"])
    require_share("attainment", attainment)

    overrides = _parsed(rest)
    launcher = tuple(str(one.input_line) for one in overrides if one.is_hydra_override())
    seeds = _seeds([one for one in overrides if one.key_or_group == "seed"])
    shared = [one for one in overrides if not one.is_hydra_override() and one.key_or_group != "seed"]
    series: list[Series] = []
    for group in groups or [""]:
        for chosen, label in _combinations([*shared, *_parsed(_words_of(group))], _parsed(_words_of(group))):
            series.append(_series(axis, points, chosen, label, [f"seed={seeds[0]}", *filter(is_config_dir, launcher)]))
    if len({one.label for one in series}) < len(series):
        raise InputError("two series are the same; leave one out")
    return Plan(
        axis, tuple(series), seeds, launcher, attainment, Path(own["out"]).expanduser() if "out" in own else None
    )


# --- arguments --------------------------------------------------------------------------------------------------------


def _words_of(group: str) -> list[str]:
    try:
        return shlex.split(group)
    except ValueError as error:
        raise InputError(f"series={group}: {error}") from error


def _parsed(arguments: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(arguments))


def _seeds(overrides: Sequence[Override]) -> tuple[int, ...]:
    """The seeds, 0 if none is given. Raises InputError unless they are whole and differ."""
    if not overrides:
        return (0,)
    override = overrides[-1]
    found: list[Any] = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
    for seed in found:
        require_whole("seed", seed)
    if len(set(found)) < len(found):
        raise InputError(f"{override.input_line}: a seed is given twice")
    return tuple(found)


def _combinations(overrides: Sequence[Override], named: Sequence[Override]) -> list[tuple[tuple[str, ...], str]]:
    """Overrides of each combination of keys with several values, and what distinguishes the combination.

    `named`: keys that distinguish a series although they have one value.
    """
    lines = {str(one.input_line) for one in named}
    choices = []
    for one in overrides:
        key = one.get_key_element()
        if one.is_sweep_override():
            choices.append([(f"{key}={value}", _label(key, value)) for value in one.sweep_string_iterator()])
        else:
            label = _label(key, one.get_value_element_as_str()) if one.input_line in lines else ""
            choices.append([(str(one.input_line), label)])
    return [
        (tuple(word for word, _ in combination), ", ".join(label for _, label in combination if label))
        for combination in itertools.product(*choices)
    ]


def _label(key: str, value: str) -> str:
    """A label for an override: an option speaks for itself, a number needs its key."""
    name = key.lstrip("+~").split("@")[-1].split(".")[-1]
    return value if name == key else f"{name} {value}"


# --- what they choose
# ---------------------------------------------------------------------------------------------------


def _series(
    axis: Axis, points: tuple[float, ...] | None, overrides: tuple[str, ...], label: str, further: Sequence[str]
) -> Series:
    """A series whose parts, tried with the arguments `further`, fit together. Raises InputError, or Hydra's errors."""
    for word in overrides:
        if word.partition("=")[0] in (axis.key, "trace.rate_scale"):
            raise InputError(f"{word}: the load is set by {axis.word}=; leave this out")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        chosen = [*overrides, *axis.fixed, *further]
        config = compose_config("config", overrides=name_files(chosen), return_hydra_config=True)
    parts = fitting_parts(config)
    if axis is RATE and parts["load"].clients is not None:
        raise InputError("rates= needs load=open: clients of a closed load send as they can; use concurrency=")
    if not isinstance(instantiate(config.objective, _convert_="all"), Goodput):
        raise InputError("a curve needs objective=goodput, one run at each point")
    if points is None:
        points = _around_own_rate(config)
    return Series(label or str(config.hydra.runtime.choices.policy), overrides, points)


def _around_own_rate(config: DictConfig) -> tuple[float, ...]:
    rate = rate_rps(instantiate(config.trace, _convert_="all"))
    if rate == float("inf"):
        raise InputError("all requests of the trace arrive at once: it has no rate of its own; give rates=")
    return tuple(float(f"{factor * rate:.3g}") for factor in _OF_ITS_OWN_RATE)
