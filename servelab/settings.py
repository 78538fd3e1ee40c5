"""A configuration of `run.py` made from Python values, and the experiment that it describes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose as compose_config

from framework.cli.arguments import name_files, with_config_dirs
from framework.cli.composition import composing
from framework.cli.launch import explain
from framework.errors import InputError
from framework.objective.experiment import Experiment
from framework.policy.base import Disaggregated, Policy
from framework.run.compose import compose, compose_on
from framework.workload import Workload
from servelab.settings_place import CONF

_OF_THE_TRACE = ("limit", "path", "rate", "rate_scale", "requests", "window_s")


def experiment_of(policy: str | Policy, trace: str | Path | Workload, settings: Mapping[str, Any]) -> Experiment:
    """The experiment that the same words on the command line of `run.py` describe, with these objects in it.

    `settings` are keys of the configuration, with `__` for dots: model="llama3_70b", cluster__prefill=4. `rate`,
    `limit` and other words of the trace may stand alone. Raises InputError for whatever cannot be.
    """
    words = [
        *_policy_words(policy, settings),
        *_trace_words(trace),
        *(word(name, value) for name, value in settings.items()),
    ]
    try:
        with composing(CONF):
            config = compose_config("config", overrides=name_files(with_config_dirs(_with_files(words))))
            composed = compose_on(config, trace) if isinstance(trace, Workload) else compose(config)
    except Exception as error:
        line = explain(error)
        if line is None:
            raise
        raise InputError(line) from error
    if isinstance(policy, Policy):
        composed = _with_policy(composed, policy)
    return composed


def _with_files(words: list[str]) -> list[str]:
    """The words with a YAML for each class of a file, `policy=FILE.py:CLASS`, as the command line has it."""
    if not any(".py:" in one for one in words):
        return words
    from framework.cli.outside import with_files  # reads sources: most runs have none

    return with_files(words)


def _policy_words(policy: str | Policy, settings: Mapping[str, Any]) -> list[str]:
    """The choice of a policy; an object takes the place of one whose cluster it can use."""
    if isinstance(policy, str):
        return [f"policy={policy}"]
    if not isinstance(policy, Policy):
        raise InputError(f"policy must be a name or a Policy, got {policy!r}")
    cluster = [] if "cluster" in settings else [f"cluster={_cluster_of(policy)}"]
    return ["policy=continuous" if _cluster_of(policy) == "mixed" else "policy=distserve", *cluster]


def _cluster_of(policy: Policy) -> str:
    return "disaggregated" if isinstance(policy, Disaggregated) else "mixed"


def _trace_words(trace: str | Path | Workload) -> list[str]:
    if isinstance(trace, Workload):
        return ["trace=synthetic", "trace.limit=1"]  # which the workload replaces
    text = str(trace)
    is_file = isinstance(trace, Path) or "/" in text or Path(text).suffix != ""
    return [f"trace={text}"] if not is_file else ["trace=mooncake", f"trace.path={Path(text).expanduser().absolute()}"]


def word(name: str, value: Any) -> str:
    """A setting as the command line has it."""
    key = f"trace.{name}" if name in _OF_THE_TRACE else name.replace("__", ".")
    return f"{key}={_text(value)}"


def _text(value: Any) -> str:
    """A value in the grammar of overrides."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_text, value)) + "]"
    return str(value)


def _with_policy(experiment: Experiment, policy: Policy) -> Experiment:
    """Each run has a copy of the policy as it was given: a policy serves one run."""
    _, predictor = experiment.renew()

    def renew() -> tuple[Policy, Any]:
        return copy.deepcopy(policy), experiment.renew()[1]

    return replace(experiment, policy=copy.deepcopy(policy), predictor=predictor, renew=renew)
