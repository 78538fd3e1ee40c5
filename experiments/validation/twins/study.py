"""The cells in which fitted traces are compared with recordings: the contents of study.yaml next to this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from experiments.declared import declared
from framework.errors import InputError

_FILE = Path(__file__).with_name("study.yaml")


@dataclass(frozen=True)
class Memory:
    """Settings of the KV memory, and the mean rates (requests/s) that are offered with it."""

    settings: Sequence[str]
    rates: Sequence[float]


@dataclass(frozen=True)
class Compared:
    """A fitted trace: what `traces.load.load` takes for its recording, settings of every run, and memories by name.

    `resamples`: what the recording is compared with itself by, its blocks in another order, or other draws from its
    distributions.
    """

    recording: Mapping[str, str]
    settings: Sequence[str]
    memories: Mapping[str, Memory]
    resamples: Literal["blocks", "draws"] = "blocks"


@dataclass(frozen=True)
class Study:
    """`base`, `policies`: overrides of conf/config.yaml. No decision about the fit uses the policy `held_out`."""

    base: Sequence[str]
    policies: Mapping[str, Sequence[str]]
    held_out: str
    traces: Mapping[str, Compared]

    def overrides(self, trace: str, policy: str, memory: str) -> list[str]:
        """The settings of a run, as for run.py."""
        compared = self.traces[trace]
        return [*self.policies[policy], *self.base, *compared.settings, *compared.memories[memory].settings]


def read_study(path: Path = _FILE) -> Study:
    """The study in a file. Raises InputError for unknown or missing keys."""
    content = declared(path, Study)
    try:
        traces = {
            name: Compared(
                **{**one, "memories": {words: Memory(**memory) for words, memory in one["memories"].items()}}
            )
            for name, one in content["traces"].items()
        }
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: {error}") from error
    if content["held_out"] not in content["policies"]:
        raise InputError(f"{path}: held_out is {content['held_out']!r}, must be one of policies")
    return Study(**{**content, "traces": traces})
