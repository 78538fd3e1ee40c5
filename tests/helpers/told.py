"""A run as its files tell it, for a second computation of what they say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from framework.metrics.slo import Slo
from framework.system.cluster import PoolSpec
from tests.helpers.scenarios import Scenario

Row = Mapping[str, Any]
Summary = dict[str, Any]


@dataclass(frozen=True)
class Untold:
    """What the summary depends on and no file tells.

    `token_s`: the times of each request's tokens. `accepted`: drafts. `last_end_s`: of any request. `instances`: their
    totals `off_s`, `kv_block_s`, `bubble_s`, `prefill_square`, `extrapolated_s` and `extrapolation`, and of pipelines
    `weight_passes` and `expert_reads`. `hit_tokens` and `loaded_bytes`: of all stores of a tier, by its name.
    """

    token_s: list[list[float]]
    accepted: int
    last_end_s: float
    instances: list[Row]
    hit_tokens: dict[str, int]
    loaded_bytes: dict[str, float]


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
    untold: Untold

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
        return calm and not self.scenario.rules.split_at and self._has_served_or_refused

    @property
    def _has_served_or_refused(self) -> bool:
        return all(row["state"] == "finished" or row["queue_s"] is None for row in self.requests)

    @cached_property
    def duration_s(self) -> float:
        """First arrival to last completion; to the last end of any kind where nothing was completed."""
        ends_s = [row["arrival_s"] + row["e2e_s"] for row in self.finished]
        arrivals_s = [row["arrival_s"] for row in self.requests if row["arrival_s"] is not None]
        return max(ends_s, default=self.untold.last_end_s) - min(arrivals_s)


def share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
