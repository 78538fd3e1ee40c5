"""A run as its files tell it, for a second computation of what they say of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from framework.metrics.slo import Slo
from framework.system.cluster import PoolSpec
from tests.helpers.scenarios import Scenario

Row = Mapping[str, Any]
Summary = dict[str, Any]


@dataclass(frozen=True)
class StepNote:
    """Of a step that has ended in the reference engine, what steps.parquet does not tell of it among it."""

    lasted_s: float
    end_s: float
    tokens: int  # that it passed through the model
    read_tokens: int  # of KV, that its decodes read
    pairs: int  # of a query and a key, of its decodes
    prefill_square: float  # of its chunks, (prefix + chunk)^2 - prefix^2
    weight_passes: int
    expert_reads: float
    bubble_s: float


@dataclass(frozen=True)
class CrashNote:
    """A crash that has happened: of `instance` and those that step together with it, `instances` in all.

    `prefilled`: the requests that it took off their instances, by place among those sent, each with the tokens of its
    prompt that were computed or found in a cache; None: all of it, and those that it had emitted.
    """

    at_s: float
    noticed_s: float
    back_s: float
    instance: int
    instances: int
    prefilled: dict[int, int | None]


@dataclass(frozen=True)
class Unreported:
    """What the summary depends on and no file reports.

    All but `token_s`, `accepted` and extrapolation is what the reference engine has noted.

    `token_s`: the times of each request's tokens. `accepted`: drafts. `sent`: which requests of the trace were sent.
    `end_s`: when each of them ended, in any way. `steps`: of each instance. `held`: of each instance, how many blocks
    from when to when. `off_s`: of each instance. `extrapolation`: of each instance, seconds and how far. `hit_tokens`
    and `loaded_bytes`: of all stores of a tier, by its name. `shortest_s`: of some of the requests that were sent, the
    least time in which any schedule serves them. `crashes`: in order. `down`: of each instance, from when to when.
    `cut`: of each instance, from when to when it was in a step that a crash cut. `left_s`: of each, when steps began
    that had not ended with the run. `switched`: how often each was switched on, and went off.
    """

    token_s: list[list[float]]
    accepted: int
    sent: list[int]
    end_s: list[float]
    steps: list[list[StepNote]]
    held: list[list[tuple[float, float, int]]]
    off_s: list[float]
    extrapolation: list[tuple[float, float]]
    hit_tokens: dict[str, int]
    loaded_bytes: dict[str, float]
    shortest_s: Callable[[Sequence[bool]], float]
    crashes: list[CrashNote]
    down: list[list[tuple[float, float]]]
    cut: list[list[tuple[float, float]]]
    left_s: list[list[float]]
    switched: list[tuple[int, int, int]]


@dataclass(frozen=True)
class Alone:
    """Step times of a reference machine, in seconds, of which a slowdown is a multiple."""

    base_s: float
    prefill_token_s: float
    prefill_square_s: float
    sequence_s: float
    context_token_s: float

    def times_s(self, prompt: int, output: int) -> tuple[float, float]:
        """To the first token, the prompt in one step, and from there to the last one, one step each."""
        first_s = self.base_s + self.prefill_token_s * prompt + self.prefill_square_s * prompt**2
        later_s = 0.0
        for emitted in range(1, output):
            later_s += self.base_s + self.sequence_s + self.context_token_s * (prompt + emitted)
        return first_s, later_s


@dataclass(frozen=True)
class Run:
    """The rows of requests.parquet and steps.parquet, the configuration, and what neither tells."""

    requests: Sequence[Row]
    steps: Sequence[Row]
    scenario: Scenario
    slo: Slo
    alone: Alone
    edges: tuple[int, ...]
    unreported: Unreported

    @cached_property
    def pools(self) -> list[PoolSpec]:
        """The pool of each instance."""
        return [pool for pool in self.scenario.cluster.pools for _ in range(pool.instances)]

    @cached_property
    def finished(self) -> list[Row]:
        return [row for row in self.requests if row["state"] == "finished"]

    @cached_property
    def is_undisturbed(self) -> bool:
        """Whether each request computed its prompt once, and emitted all its tokens, on the instances that it chose."""
        calm = all(row["preemptions"] == 0 and row["migrations"] == 0 for row in self.requests)
        calm = calm and not self.unreported.crashes
        return calm and not self.scenario.rules.split_at and self._has_served_or_refused

    @property
    def _has_served_or_refused(self) -> bool:
        return all(row["state"] == "finished" or row["queue_s"] is None for row in self.requests)

    @cached_property
    def run_s(self) -> float:
        """From the first request sent to the last answer of any kind."""
        return lasting_s(self.requests, self.unreported.end_s)


def lasting_s(rows: Sequence[Row], end_s: Sequence[float]) -> float:
    """From the first of these requests sent to the last of their ends."""
    return max(end_s) - min(row["arrival_s"] for row in rows if row["arrival_s"] is not None)


def share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def percentile(values: Iterable[float], percent: int) -> float:
    """By linear interpolation between order statistics, of which the least is the 0th percentile."""
    ordered = sorted(values)
    rank = Fraction(percent, 100) * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + float(rank - low) * (ordered[high] - ordered[low])
