"""Ties a policy's hooks to the compiled engine and brings back what they raise."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.codes import (
    BAD_INSTANCE,
    BAD_ROLE,
    CONCURRENT,
    HOOK_NAMES,
    MIGRATE,
    MODES,
    OFF,
    OUT_OF_BLOCKS,
    PRIORITIZE,
    REASON_POLICY,
    REASONS,
    ROLES,
    SET_ROLE,
    SET_TOKEN_BUDGET,
)
from framework.engine.config import PLANS
from framework.engine.hooks import DECISION_CALLBACK, KEY_CALLBACK, PYTHON_HOOKS, RAISED, REFUSED, Hooks
from framework.engine.mechanisms.sm_sharing import WHOLE
from framework.engine.state import ACTION, State, View
from framework.errors import InputError, InvariantError, PolicyError, require_positive
from framework.policy.base import Action, Decision, Migrate, Plan, Policy, SetRole, SetTokenBudget, overrides
from framework.policy.view import Cluster, Request

_COMPILED_STATE = 16
_ANY_PLAN = Plan(1, "mixed")
_MOST_ACTIONS = 1 << 16
_SHARE = 1 << 48  # of the integer in which a plan reaches the engine
_MOST_TOKENS = _SHARE >> 3


class Binding:
    """One policy bound to one run: the engine's hook functions, the arrays they get, and errors on their way out."""

    def __init__(self, policy: Policy, cluster: Cluster, state: State) -> None:
        self.reasons = list(REASONS)
        self.raised: BaseException | None = None
        self._policy = policy
        self._cluster = cluster
        self._state = state
        self._actions = np.zeros(_MOST_ACTIONS, ACTION)
        self._callbacks = np.zeros(len(HOOK_NAMES), np.int64)
        self._kept_alive: list[Any] = []
        answers: tuple[Callable[[int], Any], ...] = (
            self._admit,
            self._route_prefill,
            self._route_decode,
            self._prioritize,
            self._batching,
            self._on_tick,
            self._split_at,
            self._fetch_prefix,
        )
        functions, observes = [], False
        for hook, (name, answer) in enumerate(zip(HOOK_NAMES, answers, strict=True)):
            own = getattr(policy, name)
            if isinstance(own, Decision):
                functions.append(own.function)
                observes = observes or own.observes
            else:
                functions.append(PYTHON_HOOKS[hook])
                self._connect(hook, answer)
                observes = observes or self._overrides(name)
        self.functions = tuple(functions)
        sim = state.sim
        sim["admit_gives_reasons"] = not isinstance(policy.admit, Decision)
        sim["asks_admit"] = self._overrides("admit")
        sim["asks_route_decode"] = self._overrides("route_decode")
        sim["asks_prioritize"] = self._overrides("prioritize")
        sim["asks_batching"] = self._overrides("batching")
        sim["asks_split_at"] = self._overrides("split_at")
        sim["dynamic_keys"] = policy.dynamic_keys and self._overrides("prioritize")
        sim["asks_fetch"] = sim["tiers"][0] > 0 and self._overrides("fetch_prefix")
        sim["observes"] = observes
        self._require_whole_instances_where_shared()
        if policy.tick_s is not None:
            require_positive(f"policy {policy.name}: tick_s", policy.tick_s)
            sim["tick_s"] = policy.tick_s
        self.view = View(state.sim, state.requests, state.instances, self._callbacks, self._actions)
        self.params = np.asarray(policy.compiled_params, np.float64)
        self.state = np.zeros(_COMPILED_STATE)

    def hooks(self) -> Hooks:
        """The decision points with what they are handed, for the loop."""
        return Hooks._make((*self.functions, self.view, self.params, self.state))

    def error(self) -> PolicyError | BaseException:
        """What made the engine stop: what the hook raised, or one line on what it returned."""
        if self.raised is not None:
            return self.raised
        sim = self._state.sim[0]
        hook, request, value = int(sim["error_hook"]), int(sim["error_request"]), int(sim["error_value"])
        name = f"policy {self._policy.name}: {HOOK_NAMES[hook]}"
        about = f" for request {request}" if request >= 0 else ""
        count = len(self._state.instances)
        if sim["status"] == OUT_OF_BLOCKS:
            return InvariantError("an instance took more KV blocks than it had")
        if sim["status"] == BAD_INSTANCE:
            return PolicyError(f"{name} returned instance {value}{about}; the cluster has instances 0 to {count - 1}")
        if sim["status"] == BAD_ROLE:
            return PolicyError(f"{name} returned instance {value}{about}, which {self._occupation(value)}")
        if hook == PRIORITIZE:
            return PolicyError(f"{name} returned NaN{about}; keys must be numbers")
        return PolicyError(f"{name} returned {value}{about}, which cannot be used")

    def _occupation(self, instance: int) -> str:
        """Why an instance may not take what a hook sent there."""
        roles = {number: role for role, number in ROLES.items()}
        row = self._state.instances[instance]
        if row["settled_role"] != row["next_role"]:
            return f"is changing from {roles[int(row['settled_role'])]} to {roles[int(row['next_role'])]}"
        return "is off" if row["role"] == OFF else f"is a {roles[int(row['role'])]} instance"

    def _overrides(self, name: str) -> bool:
        return overrides(self._policy, name)

    def _connect(self, hook: int, answer: Callable[[int], Any]) -> None:
        prototype = KEY_CALLBACK if hook == PRIORITIZE else DECISION_CALLBACK
        failed = math.nan if hook == PRIORITIZE else RAISED
        follows, cluster = self._policy.changes_roles, self._cluster

        def call(argument: int) -> Any:
            try:
                if follows:
                    cluster.follow_roles()
                return answer(argument)
            except BaseException as error:  # it cannot pass through the engine: keep it, raise it again outside
                self.raised = error
                return failed

        callback = prototype(call)
        self._kept_alive.append(callback)
        address = ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        self._callbacks[hook] = address

    def _request(self, r: int) -> Request:
        return Request(r, self._cluster.requests)

    def _admit(self, r: int) -> int:
        answer = self._policy.admit(self._request(r), self._cluster)
        if isinstance(answer, str) and answer:
            return self._reason(answer)
        if not isinstance(answer, (bool, np.bool_)):
            raise PolicyError(f"policy {self._policy.name}: admit returned {answer!r}; return True, False or a reason")
        return 0 if answer else REASON_POLICY

    def _reason(self, reason: str) -> int:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return self.reasons.index(reason)

    def _route_prefill(self, r: int) -> int:
        return self._number("route_prefill", self._policy.route_prefill(self._request(r), self._cluster))

    def _route_decode(self, r: int) -> int:
        answer = self._policy.route_decode(self._request(r), self._cluster)
        if isinstance(answer, str) and answer:
            return REFUSED - self._reason(answer)
        return self._number("route_decode", answer)

    def _fetch_prefix(self, r: int) -> int:
        return self._number("fetch_prefix", self._policy.fetch_prefix(self._request(r), self._cluster))

    def _split_at(self, r: int) -> int:
        cut = self._number("split_at", self._policy.split_at(self._request(r), self._cluster), "a number of tokens")
        if not 0 <= cut < _MOST_TOKENS:
            raise PolicyError(f"policy {self._policy.name}: split_at returned {cut} for request {r}; return 0 or more")
        return cut

    def _number(self, hook: str, answer: Any, wanted: str = "the number of an instance") -> int:
        try:
            return answer.__index__()
        except AttributeError:
            raise PolicyError(f"policy {self._policy.name}: {hook} returned {answer!r}; return {wanted}") from None

    def _prioritize(self, r: int) -> float:
        keys = self._policy.prioritize(np.asarray([r]), self._cluster)
        try:
            return float(np.asarray(keys, np.float64).reshape(1)[0])
        except (TypeError, ValueError):
            raise PolicyError(
                f"policy {self._policy.name}: prioritize returned {keys!r} for request {r}; return a number for each"
            ) from None

    def _batching(self, i: int) -> int:
        plan = self._policy.batching(i, self._cluster)
        if not _is_plan(plan):
            raise PolicyError(
                f"policy {self._policy.name}: batching returned {plan!r} for instance {i}; "
                f"return Plan(token_budget >= 1, one of {', '.join(PLANS)}, 1 <= prefill_percent <= 99)"
            )
        self._require_sharing("batching", plan)
        return int(plan.prefill_percent or 0) * _SHARE + int(plan.token_budget) * 8 + MODES[plan.batching]

    def _require_whole_instances_where_shared(self) -> None:
        instances = self._state.instances
        shared = self._policy.shares_gpus or np.any(instances["mode"] == CONCURRENT)
        if shared and np.any(instances["ranks"] > 0):
            raise InputError(
                "prefills beside decodes (batching concurrent) and ranks with requests of their own do not go together;"
                " set cluster.rank_choice=even"
            )
        if shared and np.any(instances["stages"] > 0):
            raise InputError(
                "prefills beside decodes (batching concurrent) and pipeline stages do not go together; set cluster.pp=1"
            )
        if np.any((instances["ranks"] > 0) & (instances["stages"] > 0)):
            raise InputError(
                "pipeline stages and ranks with requests of their own do not go together;"
                " set cluster.pp=1 or cluster.rank_choice=even"
            )

    def _require_sharing(self, hook: str, plan: Plan) -> None:
        if plan.batching == "concurrent" and not self._policy.shares_gpus:
            raise PolicyError(
                f"policy {self._policy.name}: {hook} returned {plan!r}; such a policy says shares_gpus = True"
            )

    def _on_tick(self, tick: int) -> int:
        actions = self._policy.on_tick(self._cluster)
        if actions is not None and not isinstance(actions, Iterable):
            raise PolicyError(f"policy {self._policy.name}: on_tick returned {actions!r}; return a list of actions")
        return self._write(actions or ())

    def _write_role(self, row: Any, action: SetRole) -> None:
        if not self._policy.changes_roles:
            raise PolicyError(
                f"policy {self._policy.name}: on_tick returned {action!r}; such a policy says changes_roles = True"
            )
        row["kind"], row["request"], row["instance"], row["role"] = SET_ROLE, -1, action.instance, ROLES[action.role]
        row["value"] = 0 if action.plan is None else action.plan.token_budget
        row["mode"] = row["percent"] = 0
        if action.plan is not None:
            self._require_sharing("on_tick", action.plan)
            row["mode"], row["percent"] = MODES[action.plan.batching], action.plan.prefill_percent or 0

    def _write(self, actions: Iterable[Action]) -> int:
        count = 0
        for action in actions:
            if count == len(self._actions):
                raise PolicyError(f"policy {self._policy.name}: on_tick returned more than {count} actions")
            row: NDArray[Any] = self._actions[count]
            if isinstance(action, Migrate) and 0 <= action.request < len(self._state.requests):
                row["kind"], row["request"], row["instance"] = MIGRATE, action.request, action.instance
            elif isinstance(action, SetTokenBudget) and action.tokens >= 1:
                row["kind"], row["instance"], row["value"] = SET_TOKEN_BUDGET, action.instance, action.tokens
                row["request"] = -1
            elif isinstance(action, SetRole) and action.role in ROLES and _is_plan(action.plan or _ANY_PLAN):
                self._write_role(row, action)
            else:
                raise PolicyError(f"policy {self._policy.name}: on_tick returned {action!r}, no usable action")
            count += 1
        return count


def _is_plan(plan: Any) -> bool:
    if not isinstance(plan, Plan) or plan.batching not in PLANS or not 1 <= plan.token_budget < _MOST_TOKENS:
        return False
    return plan.prefill_percent is None or 1 <= plan.prefill_percent < WHOLE
