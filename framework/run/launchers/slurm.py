"""Jobs as Slurm jobs, through submitit, with the settings of Hydra's launcher for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hydra.core.utils import JobReturn
from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
from submitit import AutoExecutor
from submitit.core.utils import FailedSubmissionError, UncompletedJobError
from submitit.helpers import Checkpointable

from framework.errors import InputError
from framework.run.launchers.jobs import Overrides, Shared, module_path, perform, result_of

log = logging.getLogger(__name__)

_OF_ALL_CLUSTERS = frozenset(field.name for field in fields(BaseQueueConf))
_AT_START = ("max_num_timeout",)


def launch(
    shared: Shared, cluster: str, settings: Mapping[str, Any], job_overrides: Sequence[Overrides], first: int
) -> list[JobReturn]:
    """Run jobs `first`, `first` + 1, ... on `cluster`, "slurm" or "local", and return their results in order.

    A job that ends without a result, killed or out of time, has an InputError as its result. Machines need the project,
    its environment and the directory of the command at the same places. Raises InputError if nothing can be submitted.
    """
    directory = shared.begin()
    log.info(f"{len(job_overrides):,} {cluster} jobs, in {directory}")
    os.environ["PYTHONPATH"] = module_path()  # jobs inherit it
    numbers = range(first, first + len(job_overrides))
    try:
        submitted = _executor(cluster, settings).map_array(_Job(shared.pack()), numbers, map(list, job_overrides))
    except (FailedSubmissionError, RuntimeError) as error:
        raise InputError(f"nothing could be submitted to {cluster}: {' '.join(str(error).split())}") from error
    returned = []
    for number, overrides, job in zip(numbers, job_overrides, submitted, strict=True):
        try:
            returned.append(result_of(job.result()))
        except UncompletedJobError:
            line = f"its job {job.job_id} ended without a result; see {job.paths.stderr}"
            returned.append(shared.failed(number, overrides, line))
        shared.ended(returned[-1])
    return returned


@dataclass(frozen=True)
class _Job(Checkpointable):  # Slurm queues a job again after it preempts it
    packed: bytes

    def __call__(self, number: int, overrides: list[str]) -> JobReturn | Exception:
        return perform(self.packed, number, overrides)


def _executor(cluster: str, settings: Mapping[str, Any]) -> AutoExecutor:
    own = dict(settings)
    folder = own.pop("submitit_folder")
    at_start = {f"{cluster}_{name}": own.pop(name) for name in _AT_START if name in own}
    executor = AutoExecutor(folder=folder, cluster=cluster, **at_start)
    executor.update_parameters(
        **{name if name in _OF_ALL_CLUSTERS else f"{cluster}_{name}": value for name, value in own.items()}
    )
    return executor
