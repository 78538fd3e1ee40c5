"""Every leaf of many configurations set to values that it is not made for."""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from framework.run.job import parts_of
from tests.helpers.composing import configured
from tests.hostile.outcomes import NonsenseError

VALUES: dict[str, Any] = {
    "null": None,
    "text": "text",
    "empty text": "",
    "control": "a\x1b[31m\nb",
    "list": [1, "a"],
    "empty list": [],
    "mapping": {"a": 1},
    "nan": math.nan,
    "inf": math.inf,
    "minus inf": -math.inf,
    "zero": 0,
    "minus": -1,
    "fraction": 0.5,
    "1e30": 1e30,
    "1e-30": 1e-30,
    "many": 10**9,
    "63 bits": 2**63,
    "true": True,
    "false": False,
}
# What no number may be, and no name.
NO_NUMBER = ("text", "empty text", "control", "list", "empty list", "mapping", "nan", "minus inf", "true", "false")
NO_NAME = ("null", "empty text", "control", "list", "empty list", "mapping", "nan", "inf", "1e30", "true", "zero")
NO_FLAG = tuple(name for name in VALUES if name not in ("true", "false", "null"))

SMALL = ("trace=synthetic", "trace.limit=20", "trace.requests=20")
POLICIES = (
    *("static", "orca", "continuous", "vllm_v1", "distserve", "splitwise", "mooncake", "deepseek", "nexus", "ares"),
    *("taichi", "arrow", "dopd", "dynaserve", "ecoserve", "dynamo", "sglang"),
)
CONFIGURATIONS: tuple[tuple[str, ...], ...] = (
    ("policy=chunked",),
    *((f"policy={policy}",) for policy in POLICIES),
    *(("policy=chunked", f"predictor={name}") for name in ("bucket", "empirical", "lognormal", "oracle")),
    *(("policy=chunked", f"timing={name}") for name in ("affine", "roofline")),
    *(("policy=chunked", f"engine/kv_compression={name}") for name in ("kvquant", "cachegen", "hack")),
    *(("policy=chunked", f"engine/speculation={name}") for name in ("draft", "mtp")),
    ("policy=chunked", "timing=distserve", "model=opt_13b", "gpu=a100"),
    ("policy=chunked", "engine.prefix_cache=true", "engine/prefix_stores=dram_ssd"),
    ("policy=chunked", "engine/attention=pod"),
    ("policy=nexus", "engine/sharing=nexus"),
    ("policy=chunked", "engine/output_reserve=adaptive"),
    ("policy=chunked", "slo=slowdown"),
    ("policy=chunked", "objective=capacity", "objective.most_requests=100"),
    ("policy=chunked", "load=closed"),
    ("policy=chunked", "model=deepseek_v3", "gpu=h200", "cluster.tp=8"),
    ("policy=chunked", "trace=synthetic_sessions"),
    ("policy=distserve", "cluster=disaggregated", "engine.role_change_s=1"),
)


@dataclass(frozen=True)
class Case:
    """One leaf of one configuration set to one value."""

    configuration: tuple[str, ...]
    key: str
    value: str

    def __str__(self) -> str:
        return f"{' '.join(self.configuration)} {self.key}={self.value}"

    def play(self) -> None:
        """Build all parts and run what they describe. Raises NonsenseError where nonsense is accepted."""
        config = copy.deepcopy(base(self.configuration))
        was = OmegaConf.select(config, self.key)
        OmegaConf.update(config, self.key, VALUES[self.value], merge=False, force_add=True)
        objective, experiment = parts_of(config)
        if is_nonsense(self.key, was, self.value):
            raise NonsenseError(f"{self.key} was {was!r}")
        measurement = objective.measure(experiment)
        summary = measurement.evaluation.summary
        bad = [name for name, value in summary.items() if isinstance(value, float) and not np.isfinite(value)]
        if bad:
            raise NonsenseError(f"figures that are no numbers: {', '.join(bad)}")


def warm(configurations: Sequence[tuple[str, ...]] = CONFIGURATIONS) -> None:
    """Run each configuration as it is: what it needs is compiled then, which no limit of time may interrupt."""
    for configuration in configurations:
        objective, experiment = parts_of(copy.deepcopy(base(configuration)))
        objective.measure(experiment)


@functools.cache
def base(configuration: tuple[str, ...]) -> DictConfig:
    """The configuration, composed once; its trace is small."""
    own = SMALL if not any(word.startswith("trace=") for word in configuration) else SMALL[1:]
    return configured(*own, *configuration)


def cases(configurations: Sequence[tuple[str, ...]] = CONFIGURATIONS) -> list[Case]:
    """All cases; a leaf that several configurations have is of the first."""
    seen: set[tuple[str, str]] = set()
    found: list[Case] = []
    for configuration in configurations:
        for key, target in _leaves(base(configuration)):
            if (key, target) not in seen:
                seen.add((key, target))
                found += [Case(configuration, key, value) for value in VALUES]
    return found


def some(every: Sequence[Case], count: int, seed: int = 0) -> list[Case]:
    """So many of them, drawn."""
    return random.Random(seed).sample(every, count)


def is_nonsense(key: str, was: Any, value: str) -> bool:
    """Whether a leaf that held `was` must not be accepted with that value."""
    if key.endswith(("_target_", "_convert_")) or (key.endswith("gpu.neighbour") and value == "null"):
        return False
    if isinstance(was, bool):
        return value in NO_FLAG
    if isinstance(was, int | float):
        return value in NO_NUMBER
    if isinstance(was, str):
        return value in NO_NAME
    return value in ("nan", "control", "minus inf") if was is None else False


@functools.cache
def keys_of(configuration: tuple[str, ...]) -> tuple[str, ...]:
    """The key of each leaf."""
    return tuple(dict.fromkeys(key for key, _ in _leaves(base(configuration))))


def _leaves(config: DictConfig) -> Iterator[tuple[str, str]]:
    """Each leaf's key and the class that it is an argument of."""
    container = OmegaConf.to_container(config, resolve=False)
    assert isinstance(container, dict)
    for name, value in container.items():
        if name not in ("hydra", "store", "output", "force"):
            yield from _within(str(name), value, "")


def _within(key: str, value: Any, target: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        target = str(value.get("_target_", target))
        for name, inner in value.items():
            yield from _within(f"{key}.{name}", inner, target)
    else:
        yield key, target
