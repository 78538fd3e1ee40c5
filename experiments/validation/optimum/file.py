"""The scenarios of the study: scenarios.yaml next to this file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from framework.errors import InputError

_FILE = Path(__file__).with_name("scenarios.yaml")


@dataclass(frozen=True)
class Scenario:
    """A policy on a model, a number of GPUs and a trace at a rate; `overrides` are all of its settings."""

    policy: str
    model: str
    gpus: int
    trace: str
    rate: float
    space: str
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.policy} {self.model} {self.trace}"


def read_scenarios(
    only: Sequence[str], overrides: Sequence[str], path: Path = _FILE
) -> tuple[dict[str, Any], list[Scenario]]:
    """The settings of the study and its scenarios, those whose names have all words of `only`."""
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    assert isinstance(content, dict)
    scenarios = []
    for entry in content["scenarios"]:
        for policy, rate in entry["rates"].items():
            search = content["policies"][policy]
            own = (
                *(f"policy={policy}", f"trace={entry['trace']}", f"model={entry['model']}", f"trace.rate={rate}"),
                *content["traces"].get(entry["trace"], ()),
                *entry.get("overrides", ()),
                *content.get("shared", ()),
                *search["fixed"],
                *overrides,
            )
            scenario = Scenario(policy, entry["model"], entry["gpus"], entry["trace"], rate, search["space"], own)
            if all(word in scenario.name.split() for word in only):
                scenarios.append(scenario)
    if not scenarios:
        raise InputError(f"only={','.join(only)}: no scenario has these words; they are a policy, a model and a trace")
    return {str(key): value for key, value in content.items()}, scenarios
