"""CPU time of `simulate` on one row of the benchmark, in the checkout of the working directory.

    cd CHECKOUT && python -P .../experiments/validation/bench/one_run.py ROW [warm]

It is given by path, so this file is the same for two checkouts while all its imports are the checkout's own. It needs
nothing but the rows and `simulate`, under each of their names so far; rows that an older checkout lacks (`SHORT`) are
made here, from its own classes. It answers each line on stdin with a measurement, a JSON object on stdout; with `warm`
it compiles, and reads nothing.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_ROWS = ("experiments.validation.bench.rows", "experiments.bench.rows")  # the newest name first
_LONG_ENOUGH_S = 0.5  # length of the repetitions in one process
_FEW_REQUESTS = 100


@dataclass(frozen=True)
class Short:
    """Many short requests on any number of instances, spread by a routing of `policies.chunked`."""

    instances: int
    routing: str

    requests = 200_000
    rate = 1000.0  # a second: 8 instances keep up
    input_tokens = 256
    output_tokens = 8

    def arrays(self) -> dict[str, Any]:
        """The columns of a workload: Poisson arrivals, all prompts and outputs of one length."""
        gaps_s = np.random.default_rng(0).exponential(1 / self.rate, self.requests)
        return {
            "arrival_s": np.cumsum(gaps_s),
            "input_tokens": np.full(self.requests, self.input_tokens),
            "output_tokens": np.full(self.requests, self.output_tokens),
        }


SHORT = {
    "round-robin-8": Short(8, "round_robin"),
    "round-robin-4096": Short(4096, "round_robin"),
    "least-loaded-8": Short(8, "least_queued"),
    "least-loaded-4096": Short(4096, "least_queued"),
}


@dataclass(frozen=True)
class OneRun:
    """A measurement: the median CPU time of `simulate`, and what shows whether two runs did the same."""

    cpu_s: float
    requests: int
    steps: int
    digest: str


def row_and_requests(name: str, *, is_short: bool) -> tuple[Any, Any]:
    """The row of that name in this checkout, and its workload, or the first part of it. Raises LookupError
    without one.
    """
    rows = first_module(_ROWS)
    if name in SHORT:
        short = SHORT[name]
        chunked = importlib.import_module("policies.chunked").Chunked
        row = rows.Row(
            name, name, {}, (short.instances,), lambda: chunked(routing=short.routing), engine={"log": "reduced"}
        )
        columns = {key: column[:_FEW_REQUESTS] if is_short else column for key, column in short.arrays().items()}
        return row, importlib.import_module("framework.workload").Workload(**columns)
    if name not in rows.ROWS:
        raise LookupError(f"{os.getcwd()} has no row {name}")
    row, load = rows.ROWS[name], importlib.import_module("traces.load").load
    if not is_short:
        return row, load(**row.trace)
    trace = {key: value for key, value in row.trace.items() if key not in ("tile", "limit", "requests")}
    return row, load(**trace, limit=_FEW_REQUESTS)


def first_module(names: tuple[str, ...]) -> Any:
    """The first existing one of these modules. Raises ImportError if there is none."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "-"):
                raise
    raise ImportError(f"{os.getcwd()} has none of {', '.join(names)}")


def simulation(row: Any, workload: Any) -> Callable[[], Any]:
    """A run of the row; everything is read and made before the clock starts."""
    simulate = importlib.import_module("framework.simulate").simulate
    parts = workload, row.cluster(), first_module(_ROWS).model(), row.timing
    engine = row.engine_config()

    def run() -> Any:
        predictor = None if row.predictor is None else row.predictor()
        return simulate(*parts, engine=engine, policy=row.policy(), predictor=predictor)

    return run


def measured(run: Callable[[], Any], result: Any) -> OneRun:
    """Run until there is enough to measure; `result` is the last result. Freeing it is not part of a run."""
    found: list[float] = []
    while sum(found) < _LONG_ENOUGH_S:
        gc.collect()
        begin_s = time.process_time()
        mine = run()
        found.append(time.process_time() - begin_s)
        del mine
    ends = np.ascontiguousarray(result.requests["end_s"])
    return OneRun(statistics.median(found), len(ends), result.steps, hashlib.sha256(ends.tobytes()).hexdigest()[:16])


def main(name: str, *arguments: str) -> None:
    """Measure the row when asked."""
    is_short = "warm" in arguments
    run = simulation(*row_and_requests(name, is_short=is_short))
    result = run()
    if not is_short:
        for _ in sys.stdin:
            print(json.dumps(vars(measured(run, result))), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main(*sys.argv[1:])
