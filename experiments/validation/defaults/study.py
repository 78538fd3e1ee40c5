"""Which policies are searched on which traces: study.yaml next to this file, and the spaces of the league."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.league.study import read_study as league
from framework.errors import InputError

_FILE = Path(__file__).with_name("study.yaml")


@dataclass(frozen=True)
class Study:
    """`traces`: further settings by trace; `policies`: the space of conf/space by policy, each of `gpus` GPUs."""

    trials: int
    gpus: int
    shared: Sequence[str]
    traces: Mapping[str, Sequence[str]]
    policies: Mapping[str, str]

    def overrides(self, trace: str, policy: str) -> tuple[str, ...]:
        """The settings of all runs of a search, as for run.py."""
        return (f"policy={policy}", f"trace={trace}", *self.shared, *self.traces[trace])


def read_study(path: Path = _FILE) -> Study:
    """The study in a file. Raises InputError for unknown or missing keys."""
    content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    keys = [item.name for item in fields(Study) if item.name != "policies"]
    if not isinstance(content, dict) or set(content) != set(keys):
        raise InputError(f"{path}: its keys must be {', '.join(keys)}")
    return Study(**content, policies=league().policies)
