"""The scenarios of each tier: the contents of scenarios.yaml next to this file, with seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.declared import declared
from framework.errors import InputError

_FILE = Path(__file__).with_name("scenarios.yaml")


@dataclass(frozen=True)
class Scenario:
    """A load of conf/league with a seed: `overrides` are its settings without the policy's."""

    load: str
    seed: int
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Judging:
    """`shared`: settings of all runs; `tiers`: samples, and requests and rate of each load, by name of the tier."""

    baseline: str
    shared: Sequence[str]
    tiers: Mapping[str, Mapping[str, Any]]

    def scenarios(self, tier: str, seed: int) -> list[Scenario]:
        """Those of a tier, each with a seed drawn from `seed`. Raises InputError for an unknown tier."""
        own = self._tier(tier)
        seeds = iter(np.random.default_rng([seed, 16]).integers(1, 2**31, own["samples"] * len(own["loads"])).tolist())
        found = []
        for load, of in own["loads"].items():
            for _ in range(own["samples"]):
                one = next(seeds)
                words = (f"+league={load}", f"trace.limit={of['requests']}", f"trace.rate={of['rate']}")
                found.append(Scenario(load, one, (*words, f"trace.seed={one}", *self.shared)))
        return found

    def cpu_s(self, tier: str) -> float:
        """CPU seconds that a policy may take. Raises InputError for an unknown tier."""
        return float(self._tier(tier)["cpu_s"])

    def _tier(self, tier: str) -> Mapping[str, Any]:
        if tier not in self.tiers:
            raise InputError(f"tier={tier} is not known; choose {', '.join(self.tiers)}")
        return self.tiers[tier]


def read_judging(path: Path = _FILE) -> Judging:
    """The contents of a file. Raises InputError for unknown or missing keys."""
    return Judging(**declared(path, Judging))
