"""Which policies are searched on which traces: study.yaml next to this file, and the spaces of the league."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.declared import declared
from experiments.league.study import read_study as league

_FILE = Path(__file__).with_name("study.yaml")
BETTER = 1.01  # ratio of a draw's capacity to that of the defaults from which on it is better


@dataclass(frozen=True)
class Coarse:
    """Cells that are searched with further settings: `settings` by trace, `traces` by policy."""

    settings: Mapping[str, Sequence[str]]
    traces: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Study:
    """`traces`: further settings by trace; `policies`: the space of conf/space by policy, each of `gpus` GPUs.

    `race`: ratio to the capacity of the defaults that a draw has to sustain, or it is given up.
    """

    trials: int
    gpus: int
    shared: Sequence[str]
    traces: Mapping[str, Sequence[str]]
    policies: Mapping[str, str]
    coarse: Coarse
    race: float = BETTER

    def overrides(self, trace: str, policy: str) -> tuple[str, ...]:
        """The settings of all runs of a search, as for run.py."""
        further = self.coarse.settings[trace] if trace in self.coarse.traces.get(policy, ()) else ()
        return (f"policy={policy}", f"trace={trace}", *self.shared, *self.traces[trace], *further)


def read_study(path: Path = _FILE) -> Study:
    """The study in a file. Raises InputError for unknown or missing keys."""
    content = declared(path, Study)
    policies = {**league().policies, **content["policies"]}
    return Study(**content | {"policies": policies, "coarse": Coarse(**content["coarse"])})
