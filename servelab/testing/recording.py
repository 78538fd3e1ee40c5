"""A record of a policy's decisions in a run, and comparisons of two runs."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from framework.codes import MODES
from framework.compiler.decorators import compiled
from framework.engine.memory.attach import DECISION
from framework.engine.parallel.sm_sharing import Sharing
from framework.policy import Decision, Plan, Policy
from framework.policy.hooks import HOOK_NAMES, decode_plan
from framework.policy.predictor import Predictor
from framework.policy.view import Cluster, Request
from framework.replay.lookups import InterpretedEngine
from framework.result import Result
from framework.workload import Workload


class LearnedMean(Predictor):
    """Expects every request to be as long as the mean of the finished ones: it uses nothing that it may not know."""

    def __init__(self) -> None:
        self.finished = self.tokens = 0

    def prepare(self, workload: Workload, seed: int) -> None:
        self.finished = self.tokens = 0

    def predict(self, requests: Any, generated: Any) -> tuple[Any, Any]:
        mean = self.tokens / self.finished if self.finished else 64.0
        return np.maximum(mean - generated, 1.0), np.full(len(requests), mean)

    def observe(self, request: int, output_tokens: int) -> None:
        self.finished += 1
        self.tokens += output_tokens


Rule = Callable[..., int]  # a compiled rule
_NAMED = 8  # requests, at most
_MODE_NAMES: dict[int, Any] = {mode: name for name, mode in MODES.items()}


@dataclass(frozen=True)
class Answer:
    """One decision: the hook, the request, instance or tick, the time, and the answer."""

    hook: str
    subject: tuple[int, ...]
    now_s: float
    value: str


class SeenError(Exception):
    """The record is complete."""


@dataclass
class Record:
    """Puts a recorder in front of each hook that a policy defines; compiled rules are called in the given form.

    A question at `until_s` or later raises `SeenError`."""

    form: Callable[[Rule], Rule]
    answers: list[Answer] = field(default_factory=list)
    look: Callable[[str, Cluster], None] = lambda hook, cluster: None  # called before each question
    until_s: float = math.inf

    def attach(self, policy: Policy) -> Policy:
        own_state = np.zeros(16)
        for hook in HOOK_NAMES:
            rule = getattr(policy, hook)
            defined = hook in vars(policy) or getattr(type(policy), hook) is not getattr(Policy, hook)
            if isinstance(rule, Decision):
                rule = _called_from_python(self.form(rule.function), hook, policy, own_state)
            if defined or hook == "route_prefill":  # other hooks are not asked unless they are defined
                setattr(policy, hook, self._recorded(hook, rule))
        return policy

    def _recorded(self, hook: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*arguments: Any) -> Any:
            cluster = arguments[-1]
            if cluster.now_s >= self.until_s:
                raise SeenError
            self.look(hook, cluster)
            before = _seen(cluster)
            answer = rule(*arguments)
            if hook in ("on_tick", "decide"):
                answer = list(answer)
            assert _seen(cluster) == before, f"{hook} changed what it was shown; .copy() a column to change it"
            self.answers.append(Answer(hook, _subject(arguments), cluster.now_s, _written(answer)))
            return answer

        return recorded


@dataclass
class Shown:
    """What a policy's views show of instances in `outages`, each (instance, from_s, to_s)."""

    outages: Sequence[tuple[int, float, float]]
    _found: list[tuple[int, float, str]] = field(default_factory=list)  # instance, time, what should be nothing

    def note(self, hook: str, cluster: Cluster) -> None:
        """Note what is shown now."""
        down = [i for i, from_s, to_s in self.outages if from_s < cluster.now_s < to_s]
        if not down:
            return
        every, requests = cluster.instances, cluster.requests
        goals = requests.destination[requests.destination >= 0]
        able = {"in cluster.prefill": cluster.prefill.ids, "in cluster.decode": cluster.decode.ids}
        columns = {
            **{name: getattr(every, name) for name in _COLUMNS_OF_WORK},
            **{
                name: np.bincount(ids, minlength=len(every))
                for name, ids in {**able, "as a destination": goals}.items()
            },
            "blocks in use": every.total_blocks - every.free_blocks,
        }
        for i in down:
            shown = {name: int(column[i]) for name, column in columns.items()}
            shown["in queued(i)"] = len(cluster.queued(i))
            shown["in prefilling(i)"] = len(cluster.prefilling(i))
            shown["in decoding(i)"] = len(cluster.decoding(i))
            self._found += [
                (i, cluster.now_s, f"{name} {value} of instance {i}, asked {hook} at {cluster.now_s:g} s")
                for name, value in shown.items()
                if value != 0
            ]

    def at(self, instance: int, from_s: float, to_s: float) -> list[str]:
        """What was shown of an instance between these times that should be nothing."""
        return [text for i, now_s, text in self._found if i == instance and from_s < now_s < to_s]


