"""Jobs on a Ray cluster, each composed on its node."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from hydra.core.utils import JobReturn

from framework.errors import InputError
from framework.run.launchers.jobs import SINGLE_THREADED, Overrides, Shared, module_path, perform, result_of

log = logging.getLogger(__name__)

_PASSED_ON = ("TRACES_DIR", "TRACES_OFFLINE")  # a running cluster does not know the command's environment
_ANSWER_S = 5.0


def launch(
    shared: Shared, settings: Mapping[str, Any], job_overrides: Sequence[Overrides], first: int
) -> list[JobReturn]:
    """Run jobs `first`, `first` + 1, ... and return their results in order. `settings`: "init" and "remote", for Ray.

    Ray restarts the jobs of dead workers and nodes; a job that it gives up has an InputError as its result. Machines
    need the project, its environment and the directory of the command at the same places.
    """
    directory = shared.begin()
    _attach(settings["init"])
    cores = int(ray.cluster_resources().get("CPU", 1))
    log.info(f"{len(job_overrides):,} runs on a Ray cluster of {cores} cores, in {directory}")
    task = ray.remote(**settings["remote"])(perform)
    packed = ray.put(shared.pack())
    jobs = dict(enumerate(job_overrides, first))
    numbers = {task.remote(packed, number, list(overrides)): number for number, overrides in jobs.items()}
    returned = {}
    for ref in _as_they_end(list(numbers)):
        number = numbers[ref]
        try:
            returned[number] = result_of(ray.get(ref))
        except ray.exceptions.RayError as error:
            line = f"Ray gave it up: {' '.join(str(error).split())}"
            returned[number] = shared.failed(number, jobs[number], line)
        shared.ended(returned[number])
    return [returned[number] for number in jobs]


def _attach(init: Mapping[str, Any]) -> None:
    if ray.is_initialized():
        return
    address = init.get("address") or os.environ.get("RAY_ADDRESS", "")
    _require_reachable(address)
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment = SINGLE_THREADED | passed_on | {"PYTHONPATH": module_path()}
    try:
        ray.init(**init, runtime_env={"env_vars": environment})
    except ConnectionError as error:
        raise _no_cluster(address, error) from error


def _require_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if "://" not in address and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
        except OSError as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: OSError) -> InputError:
    return InputError(f"no Ray cluster answers at {address} ({' '.join(str(error).split())}); see RAY_ADDRESS")


def _as_they_end(waiting: list[Any]) -> Iterator[Any]:
    while waiting:
        ended, waiting = ray.wait(waiting)
        yield from ended
