"""What every engine takes and gives: the parts of a run, its replay, and the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from framework.policy.base import Policy
from framework.policy.inspection import Inspection
from framework.policy.view import Cluster
from framework.result import Gaps

Progress = Callable[[int, int], None]  # counts of requests: ended, total


class Replayed(NamedTuple):
    """The result of a replay; see `framework.result.Result`. `requests` has no predictions yet."""

    requests: NDArray[np.void]  # (N,) OUTCOME
    instances: NDArray[np.void]  # (M,)
    tiers: NDArray[np.void]  # (M * tiers,)
    step_log: NDArray[np.void]
    token_log: NDArray[np.void]
    gaps: Gaps | None
    marks: tuple[NDArray[np.void], ...]  # (M,) MARK of each given time that lies before the end of the run
    crashes: NDArray[np.void]  # CRASHED
    drops: NDArray[np.void]  # DROPPED
    attempts: NDArray[np.int64]  # (N,) how often each request was sent; (0,) where clients do not give up
    hung: NDArray[np.bool_]  # (M,) whether each hangs as the run ends
    gated_s: NDArray[np.float64]  # (N,) seconds that each waited at the gateway; (0,) without one
    reasons: tuple[str, ...]
    events: int
    steps: int
    replay_s: float = 0.0
    hooks_s: float = 0.0


class Engine(Protocol):
    """One run of a setting. `inspection`: what a policy sees of it, before the first event and at each."""

    @property
    def inspection(self) -> Inspection: ...

    def replay(self, policy: Policy, cluster: Cluster, progress: Progress, marks_s: Sequence[float]) -> Replayed:
        """Let the policy decide until every request has ended; `cluster` is its view of `inspection`.

        `marks_s`, in order: times at which the totals of instances are recorded, after all events up to then.
        """
        ...
