"""Answers of a policy, checked and turned into numbers, in the same way for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, get_args

import numpy as np

from framework.codes import (
    CANCEL,
    KEPT,
    MIGRATE,
    MODES,
    PREEMPT,
    REASON_POLICY,
    REASONS,
    REQUEUE,
    RESUME,
    ROLES,
    SCALE,
    SET_MAX_BATCH,
    SET_ROLE,
    SET_TOKEN_BUDGET,
)
from framework.errors import PolicyError, shown
from framework.policy.actions import (
    Action,
    Cancel,
    Migrate,
    Plan,
    Preempt,
    Requeue,
    Resume,
    Scale,
    SetMaxBatch,
    SetRole,
    SetTokenBudget,
)
from framework.policy.base import Policy
from framework.policy.hooks import FRONT_END, MOST_ACTIONS, MOST_TOKENS, NO_INSTANCE, REFUSED, Hook, encode_plan
from framework.policy.retention import retention_of
from framework.policy.values import as_floats, index, is_whole
from framework.policy.view import Cluster, Floats, Integers, Request
from framework.system.cluster import PLANS

_WHOLE = 100  # percent
_MOST_PLANS = 256  # the most plans that are remembered
_PLANS = f"one of {', '.join(PLANS)}, 1 <= prefill_percent <= 99"


class ActionRow(NamedTuple):
    """An action as an engine's record; fields that the action lacks are 0."""

    kind: int
    request: int
    instance: int
    value: int = 0
    role: int = 0
    mode: int = 0
    percent: int = 0


