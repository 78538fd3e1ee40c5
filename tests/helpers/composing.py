"""Configurations of conf/ for many tests of one process: what they share is composed once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal import hydra as hydra_internals
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig

from framework.cli import composition
from tests.conftest import ROOT


def composing() -> AbstractContextManager[None]:
    """Let `hydra.compose` read conf/."""
    return composition.composing(ROOT / "conf")


@contextmanager
def hydra_alone() -> Iterator[None]:
    """Let Hydra's own loader compose conf/, to compare with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hydra_internals, "ConfigLoaderImpl", ConfigLoaderImpl)
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            yield


def configured(*overrides: str) -> DictConfig:
    """The configuration of `run.py` with these overrides."""
    with composing():
        return compose("config", overrides=list(overrides))


def small(policy: str) -> DictConfig:
    """A short run of a policy with step times of the roofline; one composition serves all tests of the policy."""
    config, parts = configured(f"policy={policy}"), configured("trace=synthetic", "trace.limit=20", "timing=roofline")
    config.trace, config.timing = parts.trace, parts.timing
    return config
