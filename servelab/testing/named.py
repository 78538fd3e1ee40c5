"""A policy with a YAML: its configuration, and new copies of its parts."""

from __future__ import annotations

import copy
import functools
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig

from framework.cli.conf import CONF


@functools.cache
def configuration(policy_name: str, config_dir: str | None) -> DictConfig:
    """The configuration of `run.py policy=<policy_name>`, with `config_dir` also searched."""
    search = [f"hydra.searchpath=[file://{config_dir}]"] if config_dir else []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[f"policy={policy_name}", *search])


def new_part(policy_name: str, config_dir: str | None, part: str) -> Any:
    """A new part of that configuration with its own components; None: there is no such part."""
    recipe = _recipe(policy_name, config_dir, part)
    return None if recipe is None else recipe.func(*copy.deepcopy(recipe.args), **copy.deepcopy(recipe.keywords))


@functools.cache
def _recipe(policy_name: str, config_dir: str | None, part: str) -> functools.partial[Any] | None:
    return instantiate(configuration(policy_name, config_dir)[part], _convert_="all", _partial_=True)
