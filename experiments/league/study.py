"""The league's study: study.yaml next to this file, which says what is played, by whom, and how it is judged."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from framework.cli.conf import CONF

_FILE = Path(__file__).with_name("study.yaml")
_SHORT = {"llama3_8b": "8B", "llama3_70b": "70B"}
CORE = "core"  # name of the setup in which every policy meets every load


@dataclass(frozen=True)
class Load:
    """A load of conf/league: seconds of either half of its trace, and of a run on 8 GPUs the requests, and how often
    they are played in a row.
    """

    name: str
    half_s: float
    requests: int
    passes: int

    @property
    def limits_s(self) -> Mapping[str, float]:
        """The limits of its SLO."""
        content: Any = OmegaConf.to_container(OmegaConf.load(CONF / "league" / f"{self.name}.yaml"))
        return {f"slo.{name}": limit for name, limit in content["slo"].items()}


@dataclass(frozen=True)
class Setup:
    """What serves a load: its settings, and the GPUs that every policy has."""

    name: str
    gpus: int
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """A load on a setup. Policies are tuned on the first half of its trace, and judged on samples of the second."""

    load: Load
    setup: Setup
    requests: int

    @property
    def name(self) -> str:
        return self.load.name if self.setup.name == CORE else f"{self.load.name}, {self.setup.name}"

    @property
    def tuning(self) -> tuple[str, ...]:
        """The settings of a run to tune by."""
        return self._part(0.0, self.load.half_s)

    def judged(self, sample: int) -> tuple[str, ...]:
        """The settings of a run on sample `sample`, from 1, of the second half."""
        return (*self._part(self.load.half_s, 2 * self.load.half_s), f"seed={sample}")

    def _part(self, start_s: float, end_s: float) -> tuple[str, ...]:
        limit = max(1, self.requests * self.setup.gpus // 8)
        part = (f"+league={self.load.name}", f"trace.window_s=[{start_s:g},{end_s:g}]", f"trace.limit={limit}")
        return (*part, *self.setup.overrides)


@dataclass(frozen=True)
class Study:
    """The contents of the file."""

    trials: int
    replicates: int
    attainment: float
    shares: Sequence[float]
    first: int
    loads: Mapping[str, Load]
    shared: Sequence[str]
    core: Mapping[str, Any]
    others: Mapping[str, Any]
    policies: Mapping[str, str]
    fixed: Mapping[str, Sequence[str]]

    def core_cells(self) -> list[Cell]:
        """Every load on the core's setup."""
        return [Cell(load, self._setup(CORE, load, **self.core), load.requests) for load in self.loads.values()]

    def other_cells(self, fraction: float, seed: int) -> list[Cell]:
        """A fraction of all other combinations, drawn without replacement, and each scenario on that share of loads;
        at least one cell of either.
        """
        rng = np.random.default_rng(seed)
        kinds = [[cell for load in self.loads.values() for cell in self._combined(load)]]
        kinds += [[self._scenario(load, name) for load in self.loads.values()] for name in self.others["scenarios"]]
        found = []
        for cells in kinds:
            drawn = rng.choice(len(cells), max(1, round(fraction * len(cells))), replace=False)
            found += [cells[number] for number in sorted(drawn)]
        return found

    def _combined(self, load: Load) -> list[Cell]:
        axes = [self.others[name] for name in ("model", "gpu", "gpus", "slo_factor")]
        found = []
        for model, gpu, gpus, factor in list(itertools.product(*axes))[1:]:
            name = f"{_SHORT.get(model, model)}, {gpus} {gpu.upper()}" + ("" if factor == 1 else f", SLO × {factor:g}")
            setup = self._setup(name, load, model, gpu, gpus, factor)
            if gpus > self.core["gpus"]:
                setup = replace(setup, overrides=(*setup.overrides, *self.others["large"]))
            found.append(Cell(load, setup, load.requests))
        return found

    def _scenario(self, load: Load, name: str) -> Cell:
        core = self._setup(name, load, **self.core)
        overrides = (*core.overrides, *self.others["scenarios"][name])
        return Cell(load, Setup(name, core.gpus, overrides), load.requests)

    def _setup(self, name: str, load: Load, model: str, gpu: str, gpus: int, slo_factor: float = 1.0) -> Setup:
        limits = (f"{key}={limit * slo_factor:g}" for key, limit in load.limits_s.items() if slo_factor != 1)
        return Setup(name, gpus, (f"model={model}", f"gpu={gpu}", *self.shared, *limits))


def read_study(path: Path = _FILE) -> Study:
    """The study in a file of the project's own."""
    content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    loads = {name: Load(name, **entry) for name, entry in content.pop("loads").items()}
    return Study(**content, loads=loads)
