"""Answers of a policy, checked and turned into numbers, in the same way for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from framework.codes import MIXED, MODES, REASON_POLICY, REASONS
from framework.compiler.decorators import compiled
from framework.errors import PolicyError, shown
from framework.policy.action_rows import PLAN, ActionRow, ActionRows, is_plan, number_of, returned, there_are
from framework.policy.base import Policy
from framework.policy.hooks import AS_SET, MOST_ACTIONS, MOST_TOKENS, NO_INSTANCE, REFUSED, Hook, encode_plan
from framework.policy.retention import Retention, retention_of
from framework.policy.spans import SpanRow, span_row
from framework.policy.values import as_floats, index
from framework.policy.view import Cluster, Floats, Integers, Request
from framework.system.faults import RECOVERIES

_MOST_PLANS = 256  # the most plans that are remembered
_UNUSABLE_KEYS = (
    None,
    ("NaN", "keys must be numbers"),
    ("-inf", "that is the key of preempted requests, which come first"),
)


@compiled
def unusable_key(keys: Floats) -> int:
    """Why one of these keys cannot be used: 1, if it is NaN, or 2, if it is -inf; 0 if all can."""
    found = 0
    for key in keys:
        if np.isnan(key):
            return 1
        if key == -np.inf:
            found = 2
    return found


class Answers:
    """Asks the Python hooks of one policy, and refuses invalid answers with a PolicyError.

    `fronts`: the cluster as some hooks see it, if that is not `cluster`.
    `reasons`: those of rejections and cancellations, in the order of first use. `actions`: those of the last
    answer with actions.
    """

    def __init__(self, policy: Policy, cluster: Cluster, fronts: Mapping[str, Cluster] | None = None) -> None:
        self.reasons = list(REASONS)
        self.actions: list[ActionRow] = []
        self._plans: dict[int, tuple[Any, int]] = {}  # plans seen so far, with their numbers
        self._policy = policy
        self._cluster = cluster
        self._fronts = fronts or {}
        self._instances = len(cluster.instances)
        self._rows = ActionRows(policy, cluster, self.reasons)

    def asker(self, hook: Hook) -> Callable[[Any], Any]:
        """A function of a request, an instance or a tick that asks the hook and answers with an int; for the ids of a
        queue, with their keys.
        """
        kinds: dict[str, Callable[[str, Any, Any], Any]] = {
            "verdict": self._verdict,
            "instance": self._instance,
            "instance or refusal": self._instance_or_refusal,
            "instance or none": self._instance_or_none,
            "keys": self._keys,
            "plan": self._plan,
            "actions": self._actions,
            "tokens": self._tokens,
            "candidate": self._candidate,
            "skips": self._skips,
            "retention": self._retention,
            "span": self._span,
            "choice": self._choice,
            "recovery": self._recovery,
        }
        check, name = kinds[hook.answer], hook.name
        cluster = self._fronts.get(name, self._cluster)
        own = getattr(self._policy, name)
        if hook.argument == "tick":
            return lambda tick: check(name, own(cluster), tick)
        if hook.answer == "skips":
            return lambda i: check(name, own(i, cluster.decoding(i), cluster), i)
        if hook.answer == "candidate":
            return lambda i: check(name, own(i, self._running(i), cluster), i)
        if hook.argument in ("instance", "queue"):
            return lambda asked: check(name, own(asked, cluster), asked)
        return lambda r: check(name, own(Request(r, cluster.requests), cluster), r)

    def error(self, hook: str, text: str) -> PolicyError:
        """A PolicyError that names the policy and the hook."""
        return returned(self._policy, hook, text)

    def _verdict(self, hook: str, answer: Any, r: int) -> int:
        if isinstance(answer, str) and answer:
            return self.number_of(answer)
        if not isinstance(answer, (bool, np.bool_)):
            raise self.error(hook, f"{shown(answer)}; return True, False or a reason")
        return 0 if answer else REASON_POLICY

    def _choice(self, hook: str, answer: Any, i: int) -> int:
        if not isinstance(answer, (bool, np.bool_)):
            raise self.error(hook, f"{shown(answer)} for instance {i}; return True or False")
        return int(answer)

    def number_of(self, reason: str) -> int:
        """The number of a reason, which is noted if it is new."""
        return number_of(self.reasons, reason)

    def _instance(self, hook: str, answer: Any, r: int) -> int:
        if isinstance(answer, tuple):
            return self._rank(hook, answer)
        i = self._whole(hook, answer, "the number of an instance")
        if not 0 <= i < self._instances:
            raise self.error(hook, f"instance {shown(i)} for request {r}; {there_are(self._instances)}")
        return i

    def _instance_or_none(self, hook: str, answer: Any, r: int) -> int:
        return NO_INSTANCE if index(answer) == NO_INSTANCE else self._instance(hook, answer, r)

    def _rank(self, hook: str, answer: tuple[Any, ...]) -> int:
        """The number of the instance that is (group, rank)."""
        groups = self._cluster.groups
        if len(answer) != 2:
            raise self.error(hook, f"{shown(answer)}; return the number of an instance, or (group, rank)")
        group, rank = (self._whole(hook, number, "(group, rank), two numbers") for number in answer)
        if not (0 <= group < len(groups) and 0 <= rank < len(groups[group])):
            raise self.error(
                hook,
                f"{shown(answer)}, (group, rank); there are groups 0 to {len(groups) - 1} of the ranks"
                " that `cluster.groups` tells",
            )
        return groups[group][rank]

    def _instance_or_refusal(self, hook: str, answer: Any, r: int) -> int:
        if isinstance(answer, str) and answer:
            return REFUSED - self.number_of(answer)
        return self._instance(hook, answer, r)

    def _retention(self, hook: str, answer: Any, r: int) -> Retention:
        return retention_of(
            answer, self._instances, lambda wrong: self.error(hook, f"{shown(answer)} for request {r}; {wrong}")
        )

    def _span(self, hook: str, answer: Any, r: int) -> SpanRow | None:
        about = Request(r, self._cluster.requests)
        return span_row(
            answer,
            about.input_tokens + about.generated,
            self._cluster.block_tokens,
            lambda i: 0 <= i < self._instances and self._cluster.instances.role[i] == MIXED,
            lambda wrong: self.error(hook, f"{shown(answer)} for request {r}; {wrong}"),
        )

    def _recovery(self, hook: str, answer: Any, r: int) -> int:
        if answer is None:
            return AS_SET
        if not isinstance(answer, str) or answer not in RECOVERIES:
            choices = ", ".join(map(repr, RECOVERIES))
            raise self.error(hook, f"{shown(answer)} for request {r}; return one of {choices}, or None")
        return RECOVERIES.index(answer)

    def _tokens(self, hook: str, answer: Any, r: int) -> int:
        tokens = self._whole(hook, answer, "a number of tokens")
        if not 0 <= tokens < MOST_TOKENS:
            raise self.error(hook, f"{shown(tokens)} for request {r}; return 0 or more, less than {MOST_TOKENS:,}")
        return tokens

    def _whole(self, hook: str, answer: Any, wanted: str) -> int:
        number = index(answer)
        if number is None:
            raise self.error(hook, f"{shown(answer)}; return {wanted}")
        return number

    def _running(self, i: int) -> Integers:
        """The requests that decode or prefill on an instance."""
        return np.concatenate((self._cluster.decoding(i), self._cluster.prefilling(i)))

    def _candidate(self, hook: str, answer: Any, i: int) -> int:
        r, candidates = self._whole(hook, answer, "the number of a request"), self._running(i)
        if r not in candidates:
            there = ", ".join(map(str, candidates.tolist()))
            raise self.error(hook, f"request {shown(r)} for instance {i}; return one of the candidates: {there}")
        return r

    def _skips(self, hook: str, answer: Any, i: int) -> int:
        """The number of requests to leave out; `actions` holds them."""
        if not isinstance(answer, Iterable):
            raise self.error(hook, f"{shown(answer)} for instance {i}; return a list of requests, () for none")
        decoding = set(self._cluster.decoding(i).tolist())
        skips = {self._whole(hook, r, "a list of requests, () for none") for r in answer}
        if not skips < decoding:
            there = ", ".join(map(str, sorted(decoding)))
            raise self.error(hook, f"{sorted(skips)} for instance {i}; return some, not all, of {there}")
        self.actions = [ActionRow(0, r, i) for r in sorted(skips)]
        return len(skips)

    def _keys(self, hook: str, keys: Any, queue: Integers) -> Floats:
        """The keys: one for each request of the queue, or one for all."""
        numbers = as_floats(keys)
        if numbers is not None and numbers.shape in ((), queue.shape):
            wrong = _UNUSABLE_KEYS[unusable_key(numbers.reshape(-1))]
            if not wrong:
                return numbers
        else:
            wrong = " ".join(shown(keys).split()), "return a number for each"
        about = f"request {queue[0]}" if len(queue) == 1 else f"a queue of {len(queue)}"
        raise self.error(hook, f"{wrong[0]} for {about}; {wrong[1]}")

    def _plan(self, hook: str, plan: Any, i: int) -> int:
        known, number = self._plans.get(id(plan), (None, 0))
        if known is None:
            number = self._new_plan(hook, plan, i)
            if len(self._plans) == _MOST_PLANS:
                self._plans.clear()
            self._plans[id(plan)] = plan, number  # a plan never changes; kept, so that no other plan gets its id
        return number

    def _new_plan(self, hook: str, plan: Any, i: int) -> int:
        if not is_plan(plan):
            raise self.error(hook, f"{shown(plan)} for instance {i}; return {PLAN}")
        self._rows.require_sharing(hook, plan)
        return encode_plan(int(plan.prefill_percent or 0), int(plan.token_budget), MODES[plan.batching])

    def _actions(self, hook: str, actions: Any, tick: int) -> int:
        """The number of actions; `actions` holds them."""
        if not isinstance(actions, Iterable):
            raise self.error(hook, f"{shown(actions)}; return a list of actions, () for none")
        self.actions = []
        for action in actions:
            if len(self.actions) == MOST_ACTIONS:
                raise self.error(hook, f"more than {MOST_ACTIONS} actions")
            self.actions.append(self._rows.row_of(hook, action))
        return len(self.actions)
