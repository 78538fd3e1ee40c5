"""A job in a process other than its launcher's: what is sent to it, and what can be sent back."""

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

from framework.cli.explain import explain
from framework.errors import InputError, JobError
from framework.run.following import follow

try:
    from joblib.externals import cloudpickle
except ImportError:  # joblib has not brought its own since 1.6 and requires the package
    import cloudpickle

# One thread for each job: there are as many jobs as cores.
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
        """Do the first steps of every launcher; return the directory of the sweep."""
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        directory = Path(self.config.hydra.sweep.dir)
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def pack(self) -> bytes:
        """All of it, with the directory of relative paths, packed for `perform`."""
        return cloudpickle.dumps((os.getcwd(), (self.context, self.config, self.task, Singleton.get_state())))

    def ended(self, returned: JobReturn) -> None:
        """Tell the command that a job has ended."""
        follow(self.context.callbacks.callbacks, returned)

    def failed(self, number: int, overrides: Overrides, line: str) -> JobReturn:
        """The result of a job whose process has died, which callbacks also receive."""
        config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
        with open_dict(config):
            config.hydra.job.num = number
        returned = JobReturn(overrides=list(overrides), status=JobStatus.FAILED)
        returned.return_value = InputError(line)
        self.context.callbacks.on_job_end(config=config, job_return=returned)
        return returned


def perform(packed: bytes, number: int, overrides: Overrides) -> JobReturn | Exception:
    """Run job `number`. An error in its task is in its JobReturn; an earlier error is returned instead.

    Nothing is raised, since a launcher loses the message of an error that it passes on.
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
    """PYTHONPATH of a process that is to `perform` jobs: this process's path, and the modules that jobs unpickle."""
    own = (str(_FRAMEWORK.parent), str(_FRAMEWORK / "plugins"))
    here = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join((*(path for path in here if path and path not in own), *own))


def result_of(performed: JobReturn | Exception) -> JobReturn:
    """The JobReturn of `perform`; raises an error that was returned instead."""
    if isinstance(performed, Exception):
        raise performed
    return performed


@functools.lru_cache(maxsize=1)  # once per launch and process: it imports what the task needs
def _unpack(packed: bytes) -> tuple[str, tuple[Any, ...]]:
    plugins = Plugins.instance()  # The plugins come first, because they define its classes anew.
    directory, shared = cloudpickle.loads(packed)
    *_, singletons = shared
    singletons["instances"][Plugins] = plugins
    return directory, shared


@functools.cache
def _settle() -> None:
    """Exempt imported objects from garbage collections, because the workers of joblib start one every second."""
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
    """A copy of `error` that loses nothing on its way to another process, as traces and causes would."""
    line = explain(error)
    return JobError("".join(traceback.format_exception(error))) if line is None else InputError(line)
