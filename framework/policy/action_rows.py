"""Actions of a policy, checked and turned into an engine's records."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

from framework.codes import (
    CANCEL,
    KEPT,
    MIGRATE,
    MODES,
    PREEMPT,
    REQUEUE,
    RESUME,
    ROLES,
    SCALE,
    SET_DRAFTS,
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
    SetDrafts,
    SetMaxBatch,
    SetRole,
    SetTokenBudget,
)
from framework.policy.base import Policy
from framework.policy.hooks import MOST_TOKENS
from framework.policy.values import index, is_whole
from framework.policy.view import Cluster
from framework.system.cluster import PLANS

_WHOLE = 100  # percent
PLAN = f"Plan(token_budget >= 1, one of {', '.join(PLANS)}, 1 <= prefill_percent <= 99)"


class ActionRow(NamedTuple):
    """An action as an engine's record; fields that the action lacks are 0."""

    kind: int
    request: int
    instance: int
    value: int = 0
    role: int = 0
    mode: int = 0
    percent: int = 0


class ActionRows:
    """Makes the rows of one policy's actions; `reasons` gets those of cancellations."""

    def __init__(self, policy: Policy, cluster: Cluster, reasons: list[str]) -> None:
        self._policy, self._cluster, self._reasons = policy, cluster, reasons
        self._pools = {pool.name: pool for pool in cluster.spec.pools}
        self._seats = cluster.instances.max_batch.tolist()  # most seats of each instance
        self._drafts = int(cluster.instances.most_drafts.max())  # most tokens drafted for each decode

    def row_of(self, hook: str, action: Action) -> ActionRow:
        """The record of an action that a hook returned. Raises PolicyError if it could never be carried out."""
        wrong = self._unusable(action)
        if wrong:
            raise returned(self._policy, hook, f"{shown(action)}, no usable action: {wrong}")
        if isinstance(action, Migrate):
            return ActionRow(MIGRATE, action.request, action.instance)
        if isinstance(action, SetTokenBudget):
            return ActionRow(SET_TOKEN_BUDGET, -1, action.instance, int(action.tokens))
        if isinstance(action, Cancel):
            return ActionRow(CANCEL, action.request, -1, number_of(self._reasons, action.reason))
        if isinstance(action, Preempt):
            return ActionRow(PREEMPT, action.request, -1, KEPT[action.keep])
        if isinstance(action, Resume):
            return ActionRow(RESUME, action.request, -1)
        if isinstance(action, Requeue):
            return ActionRow(REQUEUE, action.request, action.instance, int(action.instance))
        if isinstance(action, SetMaxBatch):
            return ActionRow(SET_MAX_BATCH, -1, action.instance, int(action.requests))
        if isinstance(action, SetDrafts):
            return ActionRow(SET_DRAFTS, -1, action.instance, int(action.tokens))
        if not self._policy.changes_roles:
            raise returned(self._policy, hook, f"{shown(action)}; such a policy says changes_roles = True")
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
        if isinstance(action, (Migrate, Requeue, SetTokenBudget, SetMaxBatch, SetDrafts, SetRole)):
            instance = index(action.instance)
            if instance is None or not 0 <= instance < len(self._seats):
                return f"there is no instance {shown(action.instance)}; {there_are(len(self._seats))}"
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
        if isinstance(action, SetDrafts):
            is_count = action.tokens == 0 or is_whole(action.tokens, self._drafts + 1)
            return "" if is_count else f"the run drafts 0 to {self._drafts} tokens, got {shown(action.tokens)}"
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
        is_usable = action.plan is None or is_plan(action.plan)
        return "" if is_usable else f"{shown(action.plan)} is no plan; plans are {PLAN}"

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
            raise returned(
                self._policy,
                hook,
                f"{shown(action)}; instance {action.instance} is a rank that steps together with others"
                " and keeps its role",
            )
        row = ActionRow(SET_ROLE, -1, action.instance, role=ROLES[action.role])
        if action.plan is None:
            return row
        self.require_sharing(hook, action.plan)
        percent, mode = int(action.plan.prefill_percent or 0), MODES[action.plan.batching]
        return row._replace(value=int(action.plan.token_budget), mode=mode, percent=percent)

    def require_sharing(self, hook: str, plan: Plan) -> None:
        """Raise a PolicyError for a concurrent plan of a policy that does not share GPUs."""
        if plan.batching == "concurrent" and not self._policy.shares_gpus:
            raise returned(self._policy, hook, f"{shown(plan)}; such a policy says shares_gpus = True")


def returned(policy: Policy, hook: str, text: str) -> PolicyError:
    """A PolicyError that names the policy and the hook."""
    return PolicyError(f"policy {policy.name}: {hook} returned {text}")


def number_of(reasons: list[str], reason: str) -> int:
    """The number of a reason, which is noted if it is new."""
    if reason not in reasons:
        reasons.append(reason)
    return reasons.index(reason)


def there_are(instances: int) -> str:
    """Which instances there are, for an error."""
    return f"the cluster has instances 0 to {instances - 1}"


def is_plan(plan: Any) -> bool:
    """Whether it is a Plan whose values are in range."""
    if not isinstance(plan, Plan) or not isinstance(plan.batching, str) or plan.batching not in PLANS:
        return False
    has_percent = plan.prefill_percent is None or is_whole(plan.prefill_percent, _WHOLE)
    return has_percent and is_whole(plan.token_budget, MOST_TOKENS)
