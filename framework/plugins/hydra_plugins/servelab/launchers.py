"""The launchers `hydra/launcher=...`: Hydra's own, under their names, adapted to thousands of short jobs.

Hydra imports this file at every start, so a launcher imports what it needs when it launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from hydra._internal.core_plugins import basic_launcher
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.hydra_joblib_launcher import joblib_launcher
from omegaconf import DictConfig, OmegaConf

from framework.cli.composition import hasten
from framework.errors import InputError

Overrides = Sequence[Sequence[str]]


class BasicLauncher(basic_launcher.BasicLauncher):
    """One job after the other, in the process of the command."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        hasten(hydra_context)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> list[JobReturn]:
        from framework.run.following import follow

        assert self.hydra_context is not None
        returned: list[JobReturn] = []
        for number, overrides in enumerate(job_overrides, initial_job_idx):
            returned += super().launch([overrides], number)
            follow(self.hydra_context.callbacks.callbacks, returned[-1])
        return returned


class JoblibLauncher(joblib_launcher.JoblibLauncher):
    """`n_jobs` jobs at a time on this machine; -1: as many as it has cores."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        hasten(hydra_context)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> list[JobReturn]:
        from framework.run.launchers.pool import launch

        return launch(_shared(self), self.joblib["n_jobs"], job_overrides, initial_job_idx)


class _OptionalLauncher(Launcher):
    """A launcher whose package may be missing, with that package's settings."""

    extra: str
    package: str

    def __init__(self, **settings: Any) -> None:
        self.settings: dict[str, Any] = {
            name: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            for name, value in settings.items()
        }

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        if not _is_installed(self.package):
            choice = config.hydra.runtime.choices["hydra/launcher"]
            raise InputError(f"hydra/launcher={choice} is not installed; pip install '.[{self.extra}]' brings it")
        hasten(hydra_context)
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config


class RayLauncher(_OptionalLauncher):
    """Jobs on a Ray cluster: `ray.init` as arguments of ray.init, `ray.remote` as options of every job."""

    extra, package = "ray", "hydra_plugins.hydra_ray_launcher"

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> list[JobReturn]:
        from framework.run.launchers.ray import launch

        return launch(_shared(self), self.settings["ray"], job_overrides, initial_job_idx)


class SlurmLauncher(_OptionalLauncher):
    """An array of Slurm jobs, through submitit; the settings are those of submitit."""

    extra, package, cluster = "slurm", "hydra_plugins.hydra_submitit_launcher", "slurm"

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> list[JobReturn]:
        from framework.run.launchers.slurm import launch

        return launch(_shared(self), self.cluster, self.settings, job_overrides, initial_job_idx)


class LocalLauncher(SlurmLauncher):
    """A launcher in processes of this machine, for tests."""

    cluster = "local"


def _shared(launcher: Any) -> Any:
    from framework.run.launchers.jobs import Shared

    return Shared(launcher.hydra_context, launcher.config, launcher.task_function)


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def _store(name: str, launcher: type[Launcher], settings: dict[str, Any]) -> None:
    node = settings | {"_target_": f"{__name__}.{launcher.__name__}"}
    ConfigStore.instance().store(group="hydra/launcher", name=name, node=node, provider="servelab")


def _settings_of_submitit(name: str) -> dict[str, Any]:
    if not _is_installed(SlurmLauncher.package):
        return {}
    from dataclasses import asdict

    from hydra_plugins.hydra_submitit_launcher import config

    return asdict(getattr(config, name)()) | {"cpus_per_task": 1}


_store("basic", BasicLauncher, {})
_store("joblib", JoblibLauncher, {"n_jobs": -1})
_store("submitit_slurm", SlurmLauncher, _settings_of_submitit("SlurmQueueConf"))
_store("submitit_local", LocalLauncher, _settings_of_submitit("LocalQueueConf"))
_RAY_INIT = {
    "address": None,  # RAY_ADDRESS, else a cluster that runs on this machine, else one that ends with the command
    "include_dashboard": False,
    "log_to_driver": False,
    "logging_level": "error",
}
_store("ray", RayLauncher, {"ray": {"init": _RAY_INIT, "remote": {"num_cpus": 1, "max_retries": 3}}})
