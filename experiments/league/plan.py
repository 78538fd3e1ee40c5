"""What a command line asks of the league: cells, entrants, terms, and where results go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.league.play import Entrant, Terms
from experiments.league.study import Cell, Study
from experiments.tune.base import Configuration
from experiments.tune.space_file import space_names
from framework.checks import require_choice
from framework.cli.arguments import is_config_dir
from framework.cli.command import Arguments
from framework.errors import InputError
from framework.version import VERSION

KEYS = {
    "space": "of conf/space in which that policy is tuned; by default pd if its pools are apart, else chunked",
    "policies": "the policies that are played, all of conf/policy by default",
    "loads": "the loads, all of conf/league by default",
    "cells": "core: 8B on 8 H100, the default; other: a fraction of all other setups; or all",
    "fraction": "of the other cells, that of the study by default",
    "trials": "configurations that each policy may try, those of the study by default",
    "replicates": "samples on which its best is judged, those of the study by default",
    "requests": "of a run on 8 GPUs, those of the study by default",
    "dry": "true: only say what it will cost",
    "shipped": "true: only show the shipped results",
    "page": "a Markdown page whose part between <!-- league --> marks is renewed",
    "out": "directory of the results, outputs/league by default",
}
_CELLS = ("core", "other", "all")
# settings that the league sets itself, so that no policy is judged on what it was tuned on
_OWN = ("objective", "seed", "trace", "trace.seed", "trace.window_s", "trace.limit", "trace.resample_s", "trace.rate")


@dataclass(frozen=True)
class Plan:
    """What is played: `entrants` in each of `cells` on `terms`. `challenger`: the name of the policy that is put next
    to the shipped results. `shared`: settings of every run that make no other results.
    """

    cells: tuple[Cell, ...]
    entrants: tuple[Entrant, ...]
    terms: Terms
    challenger: str
    shared: tuple[str, ...]
    made: Mapping[str, Any]
    out: Path


def read_plan(arguments: Arguments, study: Study) -> Plan:
    """The plan of a command line. Raises InputError for arguments without a meaning."""
    further, shared, own_policy = _sorted(arguments.settings)
    challenger = [] if own_policy is None else [_challenger(own_policy, arguments, shared)]
    named = arguments.several("policies")
    for one in named:
        require_choice("policies", one, tuple(study.policies))
    if "space" in arguments.own and own_policy is None:
        raise InputError("space= is that of policy=; the spaces of shipped policies are those of the study")
    shipped = [_shipped(study, one) for one in (named if named or challenger else study.policies)]
    terms = Terms(
        arguments.whole("trials", study.trials),
        arguments.whole("replicates", study.replicates),
        study.attainment,
        study.shares,
        study.first,
        further,
    )
    made = {"version": VERSION, "trials": terms.trials, "replicates": terms.replicates, "attainment": terms.attainment}
    made |= {"requests": arguments.own.get("requests", "study"), "settings": list(further)}
    name = challenger[0].name if challenger else ""
    entrants = (*challenger, *(one for one in shipped if one.name != name))
    return Plan(
        cells=tuple(_cells(arguments, study)),
        entrants=entrants,
        terms=terms,
        challenger=name,
        shared=shared,
        made=made,
        out=arguments.path("out") or Path("outputs/league"),
    )


def _sorted(settings: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """Settings that make other results, those that do not, and the policy."""
    further, shared, policy = [], [], None
    for word in settings:
        key, _, value = word.partition("=")
        if key == "policy":
            if "," in value:
                raise InputError(f"{word}: one policy enters at a time")
            policy = value
        elif key in _OWN or key.startswith("objective."):
            raise InputError(f"{word}: the league sets {key} itself")
        elif key in ("store", "force") or key.startswith("hydra"):
            shared.append(word)
        else:
            further.append(word)
    return tuple(further), tuple(shared), policy


def _challenger(policy: str, arguments: Arguments, shared: Sequence[str]) -> Entrant:
    fixed, places = (f"policy={policy}",), tuple(filter(is_config_dir, shared))
    space = arguments.own.get("space")
    if space is None:
        base = Configuration((*places, *fixed))
        space = "pd" if "prefill" in base.config.cluster else "chunked"
    require_choice("space", space, tuple(space_names()))
    return Entrant(policy.rpartition(":")[2], fixed, space, places)


def _shipped(study: Study, policy: str) -> Entrant:
    return Entrant(policy, (f"policy={policy}", *study.fixed.get(policy, ())), study.policies[policy])


def _cells(arguments: Arguments, study: Study) -> list[Cell]:
    which = arguments.own.get("cells", "core")
    require_choice("cells", which, _CELLS)
    names = arguments.several("loads") or list(study.loads)
    for one in names:
        require_choice("loads", one, tuple(study.loads))
    found = study.core_cells() if which in ("core", "all") else []
    if which in ("other", "all"):
        fraction = arguments.number("fraction", study.others["fraction"])
        if not 0 < fraction <= 1:
            raise InputError(f"fraction must be above 0 and at most 1, got {fraction:g}")
        found += study.other_cells(fraction, study.others["seed"])
    if "requests" in arguments.own:
        found = [replace(cell, requests=arguments.whole("requests", 0)) for cell in found]
    return [cell for cell in found if cell.load.name in names]
