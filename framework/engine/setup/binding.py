"""Ties a policy's hooks to the compiled engine, as addresses of C functions, and carries back what they raise."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from framework.codes import BAD_INSTANCE, BAD_ROLE, FUTURE, OFF, OUT_OF_BLOCKS, ROLES, STUCK, SUSPENDED
from framework.compiler.decorators import compiled
from framework.compiler.dispatchers import numba_config
from framework.engine.kv.spans import clear_spans, writer
from framework.engine.memory.attach import DECISION, handed
from framework.engine.memory.state import Memory
from framework.engine.memory.unused import is_plain
from framework.engine.setup.programs import prepare_call_ends
from framework.engine.setup.reports import Reports
from framework.errors import InputError, InvariantError, PolicyError, Stuck, instead_of, note_hook, stuck_error
from framework.policy.answers import Answers
from framework.policy.base import Policy, overrides
from framework.policy.decision import Decision
from framework.policy.hooks import FETCH_PREFIX, HOOKS, NO_SPAN, ON_CALL_END, RAISED, Hook, require_tick
from framework.policy.rules import rule_of
from framework.policy.view import Cluster

_DECISION_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_COMPILED_STATE = 16
_TIMED_EVERY = 16  # one in this many calls of a hook is timed
_MANY = 32  # instances from which on an index answers faster than a look at each instance
_ALWAYS_ASKED = ("route_prefill", "route_decode")  # hooks whose defaults also decide


class Front(NamedTuple):
    """What hooks see that go by reports, if instances report: the cluster, and the reports that it shows."""

    cluster: Cluster
    reports: Reports


class Binding:
    """One policy bound to one run: addresses of its hooks, what compiled ones receive, errors that they raise.

    `hooks_s` is the time that Python hooks have taken, estimated from one call in 16 and every tick. Compiled hooks
    receive `view`, `params` and `numbers` in addition to a request; those that go by reports, `fronts`, are called in
    Python, as their records have no address. `is_plain`: whether the run takes `loop.run_plain`.
    """

    def __init__(
        self, policy: Policy, cluster: Cluster, memory: Memory, fronts: Mapping[str, Front] | None = None
    ) -> None:
        self.raised: BaseException | None = None
        self.hooks_s = 0.0
        self.view = cluster.view
        self.params = np.asarray(policy.compiled_params, np.float64)
        self.numbers = np.zeros(_COMPILED_STATE)
        self._policy = policy
        self._cluster = cluster
        self._fronts = fronts or {}
        self._answers = Answers(policy, cluster, {hook: front.cluster for hook, front in self._fronts.items()})
        self._kept_alive: list[Any] = []
        self.memory = memory
        self._handed: tuple[Memory, Any] | None = None
        for number, hook in enumerate(HOOKS):
            self._connect(memory, number, hook)
        if memory.options["tiers"][0] == 0:
            memory.hooks["address"][FETCH_PREFIX] = 0
        if memory.options["hash_blocks"][0] == 0:
            memory.hooks["address"][ON_CALL_END] = 0
        pins = bool(memory.hooks["address"][ON_CALL_END])
        if pins:
            prepare_call_ends(memory)
        self._set_options()
        self.is_plain = not pins and is_plain(memory)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for rejections, by the numbers that the engine keeps."""
        return tuple(self._answers.reasons)

    def reason(self, text: str) -> int:
        """The number of a reason, which is noted if it is new."""
        return self._answers.number_of(text)

    def handed(self, memory: Memory) -> Any:
        """What the engine's entries take: this memory, and what compiled hooks receive."""
        if self._handed is None or self._handed[0] is not memory:
            self._handed = memory, handed(memory, self.view, self.params, self.numbers)
        return self._handed[1]

    def let_go(self) -> None:
        """Forget the hooks, which refer to this object: else the run's memory waits for the garbage collector."""
        self._kept_alive.clear()
        self._handed = None

    def _set_options(self) -> None:
        policy, options = self._policy, self.memory.options
        options["admit_gives_reasons"] = not isinstance(policy.admit, Decision)
        options["asks_local_decode"] = overrides(policy, "route_decode")
        options["spans"] = overrides(policy, "span")
        if options["spans"][0]:
            clear_spans(self.memory.lists, options)
        self.memory.sim["decides"] = overrides(policy, "decide")
        options["dynamic_keys"] = policy.dynamic_keys and overrides(policy, "prioritize")
        many = len(self.memory.instances) > _MANY
        options["keeps_loads"] = many and self._has_index("route_prefill", "least_queued")
        options["finds_least_kv"] = self._has_index("route_decode", "least_kv")
        if policy.tick_s is not None:
            require_tick(policy.name, policy.tick_s)
            options["tick_s"] = policy.tick_s if overrides(policy, "on_tick") else 0.0

    def _has_index(self, hook: str, index: str) -> bool:
        rule = rule_of(self._policy, hook, self._cluster.spec)
        return hook not in self._fronts and isinstance(rule, Decision) and rule.index == index

    def _connect(self, memory: Memory, number: int, hook: Hook) -> None:
        """Store the address of a hook in the engine's memory; 0 for a hook that is never called."""
        own, row = rule_of(self._policy, hook.name, self._cluster.spec), memory.hooks[number]
        if not overrides(self._policy, hook.name) and hook.name not in _ALWAYS_ASKED:
            return
        if isinstance(own, Decision) and hook.name in self._fronts:
            seen = self._fronts[hook.name].cluster
            row["address"] = self._callback(self._guarded(hook, self._interpreted(own, seen)))
        elif isinstance(own, Decision):
            row["looks"] = own.observes
            row["compiled"] = not numba_config.DISABLE_JIT
            row["address"] = self._compiled_address(own.function)
        else:
            row["looks"] = hook.looks
            row["address"] = self._callback(self._guarded(hook, self._answers.asker(hook)))

    def _compiled_address(self, function: Callable[..., int]) -> int:
        if numba_config.DISABLE_JIT:
            view, params, numbers = self.view, self.params, self.numbers
            return self._callback(lambda argument: int(function(argument, view, params, numbers)))
        from framework.compiler.calls import c_address

        return c_address(_compiled_rule(function), DECISION)

    def _interpreted(self, rule: Decision, cluster: Cluster) -> Callable[[int], int]:
        """A compiled rule as Python, which sees that cluster."""
        view, params, numbers = cluster.view, self.params, self.numbers
        return lambda argument: int(rule.function(argument, view, params, numbers))

    def _callback(self, function: Callable[[int], int]) -> int:
        callback = _DECISION_CALLBACK(function)
        self._kept_alive.append(callback)
        address = ctypes.c_void_p.from_buffer(callback).value  # `ctypes.cast` would make a reference cycle
        assert address is not None
        return address

    def _follower(self, hook: Hook) -> Callable[[], None] | None:
        """What brings up to date what a hook sees, None: nothing need."""
        has_roles = self._policy.changes_roles or self.memory.options["faults"][0] > 0
        if hook.name not in self._fronts:
            return self._cluster.follow_roles if has_roles else None
        cluster, reports = self._fronts[hook.name]

        def follow() -> None:
            reports.follow()
            cluster.follow_roles()

        return follow

    def _guarded(self, hook: Hook, ask: Callable[[Any], Any]) -> Callable[[int], Any]:
        """`ask` for a hook, as a function that raises nothing, since no exception can pass through the engine."""
        follow = self._follower(hook)
        if hook.argument == "queue":
            ask = self._asking_keys(ask)
        if hook.answer == "retention":
            ask = self._asking_ttl(ask)
        if hook.answer == "span":
            ask = self._asking_span(ask)
        write = self._write_actions if hook.answer in ("actions", "skips") else None

        every = 1 if hook.argument == "tick" else _TIMED_EVERY
        calls = 0

        def call(argument: int) -> Any:
            nonlocal calls
            calls += 1
            begin_s = 0.0 if calls % every else perf_counter()
            try:
                if follow is not None:
                    follow()
                answer = ask(argument)
                if write is not None:
                    answer = write(answer)
            except BaseException as raised:  # kept, and raised again outside the engine
                error = instead_of(raised)
                self.raised = error
                if isinstance(error, Exception) and not isinstance(error, InputError):
                    now_s = float(self.memory.sim["now_s"][0])
                    about = f" of {argument}" if hook.argument == "queue" else f" {argument}"
                    note_hook(error, self._policy.name, hook.name, f" for {hook.argument}{about}", now_s)
                return RAISED
            if begin_s > 0.0:
                self.hooks_s += every * (perf_counter() - begin_s)
            return answer

        return call

    def _asking_keys(self, ask: Callable[[Any], Any]) -> Callable[[int], int]:
        """A function of the number of listed requests: it asks for their keys and stores them."""
        listed, keys = self.memory.lists[self.memory.options["asked_at"][0] :], self.memory.requests["key"]

        def write(count: int) -> int:
            queue = listed[:count].copy()
            keys[queue] = ask(queue)
            return 0

        return write

    def _asking_ttl(self, ask: Callable[[Any], Any]) -> Callable[[int], int]:
        """A function of a request that has ended: it asks about its KV, stores the TTL, the seconds until the
        prefetch and the instance to which it moves, and answers with the rank.
        """
        requests = self.memory.requests
        ttls_s, waits_s, targets = requests["event_s"], requests["landing_s"], requests["shared_there"]

        def write(r: int) -> int:
            ttls_s[r], kept_by, wait_s, move_to = ask(r)
            waits_s[r] = -1.0 if wait_s is None else wait_s
            targets[r] = 1 + move_to
            return int(kept_by)

        return write

    def _asking_span(self, ask: Callable[[Any], Any]) -> Callable[[int], int]:
        """A function of a request: it asks for its span, stores that, and answers with the number of instances."""
        write = writer(self.memory.lists, self.memory.options)

        def answer(r: int) -> int:
            span = ask(r)
            return NO_SPAN if span is None else write(span)

        return answer

    def _write_actions(self, count: int) -> int:
        """Store the actions of a tick in the engine's memory."""
        if count > 0:
            self.memory.actions[:count] = self._answers.actions
        return count

    def error(self) -> PolicyError | BaseException:
        """The error that stopped the engine: what the hook raised, or one line on what it returned."""
        if self.raised is not None:
            return self.raised
        error = self.memory.error[0]
        hook, argument, value = int(error["hook"]), int(error["argument"]), int(error["value"])
        name = f"policy {self._policy.name}: {HOOKS[hook].name}"
        about = f" for {'request' if HOOKS[hook].argument == 'tick' else HOOKS[hook].argument} {argument}"
        about = about if argument >= 0 else ""
        count = len(self.memory.instances)
        if error["status"] == OUT_OF_BLOCKS:
            return InvariantError("an instance took more KV blocks than it had")
        if error["status"] == STUCK:
            return stuck_error(self._stuck())
        if error["status"] == BAD_INSTANCE:
            return PolicyError(f"{name} returned instance {value}{about}; the cluster has instances 0 to {count - 1}")
        if error["status"] == BAD_ROLE:
            return PolicyError(f"{name} returned instance {value}{about}, which {self._occupation(value)}")
        return PolicyError(f"{name} returned {value}{about}, which cannot be used")

    def _stuck(self) -> list[Stuck]:
        """The requests that wait for ever, by number."""
        found = []
        for r in np.flatnonzero((self.memory.requests["state"] > FUTURE) & (self.memory.requests["state"] < SUSPENDED)):
            row = self.memory.requests[r]
            place, holder = int(row["destination"]), int(row["instance"])
            if place < 0:
                place, holder = holder, -1
            if not self.memory.instances["marked"][place]:
                found.append(Stuck(int(r), place, holder, int(row["kv"]) if holder >= 0 else 0))
        return found

    def _occupation(self, instance: int) -> str:
        """Why an instance cannot take what a hook sent there."""
        roles = {number: role for role, number in ROLES.items()}
        row = self.memory.instances[instance]
        if row["down"]:
            return "has crashed and is down"
        if row["draining_role"] != row["next_role"]:
            return f"is changing from {roles[int(row['draining_role'])]} to {roles[int(row['next_role'])]}"
        return "is off" if row["role"] == OFF else f"is a {roles[int(row['role'])]} instance"


@functools.cache
def _compiled_rule(function: Callable[..., int]) -> Any:
    return compiled(DECISION)(function)
