"""The runs of a sweep as arms of a comparison: those that differ in the policy and in no other swept setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from framework.report.arms import Arm, unlike
from framework.report.sweep_groups import Ended
from framework.run.job import CACHE, flattened
from framework.run.trying import config_of

_MOST = 40  # runs whose settings are read
_NOT_COMPARED = ("policy=", "seed=")


def ran_settings(directory: Path) -> dict[str, Any]:
    """The settings of the run in `directory`, flat, as they were given. Raises InputError if there are none."""
    return flattened(config_of(directory))


def decided(settings: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those that the run's requests decided, taken from its summary."""
    found = {CACHE: summary["prefix_cache"]} if "prefix_cache" in summary else {}
    return {**settings, **found}


def arms_line(runs: Sequence[Ended]) -> str | None:
    """The settings in which runs differ besides policy and swept ones; None if there are none, or one policy."""
    first: dict[tuple[str, tuple[str, ...]], Ended] = {}
    for run in runs:
        group = tuple(word for word in run.arguments if not word.startswith(_NOT_COMPARED))
        first.setdefault((str(run.summary["policy"]), group), run)
    if len({policy for policy, _ in first}) < 2:
        return None
    compared = list(first.items())[:_MOST]
    return unlike(
        [Arm(policy, decided(ran_settings(run.directory), run.summary), group) for (policy, group), run in compared]
    )
