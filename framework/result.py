"""The result of a run as arrays: the only input of metrics, reports and bounds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.engine.memory.state import TIER
from framework.engine.setup.config import EngineConfig
from framework.load import Window
from framework.system.cluster import ClusterSpec
from framework.system.model import Model
from framework.workload import Workload, chosen

Floats = NDArray[np.float64]

# The numbers of request ends in results.
STATES = ("pending", "finished", "rejected", "failed", "cancelled")
UNSENT = len(STATES)  # never sent, since the load had ended: no results have it
FINISHED = STATES.index("finished")

OUTCOME = np.dtype(
    [
        ("state", "i1"),  # 0 pending, 1 finished, 2 rejected, 3 failed, 4 cancelled
        ("reason", "i2"),
        ("prefill_instance", "i4"),
        ("decode_instance", "i4"),
        ("arrival_s", "f8"),
        ("start_s", "f8"),
        ("prefill_end_s", "f8"),
        ("first_token_s", "f8"),
        ("transfer_end_s", "f8"),
        ("end_s", "f8"),
        ("emitted", "i8"),
        ("cached_tokens", "i8"),
        ("preemptions", "i4"),
        ("migrations", "i4"),
        ("predicted_tokens", "f8"),
    ],
    align=True,
)


# A crash at `at_s` of an instance and the `instances` - 1 others in lockstep behind it; `noticed_s`: when they lost
# what they had, and were known to be down.
CRASHED = np.dtype([("at_s", "f8"), ("back_s", "f8"), ("instance", "i4"), ("instances", "i4"), ("noticed_s", "f8")])
# A request that a crash took off its instance, the KV tokens that it lost, and what became of it (`framework.codes`:
# RECOMPUTED to CALLED_OFF); `crash` is the row of the crash.
DROPPED = np.dtype([("crash", "i4"), ("request", "i4"), ("lost_tokens", "i8"), ("recovery", "i1")])

# Totals of an instance as of one time: `since_s` is the start of the earliest step that it is in, or that time; a step
# counts once it has ended, `busy_s` and the integrals over time up to that time.
TOTALS = (
    *("busy_s", "batch_s", "bubble_s", "kv_block_s"),
    *("prefill_tokens", "decode_tokens", "drafted_tokens", "accepted_tokens"),
    *("context_tokens", "decode_pairs", "prefill_square", "weight_passes", "expert_reads"),
)
MARK = np.dtype([("since_s", "f8"), *((name, "f8") for name in TOTALS)])


def mark_of(instances: NDArray[np.void], since_s: Floats) -> NDArray[np.void]:
    """A MARK of each of these instances, (M,), from records that have the fields TOTALS."""
    mark = np.empty(len(instances), MARK)
    mark["since_s"] = since_s
    for name in TOTALS:
        mark[name] = instances[name]
    return mark


@dataclass(frozen=True)
class Spread:
    """`count` values in seconds, and their spread; NaN if there are none."""

    count: int
    mean_s: float
    std_s: float
    median_s: float
    p90_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True)
class Gaps:
    """Token gaps of a run. NaN where undefined.

    `request_p99_s`, `request_max_s`: shape (N,), over the output_tokens - 1 gaps of a request, by linear interpolation;
    NaN for a request of one token and for one that did not emit all its tokens. `tokens`: the gaps of all requests;
    `messages`: the gaps for a client that gets all tokens of a step in one message, so without the gaps of 0.
    """

    request_p99_s: Floats
    request_max_s: Floats
    tokens: Spread
    messages: Spread


@dataclass(frozen=True)
class Result:
    """The result of a run as arrays; `framework.metrics.summary` turns it into numbers.

    `requests` (N,): OUTCOME, times in seconds, NaN if something never happened, -1 for no instance. `instances` (M,):
    totals. `window`: the seconds whose requests count, None if the end of the run decides; `marks`: totals at its start
    and its end, (M,) MARK each, if the run had not ended before. `step_log`: leaps (runs of equal decode steps, or one
    step), in the order of their ends. `token_log`: the decode steps that gave a request its tokens, and their instance;
    a row with instance -1 is a single gap of `previous_token_s` seconds, one with NaN there begins with the step that
    gave token 1. `attempts` is empty unless clients give up, `gated_s` without a gateway.
    `hung`: instances that hang as the run ends.
    """

    workload: Workload
    cluster: ClusterSpec
    model: Model
    engine: EngineConfig
    policy: str
    predictor: str
    timing_source: str
    load: str
    seed: int
    reasons: tuple[str, ...]
    events: int
    steps: int
    requests: NDArray[Any]
    instances: NDArray[Any]
    step_log: NDArray[Any]
    token_log: NDArray[Any]
    request_ids: NDArray[np.int64] | None = None  # numbers in the trace, (N,), if not all of its requests were sent
    window: Window | None = None
    counted: NDArray[np.bool_] | None = None  # requests that belong to the window, (N,); None: all
    marks: tuple[NDArray[np.void], ...] = ()
    gaps: Gaps | None = None  # gaps in place of the log if that is reduced
    tiers: NDArray[Any] = field(default_factory=lambda: np.zeros(0, TIER))  # (M * tiers,): totals
    crashes: NDArray[Any] = field(default_factory=lambda: np.zeros(0, CRASHED))  # crashes in order
    drops: NDArray[Any] = field(default_factory=lambda: np.zeros(0, DROPPED))  # drops in order
    attempts: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.int64))  # (N,): times that each was sent
    gated_s: NDArray[Any] = field(default_factory=lambda: np.zeros(0))  # (N,): seconds that each waited at the gateway
    hung: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.bool_))  # (M,): it hangs, and nobody has noticed
    replay_s: float = 0.0  # real seconds of the run
    hooks_s: float = 0.0  # real seconds of Python hooks, as far as they were timed

    @property
    def end_s(self) -> float:
        """The end of the last request, in any state."""
        return float(np.nanmax(self.requests["end_s"]))

    @property
    def extrapolated(self) -> float:
        """Share of all busy time in steps past the measured range of the timing source."""
        busy_s = self.instances["busy_s"].sum()
        return float(self.instances["extrapolated_s"].sum() / busy_s) if busy_s > 0 else 0.0

    @property
    def extrapolation(self) -> float:
        """The largest excess of these steps, as a ratio to the end of the measured range; 1: none."""
        return max(1.0, float(self.instances["extrapolation"].max()))


def of_those_sent(result: Result) -> Result:
    """The result without the requests that were never sent."""
    sent = result.requests["state"] != UNSENT
    log, drops = result.token_log.copy(), result.drops.copy()
    for table in (log, drops):
        table["request"] = (np.cumsum(sent) - 1)[table["request"]]
    gaps = result.gaps
    if gaps is not None:
        gaps = replace(gaps, request_p99_s=gaps.request_p99_s[sent], request_max_s=gaps.request_max_s[sent])
    counted = None if result.counted is None else result.counted[sent]
    workload = chosen(result.workload, sent)
    requests = result.requests.view(f"V{OUTCOME.itemsize}")[sent].view(OUTCOME)  # with the bytes between fields
    attempts = result.attempts[sent] if len(result.attempts) else result.attempts
    gated_s = result.gated_s[sent] if len(result.gated_s) else result.gated_s
    kept = {"workload": workload, "counted": counted, "requests": requests, "request_ids": np.flatnonzero(sent)}
    return replace(result, **kept, attempts=attempts, gated_s=gated_s, token_log=log, drops=drops, gaps=gaps)
