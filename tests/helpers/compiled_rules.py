"""Compiled rules for random policies, and the same rules for the reference engine, written a second time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from framework.codes import DECODE, PREFILL
from framework.policy.decision import Decision, decision, decode_round_robin, prefill_round_robin
from framework.reference.simulation import Simulation

Columns = Mapping[str, Sequence[float]]  # of instances, by name
_REFUSED_EACH = 6
_CROWDED_TOKENS = 48


@decision(observes=True)
def _emptiest_prefill(request: int, view: Any, params: Any, state: Any) -> int:
    """Where the fewest blocks are in use; every third request instead where the most can be had."""
    state[4] += 1
    best, best_blocks = -1, 0
    for i in range(len(view.instances)):
        inst = view.instances[i]
        blocks = inst.total_blocks - inst.free_blocks - inst.evictable_blocks
        if state[4] % 3 == 0.0:
            blocks = -inst.free_blocks
        if inst.role & PREFILL and (best < 0 or blocks < best_blocks):
            best, best_blocks = i, blocks
    return best


@decision(observes=True)
def _emptiest_decode(request: int, view: Any, params: Any, state: Any) -> int:
    """Where decodes and what is on its way hold the fewest tokens for each running request."""
    best, best_tokens = -1, 0.0
    for i in range(len(view.instances)):
        inst = view.instances[i]
        tokens = (inst.kv_tokens + inst.incoming_kv_tokens) / (1 + inst.running)
        if inst.role & DECODE and (best < 0 or tokens < best_tokens):
            best, best_tokens = i, tokens
    return best


@decision(observes=False)
def _admit(request: int, view: Any, params: Any, state: Any) -> int:
    """Refuse every so many requests that come while all instances have a long queue."""
    for i in range(len(view.instances)):
        if view.instances[i].queued_tokens < params[0]:
            return 0
    state[5] += 1
    return 1 if state[5] % params[1] == 0.0 else 0


class Routes(NamedTuple):
    """One rule as hooks: where to prefill, and where to decode."""

    prefill: Decision
    decode: Decision


COMPILED_ROUTES: Mapping[str, Routes] = {
    "compiled_turns": Routes(prefill_round_robin, decode_round_robin),
    "compiled_blocks": Routes(_emptiest_prefill, _emptiest_decode),
}
COMPILED_ADMIT = _admit
COMPILED_PARAMS = (float(_CROWDED_TOKENS), float(_REFUSED_EACH))


class InterpretedRules:
    """The same for the reference engine. Keeps what the rules keep in `state`."""

    def __init__(self) -> None:
        self._turns = {"prefill": 0, "decode": 0}
        self._prefills = self._crowded = 0

    def route(self, s: Simulation, columns: Columns, rule: str, phase: str) -> int:
        """Where the rule of that name sends a request to `prefill` or `decode`, by these columns of instances."""
        able = [i.id for i in s.instances if i.role & {"prefill": PREFILL, "decode": DECODE}[phase]]
        if rule == "compiled_turns":
            start = self._turns[phase] % len(s.instances)
            chosen = min(able, key=lambda i: (i - start) % len(s.instances))
            self._turns[phase] = chosen + 1
            return chosen
        if phase == "decode":
            return min(able, key=lambda i: (_tokens_each(columns, i), i))
        self._prefills += 1
        measure = _blocks_in_use if self._prefills % 3 else _blocks_not_free
        return min(able, key=lambda i: (measure(columns, i), i))

    def admits(self, queued_tokens: list[int]) -> bool:
        """Whether a request that arrives now is served."""
        if min(queued_tokens) < _CROWDED_TOKENS:
            return True
        self._crowded += 1
        return self._crowded % _REFUSED_EACH != 0


def _blocks_in_use(columns: Columns, i: int) -> float:
    return columns["total_blocks"][i] - columns["free_blocks"][i] - columns["evictable_blocks"][i]


def _blocks_not_free(columns: Columns, i: int) -> float:
    return -columns["free_blocks"][i]


def _tokens_each(columns: Columns, i: int) -> float:
    return (columns["kv_tokens"][i] + columns["incoming_kv_tokens"][i]) / (1 + columns["running"][i])
