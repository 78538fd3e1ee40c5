"""Compiled rules: routing and admission rules that an engine calls without Python, and those that are defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.codes import DECODE, PREFILL
from framework.policy.view import View


@dataclass(frozen=True)
class Decision:
    """A rule that the compiled engine compiles when a run first needs it; `decision` makes one.

    Attributes:
        function: Of (request, view, params, state), returning an int.
        observes: It reads what changes in the middle of decode steps (kv_tokens, blocks).
        index: The name of a faster way to the same answer, which an engine may take instead; "": none.

    Raises:
        PolicyError: By the run, if the rule cannot be compiled, or its answer is no instance of the run.

    Example:
        >>> isinstance(servelab.Policy.route_prefill, servelab.Decision)  # the default rule
        True
    """

    function: Callable[..., Any]
    observes: bool
    index: str = ""


def decision(*, observes: bool) -> Callable[[Callable[..., int]], Decision]:
    """Compile a routing or admission rule: a function (request, view, params, state) -> int without a closure.

    `view.instances` and `view.requests` are structured arrays with the columns of `Instances` and `Requests`, and
    `framework.replay.lookups` has more, by `view.engine`. `params` are the policy's `compiled_params`, `state` 16
    floats of the policy's own that start at 0.

    Args:
        observes: Whether the rule reads what changes in the middle of decode steps (kv_tokens, blocks).

    Returns:
        A decorator, which makes a `Decision` of the function.

    Raises:
        PolicyError: By the run, if the rule cannot be compiled, or its answer is no instance of the run.

    Example:
        >>> @servelab.decision(observes=False)
        ... def in_turn(request, view, params, state):
        ...     return request % len(view.instances)
        >>> class InTurn(servelab.Aggregated):
        ...     route_prefill = in_turn
        >>> turns = servelab.run(InTurn(), "synthetic", limit=60, rate=20)
        >>> turns.requests["prefill_instance"][:6].to_list()
        [0, 1, 2, 3, 4, 0]
    """
    return lambda function: Decision(function, observes)


@decision(observes=False)
def prefill_round_robin(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The next instance in turn among those that prefill."""
    i = int(state[0]) % len(view.instances)
    while view.instances[i].role & PREFILL == 0:
        i = (i + 1) % len(view.instances)
    state[0] = i + 1
    return i


@decision(observes=False)
def decode_round_robin(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The next instance in turn among those that decode."""
    i = int(state[1]) % len(view.instances)
    while view.instances[i].role & DECODE == 0:
        i = (i + 1) % len(view.instances)
    state[1] = i + 1
    return i


def _least_queued(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The instance with the fewest tokens to prefill; ties go to the fewest decoding requests."""
    best = -1
    for i in range(len(view.instances)):
        inst = view.instances[i]
        if inst.role & PREFILL:
            if best < 0:
                best = i
            else:
                other = view.instances[best]
                if inst.queued_tokens < other.queued_tokens or (
                    inst.queued_tokens == other.queued_tokens and inst.running < other.running
                ):
                    best = i
    return best


prefill_least_queued = Decision(_least_queued, observes=False, index="least_queued")


def _least_kv(request: int, view: View, params: NDArray[np.float64], state: NDArray[np.float64]) -> int:
    """The instance with the fewest KV tokens held or incoming."""
    best, least = -1, 0
    for i in range(len(view.instances)):
        inst = view.instances[i]
        held = inst.kv_tokens + inst.incoming_kv_tokens
        if inst.role & DECODE and (best < 0 or held < least):
            best, least = i, held
    return best


decode_least_kv = Decision(_least_kv, observes=True, index="least_kv")
