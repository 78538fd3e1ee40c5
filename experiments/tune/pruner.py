"""Giving up early: trials are compared on the first part of the trace before they run on the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import yaml
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner

from framework.checks import is_numeric, require_choice
from framework.errors import InputError

PRUNERS = ("none", "median", "hyperband")
_PREFIXES = (0.125, 0.25, 0.5)
_STARTUP = 5  # trials that run on the whole trace before any is given up


@dataclass(frozen=True)
class Rung:
    """A part of the trace on which trials are compared: its number, from 1, and its requests."""

    step: int
    requests: int


def read_prefixes(text: str | None) -> tuple[float, ...]:
    """The shares of the trace in `[0.125,0.25]`, in increasing order. Raises InputError for anything else."""
    if text is None:
        return _PREFIXES
    try:
        shares = yaml.safe_load(text)
    except yaml.YAMLError:
        shares = None
    if not isinstance(shares, list) or not all(is_numeric(share) and 0 < share < 1 for share in shares) or not shares:
        raise InputError(f"prefixes must be shares of the trace between 0 and 1, as [0.125,0.25]; got {text}")
    if sorted(set(shares)) != shares:
        raise InputError(f"prefixes must increase, got {text}")
    return tuple(shares)


def make_pruner(name: str, prefixes: Sequence[float], goals: int) -> BasePruner:
    """One of PRUNERS. Raises InputError for another, and with several goals, for which Optuna allows none."""
    require_choice("pruner", name, PRUNERS)
    if name == "none":
        return NopPruner()
    if goals > 1:
        raise InputError(f"pruner={name} compares one figure, there are {goals} objectives; set pruner=none")
    if name == "median":
        return MedianPruner(n_startup_trials=_STARTUP)
    return HyperbandPruner(min_resource=1, max_resource=len(prefixes) + 1, reduction_factor=2)


def rungs(prefixes: Sequence[float], requests: int) -> list[Rung]:
    """The parts of a trace of `requests` requests."""
    return [Rung(step, math.ceil(share * requests)) for step, share in enumerate(prefixes, start=1)]
