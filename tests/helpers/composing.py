"""Configurations of conf/ for many tests of one process: what they share is composed once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

from framework.run.launchers.composition import SweepLoader
from tests.conftest import ROOT


@contextmanager
def composing() -> Iterator[None]:
    """Let `hydra.compose` read conf/."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.config_loader = _loader()
        yield


def configured(*overrides: str) -> DictConfig:
    """The configuration of `run.py` with these overrides."""
    with composing():
        return compose("config", overrides=list(overrides))


@functools.cache
def _loader() -> SweepLoader:
    return SweepLoader(GlobalHydra.instance().config_loader().get_search_path())
