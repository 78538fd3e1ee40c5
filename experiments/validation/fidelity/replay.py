"""Measured deployments replayed: the same number of requests, in the same closed loop, through the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from experiments.validation.fidelity.rows import Row
from experiments.validation.fidelity.server import Client, server
from framework.calibration import replay as requests
from framework.errors import InputError
from framework.load import Closed
from framework.timing.calibration_terms import Calibration
from framework.workload import Workload

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_ROWS_A_TASK = 8
_MOST_WAITS = 8  # attempts until requests last as long as their reading
_CLOSE = 0.01


@dataclass(frozen=True)
class Replay:
    """What to replay, and with which terms over the kernel times."""

    row: Row
    client: Client
    calibration: Calibration


@dataclass(frozen=True)
class Replayed:
    """Means over the requests, in seconds, and the share of busy time in steps beyond the measured range."""

    ttft_s: float
    tpot_s: float
    extrapolated: float


def replay(task: Replay) -> Replayed | str:
    """The simulated deployment; or why it cannot be simulated, in one line."""
    row = task.row
    sent = requests.Sent(workload(row, task.client), Closed(row.concurrency), "closed")
    try:
        served = _read(sent, task) if task.client.token_s > 0 else _served(sent, task)
    except requests.UnservedError as error:
        return f"{error.unserved} of {len(sent.workload)} requests were not served"
    except InputError as error:
        return str(error)
    outputs = sent.workload.output_tokens
    ttft_s = served.ttft_s + _held_back_s(served.tpot_s, outputs, task.client.together)
    tpot_s = (served.e2e_s - ttft_s)[outputs > 1] / (outputs[outputs > 1] - 1)
    return Replayed(float(ttft_s.mean()), float(tpot_s.mean()), served.extrapolated)


def _held_back_s(tpot_s: Floats, outputs: Integers, together: int) -> Floats:
    """How much later the first token of each request comes, (N,), if the server sends `together` tokens at once."""
    behind = np.minimum(together, outputs) - 1
    return np.where(behind > 0, behind * tpot_s, 0.0)


def _served(sent: requests.Sent, task: Replay, wait_s: float = 0.0) -> requests.Served:
    """The times of requests that each wait `wait_s` before they are sent; the wait is included."""
    waiting = replace(task.calibration, request_s=task.calibration.request_s + wait_s)
    return requests.replay(sent, server(task.row, task.client), waiting)


def _read(sent: requests.Sent, task: Replay) -> requests.Served:
    """The times of requests whose clients share a process that reads one token after another.

    It cannot end more requests a second than it reads: with C in flight, one lasts at least C times the reading of its
    own tokens (Little's law). The part beyond the server's time is a wait before the request is sent.
    """
    least_s = task.row.concurrency * float(sent.workload.output_tokens.mean()) * task.client.token_s
    wait_s, served = 0.0, _served(sent, task)
    for _ in range(_MOST_WAITS):
        short_s = least_s - float(served.e2e_s.mean())
        if abs(short_s) <= _CLOSE * least_s or wait_s + short_s <= 0:
            break
        wait_s += short_s
        served = _served(sent, task, wait_s)
    return served


def workload(row: Row, client: Client) -> Workload:
    """The row's prompts, lengths drawn from the client's distribution; the same for all terms and parallelisms."""
    rng = np.random.default_rng([row.isl, row.osl, row.concurrency])
    count = row.prompts if client.rounds is None else client.rounds * row.concurrency
    lengths = [rng.integers(max(1, int(client.shortest * size)), size + 1, count) for size in (row.isl, row.osl)]
    prompts, outputs = (drawn.astype(np.int64) for drawn in lengths)
    return Workload(np.zeros(count), prompts, outputs, name=row.key)


def replay_all(tasks: Sequence[Replay], processes: int) -> Iterable[Replayed | str]:
    """Outcomes in the order of the tasks, as they come; successive ones should share GPU and backend (tables load)."""
    if processes == 1:
        yield from map(replay, tasks)
        return
    # a forked child of a process with threads, as polars starts, may never return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(replay, tasks, chunksize=_ROWS_A_TASK)
