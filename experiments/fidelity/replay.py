"""Measured deployments replayed: the same number of requests, in the same closed loop, through the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context

import numpy as np

from experiments.fidelity.rows import Row
from experiments.fidelity.scripts import aggregated
from experiments.fidelity.server import Client, assumed, served, server
from framework.errors import InputError
from framework.policy import Aggregated, Disaggregated
from framework.result import FINISHED, Result
from framework.simulate import simulate
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.kernels.read_aiconfigurator import load_package, package_gpu
from framework.timing.kernels.table import Kernels
from framework.timing.kernels.tabulate import tabulate
from framework.timing.profile import StepParts
from framework.timing.step_row import StepRow
from framework.workload import Closed, Workload

_ROWS_A_TASK = 8


@dataclass(frozen=True)
class Replay:
    """What to replay, and with which terms over the kernel times."""

    row: Row
    client: Client
    calibration: Calibration


@dataclass(frozen=True)
class Replayed:
    """Means over the requests, in seconds, and the share of busy time in steps past what was measured."""

    ttft_s: float
    tpot_s: float
    extrapolated: float


@dataclass(frozen=True)
class _Composed:
    """Step times composed from the full tables, calibrated."""

    gpu: str
    backend: str
    calibration: Calibration
    source: str = "kernel tables"

    def row(self, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        return _parts(self.gpu, self.backend, model, parallelism).row(self.calibration)


def replay(task: Replay) -> Replayed | str:
    """The deployment as the simulator sees it; or why it cannot be simulated, in one line."""
    row = task.row
    try:
        there = server(row, task.client)
        result = simulate(
            workload(row, task.client),
            there.cluster,
            there.model,
            _Composed(row.gpu, row.backend, task.calibration),
            there.engine,
            Aggregated() if row.mode == "agg" else Disaggregated(),
            load=Closed(row.concurrency),
        )
    except InputError as error:
        return str(error)
    return _means(result)


def workload(row: Row, client: Client) -> Workload:
    """The row's prompts, lengths drawn from the client's law; the same for all terms and parallelisms."""
    rng = np.random.default_rng([row.isl, row.osl, row.concurrency])
    lengths = [rng.integers(max(1, int(client.shortest * size)), size + 1, row.prompts) for size in (row.isl, row.osl)]
    prompts, outputs = (drawn.astype(np.int64) for drawn in lengths)
    return Workload(np.zeros(row.prompts), prompts, outputs, name=row.key)


def replay_all(tasks: Sequence[Replay], processes: int) -> Iterable[Replayed | str]:
    """Outcomes in the order of the tasks, as they come; neighbours should share GPU and backend, whose tables load."""
    if processes == 1:
        yield from map(replay, tasks)
        return
    # a forked child of a process with threads may never come back: polars has some
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(replay, tasks, chunksize=_ROWS_A_TASK)


def unsupported(row: Row) -> str:
    """Why no step times can be composed for a row, in one line; empty if they can."""
    try:
        model = served(row)
        for pool in (row.prefill, aggregated(row)):
            _parts(row.gpu, row.backend, model, pool.parallelism)
        server(row, assumed(row))
    except InputError as error:
        return str(error)
    return ""


@lru_cache(maxsize=4)
def _kernels(gpu: str, backend: str) -> Kernels:
    return load_package(gpu, backend)


@lru_cache(maxsize=64)
def _parts(gpu: str, backend: str, model: Model, parallelism: Parallelism) -> StepParts:
    return tabulate(_kernels(gpu, backend), model, package_gpu(gpu), parallelism)


def _means(result: Result) -> Replayed | str:
    requests, outputs = result.requests, result.workload.output_tokens
    ended = requests["state"] == FINISHED
    if not np.all(ended):
        return f"{np.sum(~ended)} of {len(ended)} requests were not served"
    ttft_s = requests["first_token_s"] - requests["arrival_s"]
    several = outputs > 1
    tpot_s = (requests["end_s"] - requests["first_token_s"])[several] / (outputs[several] - 1)
    return Replayed(float(ttft_s.mean()), float(tpot_s.mean()), result.extrapolated)