class Answers:
    """Asks the Python hooks of one policy, and refuses invalid answers with a PolicyError.

    `front`: the cluster as its front end sees it, if that is not `cluster`.
    `reasons`: those of rejections and cancellations, in the order of first use. `actions`: those of the last
    answer with actions.
    """

    def __init__(self, policy: Policy, cluster: Cluster, front: Cluster | None = None) -> None:
        self.reasons = list(REASONS)
        self.actions: list[ActionRow] = []
        self._plans: dict[int, tuple[Any, int]] = {}  # plans seen so far, with their numbers
        self._policy = policy
        self._cluster = cluster
        self._front = cluster if front is None else front
        self._instances = len(cluster.instances)
        self._pools = {pool.name: pool for pool in cluster.spec.pools}
        self._seats = cluster.instances.max_batch.tolist()  # most seats of each instance

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
        }
        check, name = kinds[hook.answer], hook.name
        cluster = self._front if name in FRONT_END else self._cluster
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
        return PolicyError(f"policy {self._policy.name}: {hook} returned {text}")

    def _verdict(self, hook: str, answer: Any, r: int) -> int:
        if isinstance(answer, str) and answer:
            return self.number_of(answer)
        if not isinstance(answer, (bool, np.bool_)):
            raise self.error(hook, f"{shown(answer)}; return True, False or a reason")
        return 0 if answer else REASON_POLICY

    def number_of(self, reason: str) -> int:
        """The number of a reason, which is noted if it is new."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    def _instance(self, hook: str, answer: Any, r: int) -> int:
        if isinstance(answer, tuple):
            return self._rank(hook, answer)
        i = self._whole(hook, answer, "the number of an instance")
        if not 0 <= i < self._instances:
            raise self.error(hook, f"instance {shown(i)} for request {r}; {self._there_are}")
        return i

    @property
    def _there_are(self) -> str:
        return f"the cluster has instances 0 to {self._instances - 1}"

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

    def _retention(self, hook: str, answer: Any, r: int) -> tuple[float, int]:
        return retention_of(answer, lambda wrong: self.error(hook, f"{shown(answer)} for request {r}; {wrong}"))

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
        about = f"request {queue[0]}" if len(queue) == 1 else f"a queue of {len(queue)}"
        numbers = as_floats(keys)
        if numbers is None or numbers.shape not in ((), queue.shape):
            raise self.error(hook, f"{' '.join(shown(keys).split())} for {about}; return a number for each")
        if np.isnan(numbers).any():
            raise self.error(hook, f"NaN for {about}; keys must be numbers")
        if np.isneginf(numbers).any():
            raise self.error(hook, f"-inf for {about}; that is the key of preempted requests, which come first")
        return numbers

    def _plan(self, hook: str, plan: Any, i: int) -> int:
        known, number = self._plans.get(id(plan), (None, 0))
        if known is None:
            number = self._new_plan(hook, plan, i)
            if len(self._plans) == _MOST_PLANS:
                self._plans.clear()
            self._plans[id(plan)] = plan, number  # a plan never changes; kept, so that no other plan gets its id
        return number

    def _new_plan(self, hook: str, plan: Any, i: int) -> int:
        if not _is_plan(plan):
            wanted = f"Plan(token_budget >= 1, {_PLANS})"
            raise self.error(hook, f"{shown(plan)} for instance {i}; return {wanted}")
        self._require_sharing(hook, plan)
        return encode_plan(int(plan.prefill_percent or 0), int(plan.token_budget), MODES[plan.batching])

    def _require_sharing(self, hook: str, plan: Plan) -> None:
        if plan.batching == "concurrent" and not self._policy.shares_gpus:
            raise self.error(hook, f"{shown(plan)}; such a policy says shares_gpus = True")

    def _actions(self, hook: str, actions: Any, tick: int) -> int:
        """The number of actions; `actions` holds them."""
        if not isinstance(actions, Iterable):
            raise self.error(hook, f"{shown(actions)}; return a list of actions, () for none")
        self.actions = []
        for action in actions:
            if len(self.actions) == MOST_ACTIONS:
                raise self.error(hook, f"more than {MOST_ACTIONS} actions")
            self.actions.append(self._action(hook, action))
        return len(self.actions)

    def _action(self, hook: str, action: Action) -> ActionRow:
        wrong = self._unusable(action)
        if wrong:
            raise self.error(hook, f"{shown(action)}, no usable action: {wrong}")
        if isinstance(action, Migrate):
            return ActionRow(MIGRATE, action.request, action.instance)
        if isinstance(action, SetTokenBudget):
            return ActionRow(SET_TOKEN_BUDGET, -1, action.instance, int(action.tokens))
        if isinstance(action, Cancel):
            return ActionRow(CANCEL, action.request, -1, self.number_of(action.reason))
        if isinstance(action, Preempt):
            return ActionRow(PREEMPT, action.request, -1, KEPT[action.keep])
        if isinstance(action, Resume):
            return ActionRow(RESUME, action.request, -1)
        if isinstance(action, Requeue):
            return ActionRow(REQUEUE, action.request, action.instance, int(action.instance))
        if isinstance(action, SetMaxBatch):
            return ActionRow(SET_MAX_BATCH, -1, action.instance, int(action.requests))
        if not self._policy.changes_roles:
            raise self.error(hook, f"{shown(action)}; such a policy says changes_roles = True")
        if isinstance(action, Scale):
            return ActionRow(SCALE, -1, list(self._pools).index(action.pool), int(action.instances))
        return self._role(hook, action)

    def _unusable(self, action: Any) -> str:
        """Why an action cannot be carried out; "" if it can."""
        if not isinstance(action, Action):
            names = ", ".join(kind.__name__ for kind in get_args(Action))
            return f"it is a {type(action).__name__}; actions are {names}"
        if isinstance(action, (Migrate, Preempt, Resume, Cancel, Requeue)):
            request, requests = index(action.request), len(self._cluster.requests.input_tokens)
            if request is None or not 0 <= request < requests:
                return f"there is no request {shown(action.request)}, they are 0 to {requests - 1}"
        if isinstance(action, (Migrate, Requeue, SetTokenBudget, SetMaxBatch, SetRole)):
            instance = index(action.instance)
            if instance is None or not 0 <= instance < self._instances:
                return f"there is no instance {shown(action.instance)}; {self._there_are}"
        return self._unusable_rest(action)

    def _unusable_rest(self, action: Action) -> str:
        """What is wrong with the parts of an action other than its request and its instance."""
        if isinstance(action, (Migrate, Requeue, Resume)):
            return ""
        if isinstance(action, Preempt):
            is_kept = isinstance(action.keep, str) and action.keep in KEPT
            return "" if is_kept else f"keep is one of {', '.join(KEPT)}, got {shown(action.keep)}"
        if isinstance(action, SetMaxBatch):
            most = self._seats[action.instance]
            is_size = is_whole(action.requests, most + 1)
            return "" if is_size else f"instance {action.instance} has 1 to {most} seats, got {shown(action.requests)}"
        if isinstance(action, Cancel):
            is_reason = isinstance(action.reason, str) and action.reason
            return "" if is_reason else f"a reason is a text, got {shown(action.reason)}"
        if isinstance(action, SetTokenBudget):
            is_budget = is_whole(action.tokens, MOST_TOKENS)
            return "" if is_budget else f"a token budget is a whole number from 1, got {shown(action.tokens)}"
        if isinstance(action, Scale):
            return self._unusable_scale(action)
        if not isinstance(action.role, str) or action.role not in ROLES:
            return f"there is no role {shown(action.role)}; roles are {', '.join(ROLES)}"
        is_plan = action.plan is None or _is_plan(action.plan)
        return "" if is_plan else f"{shown(action.plan)} is no plan; plans are Plan(token_budget >= 1, {_PLANS})"

    def _unusable_scale(self, action: Scale) -> str:
        pool = self._pools.get(action.pool) if isinstance(action.pool, str) else None
        if pool is None or pool.role == "off":
            scaled = ", ".join(name for name, one in self._pools.items() if one.role != "off")
            return f"pools to scale are {scaled}, not {shown(action.pool)}"
        if pool.group > 1:
            return f"instances of {pool.name} are ranks that step together, and stay on"
        is_count = index(action.instances) == 0 or is_whole(action.instances, pool.instances + 1)
        return (
            "" if is_count else f"pool {pool.name} has 0 to {pool.instances} instances, got {shown(action.instances)}"
        )

    def _role(self, hook: str, action: SetRole) -> ActionRow:
        if any(action.instance in group for group in self._cluster.groups if len(group) > 1):
            raise self.error(
                hook,
                f"{shown(action)}; instance {action.instance} is a rank that steps together with others"
                " and keeps its role",
            )
        row = ActionRow(SET_ROLE, -1, action.instance, role=ROLES[action.role])
        if action.plan is None:
            return row
        self._require_sharing(hook, action.plan)
        percent, mode = int(action.plan.prefill_percent or 0), MODES[action.plan.batching]
        return row._replace(value=int(action.plan.token_budget), mode=mode, percent=percent)


def _is_plan(plan: Any) -> bool:
    if not isinstance(plan, Plan) or not isinstance(plan.batching, str) or plan.batching not in PLANS:
        return False
    has_percent = plan.prefill_percent is None or is_whole(plan.prefill_percent, _WHOLE)
    return has_percent and is_whole(plan.token_budget, MOST_TOKENS)