_COLUMNS_OF_WORK = (
    *("role", "draining_role", "queued", "queued_tokens", "running", "prefilling", "kv_tokens", "incoming"),
    *("incoming_kv_tokens", "swapped", "evictable_blocks"),
)


def _seen(cluster: Cluster) -> list[bytes]:
    """All that a policy is shown, as it is now."""
    return [array.tobytes() for array in cluster.view[:4]]


def _written(answer: Any) -> str:
    return repr(answer.tolist() if isinstance(answer, np.ndarray) else answer)


def _subject(arguments: tuple[Any, ...]) -> tuple[int, ...]:
    if len(arguments) == 1:
        return ()
    first = arguments[0]
    return (first.id,) if isinstance(first, Request) else tuple(int(entry) for entry in np.atleast_1d(first))


def in_plain_python(rule: Rule) -> Rule:
    """The rule in plain Python; there an index beyond the end is an error."""
    return rule


@functools.cache
def in_machine_code(rule: Rule) -> Rule:
    """The rule as the engine calls it."""
    return compiled(DECISION)(rule)


def _called_from_python(
    rule: Rule, hook: str, policy: Policy, own_state: np.ndarray[Any, Any]
) -> Callable[[Any, Cluster], Any]:
    """A compiled rule as a method."""

    def call(subject: Any, cluster: Cluster) -> Any:
        params, view = np.asarray(policy.compiled_params, np.float64), cluster.view
        if not hasattr(rule, "py_func"):
            view = view._replace(engine=InterpretedEngine(cluster._engine, Sharing().slowdowns()))
        answer = int(rule(subject.id if isinstance(subject, Request) else subject, view, params, own_state))
        if hook == "batching":
            percent, token_budget, mode = decode_plan(answer)
            return Plan(token_budget, _MODE_NAMES[mode], percent or None)
        return answer == 0 if hook == "admit" else answer

    return call


def digest(result: Result) -> str:
    """A hash over the whole result of a run."""
    parts = [result.requests, result.instances, result.step_log, result.token_log]
    whole = hashlib.sha256(repr((result.reasons, result.events, result.steps)).encode())
    for part in parts:
        for name in part.dtype.names or ():
            whole.update(np.ascontiguousarray(part[name]).tobytes())
    return whole.hexdigest()


def first_difference(one: Result, other: Result) -> str | None:
    """The first difference between two runs, None if they are equal."""
    if digest(one) == digest(other):
        return None
    for name in one.requests.dtype.names or ():
        first, second = one.requests[name], other.requests[name]
        differ = np.flatnonzero((first != second) & ~((first != first) & (second != second)))
        if len(differ):
            r = int(differ[0])
            return f"request {r} has {name} {first[r]} and {second[r]} ({len(differ)} requests differ)"
    return "its steps or its instances differ"


def first_change(expected: list[Answer], found: list[Answer]) -> str:
    """The first decision that changed when the lengths of unfinished requests changed."""
    for one, other in zip(expected, found, strict=False):
        if one != other:
            return f"a decision changed with lengths that nobody can know yet: {one} became {other}"
    return f"{len(expected)} decisions became {len(found)} with lengths that nobody can know yet"


def named(ids: np.ndarray[Any, Any]) -> str:
    """Some requests by their numbers."""
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return f"requests {', '.join(str(r) for r in ids[:_NAMED])}{more}"
