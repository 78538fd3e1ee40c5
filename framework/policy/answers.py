"""What a policy answers, checked and turned into numbers: the same for every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from framework.codes import MIGRATE, MODES, REASON_POLICY, REASONS, ROLES, SET_ROLE, SET_TOKEN_BUDGET
from framework.errors import PolicyError
from framework.policy.actions import Action, Migrate, Plan, SetRole, SetTokenBudget
from framework.policy.base import Policy
from framework.policy.hooks import MOST_ACTIONS, MOST_TOKENS, REFUSED, Hook, encode_plan
from framework.policy.view import Cluster, Request
from framework.system.cluster import PLANS

_ANY_PLAN = Plan(1, "mixed")
_WHOLE = 100  # percent
_MOST_PLANS = 256  # that are remembered
_PLANS = f"one of {', '.join(PLANS)}, 1 <= prefill_percent <= 99"


class ActionRow(NamedTuple):
    """An action of a tick as a record of an engine has it; a field that the action does not have is 0."""

    kind: int
    request: int
    instance: int
    value: int = 0
    role: int = 0
    mode: int = 0
    percent: int = 0


class Answers:
    """Asks the hooks of one policy that are plain Python, and refuses what cannot be used with a PolicyError.

    `reasons`: why requests were turned away, in the order of first use. `actions`: those of the last tick.
    """

    def __init__(self, policy: Policy, cluster: Cluster) -> None:
        self.reasons = list(REASONS)
        self.actions: list[ActionRow] = []
        self._plans: dict[int, tuple[Any, int]] = {}  # those that have been looked at, with their numbers
        self._policy = policy
        self._cluster = cluster

    def asker(self, hook: Hook) -> Callable[[int], Any]:
        """A function of a request, an instance or a tick that asks the hook; its answer is an int, or a float key."""
        kinds: dict[str, Callable[[str, Any, int], Any]] = {
            "verdict": self._verdict,
            "instance": self._instance,
            "instance or refusal": self._instance_or_refusal,
            "instance or none": self._instance,
            "key": self._key,
            "plan": self._plan,
            "actions": self._actions,
            "tokens": self._tokens,
        }
        check, name, cluster = kinds[hook.answer], hook.name, self._cluster
        own = getattr(self._policy, name)
        if hook.argument == "tick":
            return lambda tick: check(name, own(cluster), tick)
        if hook.argument == "instance":
            return lambda i: check(name, own(i, cluster), i)
        if hook.answer == "key":  # asked for several requests at once, as its signature has it
            return lambda r: check(name, own(np.asarray([r]), cluster), r)
        return lambda r: check(name, own(Request(r, cluster.requests), cluster), r)

    def error(self, hook: str, text: str) -> PolicyError:
        """A PolicyError that names the policy and the hook."""
        return PolicyError(f"policy {self._policy.name}: {hook} returned {text}")

    def _verdict(self, hook: str, answer: Any, r: int) -> int:
        if isinstance(answer, str) and answer:
            return self._reason(answer)
        if not isinstance(answer, (bool, np.bool_)):
            raise self.error(hook, f"{answer!r}; return True, False or a reason")
        return 0 if answer else REASON_POLICY

    def _reason(self, reason: str) -> int:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    def _instance(self, hook: str, answer: Any, r: int) -> int:
        if isinstance(answer, tuple):
            return self._rank(hook, answer)
        return self._whole(hook, answer, "the number of an instance")

    def _rank(self, hook: str, answer: tuple[Any, ...]) -> int:
        """The instance that is (group, rank)."""
        groups = self._cluster.groups
        if len(answer) != 2:
            raise self.error(hook, f"{answer!r}; return the number of an instance, or (group, rank)")
        group, rank = (self._whole(hook, number, "(group, rank), two numbers") for number in answer)
        if not (0 <= group < len(groups) and 0 <= rank < len(groups[group])):
            raise self.error(
                hook,
                f"{answer!r}, (group, rank); there are groups 0 to {len(groups) - 1} of the ranks"
                " that `cluster.groups` tells",
            )
        return groups[group][rank]

    def _instance_or_refusal(self, hook: str, answer: Any, r: int) -> int:
        if isinstance(answer, str) and answer:
            return REFUSED - self._reason(answer)
        return self._instance(hook, answer, r)

    def _tokens(self, hook: str, answer: Any, r: int) -> int:
        tokens = self._whole(hook, answer, "a number of tokens")
        if not 0 <= tokens < MOST_TOKENS:
            raise self.error(hook, f"{tokens} for request {r}; return 0 or more")
        return tokens

    def _whole(self, hook: str, answer: Any, wanted: str) -> int:
        try:
            return answer.__index__()
        except AttributeError:
            raise self.error(hook, f"{answer!r}; return {wanted}") from None

    def _key(self, hook: str, keys: Any, r: int) -> float:
        try:
            return float(np.asarray(keys, np.float64).reshape(1)[0])
        except (TypeError, ValueError):
            raise self.error(hook, f"{keys!r} for request {r}; return a number for each") from None

    def _plan(self, hook: str, plan: Any, i: int) -> int:
        known, number = self._plans.get(id(plan), (None, 0))
        if known is None:
            number = self._new_plan(hook, plan, i)
            if len(self._plans) == _MOST_PLANS:
                self._plans.clear()
            self._plans[id(plan)] = plan, number  # a plan never changes; kept, so that no other has its id
        return number

    def _new_plan(self, hook: str, plan: Any, i: int) -> int:
        if not _is_plan(plan):
            wanted = f"Plan(token_budget >= 1, {_PLANS})"
            raise self.error(hook, f"{plan!r} for instance {i}; return {wanted}")
        self._require_sharing(hook, plan)
        return encode_plan(int(plan.prefill_percent or 0), int(plan.token_budget), MODES[plan.batching])

    def _require_sharing(self, hook: str, plan: Plan) -> None:
        if plan.batching == "concurrent" and not self._policy.shares_gpus:
            raise self.error(hook, f"{plan!r}; such a policy says shares_gpus = True")

    def _actions(self, hook: str, actions: Any, tick: int) -> int:
        """Their number; the actions themselves are in `actions`."""
        if not isinstance(actions, Iterable):
            raise self.error(hook, f"{actions!r}; return a list of actions, () for none")
        self.actions = []
        for action in actions:
            if len(self.actions) == MOST_ACTIONS:
                raise self.error(hook, f"more than {MOST_ACTIONS} actions")
            self.actions.append(self._action(hook, action))
        return len(self.actions)

    def _action(self, hook: str, action: Action) -> ActionRow:
        if isinstance(action, Migrate) and 0 <= action.request < len(self._cluster.requests.input_tokens):
            return ActionRow(MIGRATE, action.request, action.instance)
        if isinstance(action, SetTokenBudget) and action.tokens >= 1:
            return ActionRow(SET_TOKEN_BUDGET, -1, action.instance, action.tokens)
        if isinstance(action, SetRole) and action.role in ROLES and _is_plan(action.plan or _ANY_PLAN):
            return self._role(hook, action)
        raise self.error(hook, f"{action!r}, no usable action: {self._unusable(action)}")

    def _unusable(self, action: Any) -> str:
        """Why an action cannot be carried out."""
        if isinstance(action, Migrate):
            return f"there is no request {action.request}, they are 0 to {len(self._cluster.requests.input_tokens) - 1}"
        if isinstance(action, SetTokenBudget):
            return f"a token budget is at least 1, got {action.tokens!r}"
        if isinstance(action, SetRole):
            wrong = f"there is no role {action.role!r}" if action.role not in ROLES else f"{action.plan!r} is no plan"
            return f"{wrong}; roles are {', '.join(ROLES)}, plans are Plan(token_budget >= 1, {_PLANS})"
        return f"it is a {type(action).__name__}; actions are Migrate, SetTokenBudget and SetRole"

    def _role(self, hook: str, action: SetRole) -> ActionRow:
        if not self._policy.changes_roles:
            raise self.error(hook, f"{action!r}; such a policy says changes_roles = True")
        if any(action.instance in group for group in self._cluster.groups if len(group) > 1):
            raise self.error(
                hook,
                f"{action!r}; instance {action.instance} is a rank that steps together with others and keeps its role",
            )
        row = ActionRow(SET_ROLE, -1, action.instance, role=ROLES[action.role])
        if action.plan is None:
            return row
        self._require_sharing(hook, action.plan)
        percent, mode = action.plan.prefill_percent or 0, MODES[action.plan.batching]
        return row._replace(value=action.plan.token_budget, mode=mode, percent=percent)


def _is_plan(plan: Any) -> bool:
    if not isinstance(plan, Plan) or plan.batching not in PLANS or not 1 <= plan.token_budget < MOST_TOKENS:
        return False
    return plan.prefill_percent is None or 1 <= plan.prefill_percent < _WHOLE
