"""Routing decisions of one run, watched from outside its policy: recorded with estimates, or one of them changed.

A watch takes the place of `route_prefill` and `route_decode` and asks the policy's own rule, a method or a compiled
rule, which it calls as Python. So a run that is watched takes longer, and is the same to the bit unless the watch
changes a decision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.policy.base import Policy, overrides
from framework.policy.decision import Decision
from framework.policy.rules import rule_of
from framework.policy.view import Cluster, Instances, Request, View
from framework.system.cluster import ClusterSpec

_STATE = 16  # numbers of a policy's compiled rules
# Further hooks that may be compiled: they share those numbers, so they are called as Python as well.
_ALONGSIDE: tuple[tuple[str, Callable[[int], Any]], ...] = (("admit", bool), ("split_at", int), ("fetch_prefix", int))
HOOKS = ("route_prefill", "route_decode")


class Routed(NamedTuple):
    """One decision. Estimates in seconds: until the prefill is done, or of a token; `other`: the instance with the
    least estimate that was not chosen, -1: there is none.
    """

    request: int
    hook: int  # of HOOKS
    time_s: float
    chosen: int  # -1: refused
    chosen_s: float
    other: int
    other_s: float


class Watch(ABC):
    """Sees the routing decisions of one run, in order."""

    def __init__(self) -> None:
        self._count = 0

    def attach(self, policy: Policy, cluster: Cluster, interpreted: Callable[[View], View]) -> None:
        """Take the place of the policy's rules, after it has prepared. `interpreted`: a view for rules in Python."""
        made = _Python(np.asarray(policy.compiled_params, np.float64), np.zeros(_STATE), interpreted)
        for name, answer in _ALONGSIDE:
            if isinstance(own := getattr(policy, name), Decision):
                vars(policy)[name] = made.method(own, answer)
        for hook in HOOKS if _asks_decode(policy, cluster.spec) else HOOKS[:1]:
            own = rule_of(policy, hook, cluster.spec)
            method = made.method(own, int) if isinstance(own, Decision) else own
            vars(policy)[hook] = partial(self._ask, HOOKS.index(hook), method)

    def _ask(self, hook: int, own: Callable[[Request, Cluster], Any], request: Request, cluster: Cluster) -> Any:
        answer, number = own(request, cluster), self._count
        self._count += 1
        return self.answered(number, hook, request, cluster, answer)

    @abstractmethod
    def answered(self, number: int, hook: int, request: Request, cluster: Cluster, answer: Any) -> Any:
        """The answer in place of the policy's `answer`; decisions are numbered from 0."""


class Recorder(Watch):
    """Keeps every decision in `rows`."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Routed] = []

    def answered(self, number: int, hook: int, request: Request, cluster: Cluster, answer: Any) -> Any:
        able = cluster.prefill if hook == 0 else cluster.decode
        chosen = -1 if isinstance(answer, str) else int(answer)
        estimates_s = _first_token_s(able, request) if hook == 0 else _token_s(able, request)
        others_s = np.where(able.ids == chosen, np.inf, estimates_s)
        place = int(others_s.argmin())
        has_other = len(able) > 0 and np.isfinite(others_s[place])
        own_s = estimates_s[able.ids == chosen]
        self.rows.append(
            Routed(
                request.id,
                hook,
                float(cluster.now_s),
                chosen,
                float(own_s[0]) if len(own_s) else float("nan"),
                int(able.ids[place]) if has_other else -1,
                float(others_s[place]) if has_other else float("nan"),
            )
        )
        return answer


class Change(Watch):
    """Answers decision `number` with `instance`; the policy's own rule is asked all the same, and does not know."""

    def __init__(self, number: int, instance: int) -> None:
        super().__init__()
        self._number, self._instance = number, instance

    def answered(self, number: int, hook: int, request: Request, cluster: Cluster, answer: Any) -> Any:
        return self._instance if number == self._number else answer


def _asks_decode(policy: Policy, spec: ClusterSpec) -> bool:
    """Whether the engine asks `route_decode` at all, so that to answer it changes nothing."""
    return overrides(policy, "route_decode") or all(pool.role in ("prefill", "decode") for pool in spec.pools)


class _Python(NamedTuple):
    """What compiled rules of one policy receive when they are called as Python."""

    params: NDArray[np.float64]
    state: NDArray[np.float64]
    interpreted: Callable[[View], View]

    def method(self, rule: Decision, answer: Callable[[int], Any]) -> Callable[[Request, Cluster], Any]:
        """The rule as a method of the policy."""
        return lambda request, cluster: answer(
            rule.function(request.id, self.interpreted(cluster.view), self.params, self.state)
        )


def _first_token_s(able: Instances, request: Request) -> Any:
    """Seconds until each instance has done what waits there and the rest of the request, at the request's own pace."""
    whole_s = able.prefill_s(request, np.zeros(len(able), np.int64))
    return able.prefill_s(request) + able.queued_tokens * whole_s / request.input_tokens


def _token_s(able: Instances, request: Request) -> Any:
    """Seconds of a decode step of each instance with the request in it."""
    context, held = request.input_tokens, able.kv_tokens + able.incoming_kv_tokens
    steps = zip((able.running + able.incoming).tolist(), held.tolist(), strict=True)
    return np.array([able.estimate_s(0, batch + 1, kv + context)[k] for k, (batch, kv) in enumerate(steps)])
