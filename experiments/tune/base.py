"""What all trials of a study share: a configuration, the parts that its overrides choose, and the needs of its load."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from experiments.tune.space import PREFILL_GPUS, Space
from framework.cli.arguments import name_files
from framework.cli.conf import CONF
from framework.run.compose import compose as build_parts
from framework.run.job import chosen, flattened


@dataclass(frozen=True)
class Configuration:
    """conf/config.yaml with `overrides`. Raises Hydra's errors if it cannot be composed."""

    overrides: tuple[str, ...]

    def with_overrides(self, overrides: Sequence[str]) -> Configuration:
        return Configuration((*self.overrides, *overrides))

    @functools.cached_property
    def _composed(self) -> DictConfig:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", overrides=name_files(self.overrides), return_hydra_config=True)

    @functools.cached_property
    def config(self) -> DictConfig:
        """The configuration as a job gets it: without Hydra's own part, which would not resolve outside a run."""
        return OmegaConf.masked_copy(self._composed, [str(name) for name in self._composed if name != "hydra"])

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Flat, resolved."""
        return flattened(self._composed)

    @functools.cached_property
    def choices(self) -> dict[str, str]:
        """The option of each config group."""
        return chosen(self._composed.hydra.runtime.choices)


def with_demand(space: Space, base: Configuration) -> Space:
    """`space` with the numbers of the load that its starts need.

    `load_prefill_gpus`, a name in `start` of conf/space/NAME.yaml: the number of `gpus` GPUs that prefill if
    `cluster.prefill=auto` divides them into instances of one. Raises what `framework.run.compose` raises.
    """
    if not any(PREFILL_GPUS in value.names for start in space.starts for value in start.values()):
        return space
    pools = ("cluster.prefill=auto", "cluster.decode=null", f"cluster.instances={space.fixed['gpus']}")
    cluster = build_parts(base.with_overrides((*pools, "cluster.prefill_tp=1", "cluster.decode_tp=1")).config).cluster
    prefill = next(pool.instances for pool in cluster.pools if pool.name == "prefill")
    return replace(space, asked={PREFILL_GPUS: prefill})
