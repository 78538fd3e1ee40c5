"""What all trials of a study share: a configuration, and what its overrides choose."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from framework.cli.arguments import name_files
from framework.cli.conf import CONF
from framework.run.job import chosen, flattened


@dataclass(frozen=True)
class Configuration:
    """conf/config.yaml with `overrides`. Raises Hydra's errors where it cannot be composed."""

    overrides: tuple[str, ...]

    def with_overrides(self, overrides: Sequence[str]) -> Configuration:
        return Configuration((*self.overrides, *overrides))

    @functools.cached_property
    def _composed(self) -> DictConfig:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", overrides=name_files(self.overrides), return_hydra_config=True)

    @functools.cached_property
    def config(self) -> DictConfig:
        """As a job gets it: without Hydra's own part, which would not resolve outside a run."""
        return OmegaConf.masked_copy(self._composed, [str(name) for name in self._composed if name != "hydra"])

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """Flat, resolved."""
        return flattened(self._composed)

    @functools.cached_property
    def choices(self) -> dict[str, str]:
        """The option of each config group."""
        return chosen(self._composed.hydra.runtime.choices)
