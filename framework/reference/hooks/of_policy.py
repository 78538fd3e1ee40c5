"""A user's policy as the hooks of the reference engine: the same methods, views and checks as in the compiled engine.

Compiled rules are called as plain Python functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    SCALE,
    SET_DRAFTS,
    SET_MAX_BATCH,
    SET_TOKEN_BUDGET,
)
from framework.errors import InputError, instead_of, note_hook
from framework.policy.action_rows import ActionRow
from framework.policy.answers import Answers
from framework.policy.base import Policy, overrides
from framework.policy.decision import Decision
from framework.policy.hooks import AS_SET, HOOKS, REFUSED, Hook, decode_plan, require_tick
from framework.policy.reports import Reported
from framework.policy.retention import Retention
from framework.policy.rules import rule_of
from framework.policy.spans import SpanRow
from framework.policy.view import Cluster
from framework.reference.asking import ROLE_NAMES
from framework.reference.faults.reports import Reports
from framework.reference.hooks.base import Hooks
from framework.reference.inspection import ReferenceInspection
from framework.reference.options import Options
from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request
from framework.system.faults import RECOVERIES

_NUMBERS_OF_RULES = 16
_MODE_NAMES = {mode: name for name, mode in MODES.items()}
_KEPT_NAMES = {kept: name for name, kept in KEPT.items()}


class PolicyHooks(Hooks):
    """One policy bound to one run. Before each call its view is written anew.

    `shown`: what hooks see that go by reports, if any do; `cluster` is then a view of it.
    """

    def __init__(
        self,
        policy: Policy,
        cluster: Cluster,
        inspection: ReferenceInspection,
        shown: Reported | None,
        options: Options,
    ) -> None:
        if policy.tick_s is not None:
            require_tick(policy.name, policy.tick_s)
        self.policy = policy.name
        self.overrides = frozenset(hook.name for hook in HOOKS if overrides(policy, hook.name))
        self.tick_s = policy.tick_s if "on_tick" in self.overrides else None
        self.dynamic_keys = policy.dynamic_keys and "prioritize" in self.overrides
        self._inspection = inspection
        self._front = cluster
        self._cluster = cluster if shown is None else cluster.seen_by(inspection)
        self._shown = shown
        self._readers = options.engine.views.readers if shown is not None else frozenset[str]()
        self._reports = Reports(options.engine.views, inspection.instances.copy())
        self._follows_roles = policy.changes_roles or bool(options.faults)
        self._admits_by_rule = isinstance(policy.admit, Decision)
        self._answers = Answers(policy, self._cluster, dict.fromkeys(self._readers, cluster))
        self._params = np.asarray(policy.compiled_params, np.float64)
        self._numbers = np.zeros(_NUMBERS_OF_RULES)
        self._askers = {hook.name: self._asker(hook, rule_of(policy, hook.name, cluster.spec)) for hook in HOOKS}

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for rejections, in the order of first use."""
        return tuple(self._answers.reasons)

    def _asker(self, hook: Hook, own: Any) -> Callable[[Any], Any]:
        if isinstance(own, Decision):
            cluster = self._front if hook.name in self._readers else self._cluster
            view, params, numbers = cluster.view, self._params, self._numbers
            return lambda argument: int(own.function(argument, view, params, numbers))
        return self._answers.asker(hook)

    def ask(self, hook: str, argument: Any) -> Any:
        self._inspection.refresh()
        if self._follows_roles:
            self._cluster.follow_roles()
        if self._shown is not None and hook in self._readers:
            self._shown.show(self._reports.arrived(self._cluster.now_s))
            self._shown.follow_roles()
            self._front.follow_roles()
        try:
            return self._askers[hook](argument)
        except (InputError, KeyboardInterrupt):
            raise
        except BaseException as raised:
            error = instead_of(raised)
            kind = next(row.argument for row in HOOKS if row.name == hook)
            about = f" of {len(argument)}" if kind == "queue" else f" {argument}"
            note_hook(error, self.policy, hook, f" for {kind}{about}", self._cluster.now_s)
            raise error from error.__cause__

    def report(self, s: Simulation, number: int) -> None:
        self._inspection.refresh()
        self._reports.keep(number, self._inspection.instances.copy())

    def admit(self, s: Simulation, r: Request) -> str | None:
        verdict = int(self.ask("admit", r.id))
        if verdict == 0:
            return None
        return REASONS[REASON_POLICY] if self._admits_by_rule else self.reasons[verdict]

    def route_prefill(self, s: Simulation, r: Request) -> int:
        return int(self.ask("route_prefill", r.id))

    def fetch_prefix(self, s: Simulation, r: Request) -> int:
        return int(self.ask("fetch_prefix", r.id))

    def route_decode(self, s: Simulation, r: Request) -> int | str:
        answer = int(self.ask("route_decode", r.id))
        return self.reasons[REFUSED - answer] if answer <= REFUSED else answer

    def split_at(self, s: Simulation, r: Request) -> int:
        return int(self.ask("split_at", r.id))

    def prioritize(self, s: Simulation, queue: Sequence[Request]) -> Sequence[float]:
        keys = self.ask("prioritize", np.array([r.id for r in queue], np.int64))
        return list(np.broadcast_to(keys, len(queue)))

    def batching(self, s: Simulation, i: Instance) -> tuple[int, str, int]:
        percent, token_budget, mode = decode_plan(self.ask("batching", i.id))
        return token_budget, _MODE_NAMES[mode], percent

    def on_tick(self, s: Simulation, tick: int) -> Sequence[tuple[Any, ...]]:
        self.ask("on_tick", tick)
        return [_action(action, self.reasons) for action in self._answers.actions]

    def decide(self, s: Simulation, i: Instance) -> Sequence[tuple[Any, ...]]:
        self.ask("decide", i.id)
        return [_action(action, self.reasons) for action in self._answers.actions]

    def select(self, s: Simulation, i: Instance) -> Sequence[int]:
        self.ask("select", i.id)
        return [int(action.request) for action in self._answers.actions]

    def on_call_end(self, s: Simulation, r: Request) -> Retention:
        answer: Retention = self.ask("on_call_end", r.id)
        return answer

    def prefetch(self, s: Simulation, r: Request) -> int:
        return int(self.ask("prefetch", r.id))

    def on_failure(self, s: Simulation, r: Request) -> str | None:
        answer = int(self.ask("on_failure", r.id))
        return None if answer == AS_SET else RECOVERIES[answer]

    def span(self, s: Simulation, r: Request) -> SpanRow | None:
        answer: SpanRow | None = self.ask("span", r.id)
        return answer

    def reconfigure(self, s: Simulation, i: Instance) -> bool:
        return int(self.ask("reconfigure", i.id)) > 0

    def on_finish(self, s: Simulation, r: Request) -> Sequence[tuple[Any, ...]]:
        self.ask("on_finish", r.id)
        return [_action(action, self.reasons) for action in self._answers.actions]


def _action(action: ActionRow, reasons: Sequence[str]) -> tuple[Any, ...]:
    """An action in the form of `Hooks.on_tick`."""
    instance = int(action.instance)
    if action.kind == CANCEL:
        return "cancel", int(action.request), reasons[action.value]
    if action.kind == PREEMPT:
        return "preempt", int(action.request), _KEPT_NAMES[action.value]
    if action.kind == RESUME:
        return "resume", int(action.request)
    if action.kind == REQUEUE:
        return "requeue", int(action.request), instance
    if action.kind == SCALE:
        return "scale", instance, int(action.value)
    if action.kind == SET_MAX_BATCH:
        return "seats", instance, int(action.value)
    if action.kind == SET_DRAFTS:
        return "drafts", instance, int(action.value)
    if action.kind == MIGRATE:
        return "migrate", int(action.request), instance
    if action.kind == SET_TOKEN_BUDGET:
        return "budget", instance, int(action.value)
    plan = (int(action.value), _MODE_NAMES[action.mode], int(action.percent)) if action.value else None
    return "role", instance, ROLE_NAMES[action.role], plan
