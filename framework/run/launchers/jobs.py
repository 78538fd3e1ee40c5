"""A job in a process other than the one that launched it: what goes there, and what can come back."""

from __future__ import annotations

import functools
import gc
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.hydra_joblib_launcher._core import execute_job
from omegaconf import DictConfig, open_dict

from framework.cli.launch import explain
from framework.errors import InputError, JobError

try:
    from joblib.externals import cloudpickle
except ImportError:  # joblib has not brought its own since 1.6: it asks for the package
    import cloudpickle

# One thread a job: jobs are as many as there are cores.
SINGLE_THREADED = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA")} | {
    "POLARS_MAX_THREADS": "1"
}
_FRAMEWORK = Path(__file__).resolve().parents[2]


Overrides = Sequence[str]


@dataclass(frozen=True)
class Shared:
    """What the jobs of a launch have in common, as Hydra sets it up."""

    context: HydraContext
    config: DictConfig
    task: TaskFunction

    def begin(self) -> Path:
        """Do what every launcher does first; the directory of the sweep."""
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        directory = Path(self.config.hydra.sweep.dir)
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def pack(self) -> bytes:
        """All of it, and where relative paths start, for `perform`."""
        return cloudpickle.dumps((os.getcwd(), (self.context, self.config, self.task, Singleton.get_state())))

    def failed(self, number: int, overrides: Overrides, line: str) -> JobReturn:
        """What is returned of a job whose process is gone; callbacks get that in its place."""
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.num = number
        returned = JobReturn(overrides=list(overrides), status=JobStatus.FAILED)
        returned.return_value = InputError(line)
        self.context.callbacks.on_job_end(config=config, job_return=returned)
        return returned


def perform(packed: bytes, number: int, overrides: Overrides) -> JobReturn | Exception:
    """Run job `number`. What goes wrong in its task is in its JobReturn, what goes wrong before is returned instead.

    Nothing is raised: what a launcher makes of an error on its way loses what the error said.
    """
    directory, shared = _unpack(packed)
    _settle()
    try:
        _enter(directory)
        returned = execute_job(number, overrides, *shared)
    except Exception as error:
        return _portable(error)
    if returned.status == JobStatus.FAILED:
        returned.return_value = _portable(returned._return_value)  # the public property would print and raise
    returned.cfg = returned.hydra_cfg = None  # no sweeper asks for them, and those of thousands of jobs fill memory
    return returned


def module_path() -> str:
    """PYTHONPATH of a process that is to `perform` jobs: what is on it here, and what they unpickle."""
    own = (str(_FRAMEWORK.parent), str(_FRAMEWORK / "plugins"))
    here = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join((*(path for path in here if path and path not in own), *own))


def result_of(performed: JobReturn | Exception) -> JobReturn:
    """The JobReturn of `perform`; raises what was returned instead."""
    if isinstance(performed, Exception):
        raise performed
    return performed


@functools.lru_cache(maxsize=1)  # once per launch and process: it imports what the task needs
def _unpack(packed: bytes) -> tuple[str, tuple[Any, ...]]:
    plugins = Plugins.instance()  # The plugins come before the rest, for they make its classes anew.
    directory, shared = cloudpickle.loads(packed)
    *_, singletons = shared
    singletons["instances"][Plugins] = plugins
    return directory, shared


@functools.cache
def _settle() -> None:
    """Spare garbage collections what has been imported; the workers of joblib ask for one every second."""
    gc.collect()
    gc.freeze()


def _enter(directory: str) -> None:
    try:
        os.chdir(directory)  # relative paths are those of the command
    except OSError as error:
        host = os.uname().nodename
        reason = f"{directory}: cannot be entered on {host} ({error.strerror})"
        raise InputError(f"{reason}; start from a directory that all machines share") from None


def _portable(error: Exception) -> Exception:
    """`error` as one that loses nothing on its way to another process, unlike traces and causes."""
    line = explain(error)
    return JobError("".join(traceback.format_exception(error))) if line is None else InputError(line)
