"""For each request that missed its SLO, the one cause that the times of its phases show.

The excess of a phase over the limit is compared with each thing that came on top (a queue, a transfer, steps with
prefills of others); the largest is the cause. A request that missed both limits counts for the one that it missed by
the larger factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from framework.diagnosis.decode_steps import DecodeSteps, decode_steps
from framework.metrics.phases import DecodeClock, phase_table
from framework.metrics.request_table import is_counted
from framework.metrics.slo import Slo
from framework.metrics.summary import Evaluation
from framework.result import FINISHED, Result

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

CAUSES = (
    *("unserved", "queue", "prefill", "transfer", "join", "interference", "displaced", "context", "decode", "other"),
)
_OTHER = CAUSES.index("other")


@dataclass(frozen=True)
class Losses:
    """The cause for which each request lost its SLO.

    `counted` (N,): the requests that the summary counts. `cause` (N,): index into CAUSES, -1 for a good request and for
    one that is not counted. `seconds`: time of each request in the phases from which causes are derived, by the name of
    the cause, null if undefined. `ttft_missed`, `tpot_missed` (N,): of counted requests that finished. `steps`: the
    parts of decode steps, None if the step log was reduced. `phases`: the table of `framework.metrics.phases`, made
    with `clock`.
    """

    counted: Flags
    cause: Ints
    seconds: dict[str, Floats]
    ttft_missed: Flags
    tpot_missed: Flags
    steps: DecodeSteps | None
    phases: pl.DataFrame
    clock: DecodeClock

    def of(self, cause: str) -> Flags:
        """The requests lost to it."""
        return self.cause == CAUSES.index(cause)

    @property
    def offered(self) -> int:
        return int(self.counted.sum())

    @property
    def lost(self) -> int:
        return int((self.cause >= 0).sum())


def losses_of(result: Result, evaluation: Evaluation, slo: Slo) -> Losses:
    """The losses of a run that `slo` has judged."""
    requests = evaluation.requests
    count, counted = len(requests), is_counted(requests)
    finished = result.requests["state"] == FINISHED
    ttft_missed = counted & finished & ~requests["ttft_ok"].to_numpy()
    tpot_missed = counted & finished & ~requests["tpot_ok"].to_numpy()
    clock = DecodeClock(result.step_log)
    steps = decode_steps(result, clock) if result.engine.log == "full" else None
    table = phase_table(result, clock)
    seconds = _seconds(result, table, steps)
    classes = result.workload.slo_class
    ttft_limit_s = slo.limits_s("ttft_s", classes, count)
    later = np.maximum(result.workload.output_tokens - 1, 1)
    tpot_limit_s = slo.limits_s("tpot_s", classes, count)
    ttft_s, tpot_s = requests["ttft_s"].to_numpy(), requests["tpot_s"].to_numpy()
    by_ttft = ttft_missed & (~tpot_missed | (ttft_s / ttft_limit_s >= np.nan_to_num(tpot_s) / tpot_limit_s))
    cause = np.full(count, _OTHER)
    first = _before_first_token(seconds, ttft_limit_s)
    after = _after_first_token(seconds, tpot_limit_s * later)
    cause = np.where(tpot_missed & ~by_ttft, after, np.where(by_ttft, first, cause))
    cause = np.where(finished, cause, CAUSES.index("unserved"))
    lost = counted & ~requests["good"].to_numpy()
    return Losses(counted, np.where(lost, cause, -1), seconds, ttft_missed, tpot_missed, steps, table, clock)


def _seconds(result: Result, table: pl.DataFrame, steps: DecodeSteps | None) -> dict[str, Floats]:
    """The time of each request that each cause took, NaN if the request did not finish.

    "decode": decode steps at their length without prefills; "interference": the additional time of steps with prefills,
    and waits for steps of prefills alone.
    """
    phases = {name: column.to_numpy() for name, column in table.to_dict().items()}
    outcome = result.requests
    first = {
        "queue": phases["queue_s"],
        "prefill": phases["prefill_s"],
        "before_first_s": outcome["first_token_s"] - outcome["prefill_end_s"],
    }
    if steps is None:
        nothing = np.zeros(len(outcome))
        return first | {
            "transfer": phases["transfer_s"],
            "join": nothing,
            "interference": nothing,
            "displaced": nothing,
            "context": nothing,
            "decode": phases["decode_s"],
        }
    excess_s = np.minimum(steps.interference_s, phases["beside_prefill_s"])
    own_s = phases["decode_s"] + phases["beside_prefill_s"] - excess_s
    return first | {
        "transfer": phases["transfer_s"],
        "join": phases["join_s"],
        "interference": excess_s + phases["stalled_s"],
        "displaced": phases["displaced_s"],
        "context": own_s * steps.context_share,
        "decode": own_s * (1 - steps.context_share),
    }


def _before_first_token(seconds: dict[str, Floats], limit_s: Floats) -> Ints:
    alone = CAUSES.index("prefill")
    added = {"queue": seconds["queue"], "transfer": np.nan_to_num(seconds["before_first_s"])}
    return np.where(seconds["prefill"] - limit_s > _most(added), alone, _largest(added))


def _after_first_token(seconds: dict[str, Floats], limit_s: Floats) -> Ints:
    added = {name: seconds[name] for name in ("transfer", "join", "interference", "displaced")}
    context, rest = seconds["context"], seconds["decode"]
    reading = (context >= rest) & (rest <= limit_s)
    alone = np.where(reading, CAUSES.index("context"), CAUSES.index("decode"))
    return np.where(context + rest - limit_s > _most(added), alone, _largest(added))


def _most(parts: dict[str, Floats]) -> Floats:
    """The largest part, or 0."""
    most: Floats = np.maximum(np.nan_to_num(np.stack(list(parts.values()))).max(axis=0), 0.0)
    return most


def _largest(parts: dict[str, Floats]) -> Ints:
    table: NDArray[Any] = np.nan_to_num(np.stack(list(parts.values())))
    return np.array([CAUSES.index(name) for name in parts])[np.argmax(table, axis=0)]
