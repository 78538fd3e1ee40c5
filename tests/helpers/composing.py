"""Configurations of conf/ for many tests of one process: what they share is composed once."""

from __future__ import annotations

from contextlib import AbstractContextManager

from hydra import compose
from omegaconf import DictConfig

from framework.cli import composition
from tests.conftest import ROOT


def composing() -> AbstractContextManager[None]:
    """Let `hydra.compose` read conf/."""
    return composition.composing(ROOT / "conf")


def configured(*overrides: str) -> DictConfig:
    """The configuration of `run.py` with these overrides."""
    with composing():
        return compose("config", overrides=list(overrides))
