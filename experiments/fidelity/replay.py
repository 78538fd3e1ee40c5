"""Measured deployments replayed: the same number of requests, in the same closed loop, through the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from experiments.fidelity.rows import Row
from experiments.fidelity.server import Client, server
from framework.calibration import replay as requests
from framework.errors import InputError
from framework.timing.calibration_terms import Calibration
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
    """Means over the requests, in seconds, and the share of busy time in steps beyond what was measured."""

    ttft_s: float
    tpot_s: float
    extrapolated: float


def replay(task: Replay) -> Replayed | str:
    """The deployment as the simulator sees it; or why it cannot be simulated, in one line."""
    row = task.row
    sent = requests.Sent(workload(row, task.client), Closed(row.concurrency), "closed")
    try:
        served = requests.replay(sent, server(row, task.client), task.calibration)
    except requests.UnservedError as error:
        return f"{error.unserved} of {len(sent.workload)} requests were not served"
    except InputError as error:
        return str(error)
    later_s = served.tpot_s[sent.workload.output_tokens > 1]
    return Replayed(float(served.ttft_s.mean()), float(later_s.mean()), served.extrapolated)


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
