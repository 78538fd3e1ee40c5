"""Random policies that decide alike in both engines: by plain numbers, seen through one adapter for each engine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.codes import DECODE, MIXED, NO_RANK, PREFILL
from framework.policy import (
    Action,
    Cancel,
    Migrate,
    Plan,
    Policy,
    Preempt,
    Requeue,
    Resume,
    Retain,
    Scale,
    SetDrafts,
    SetMaxBatch,
    SetRole,
    SetTokenBudget,
    Span,
)
from framework.policy.predictor import Predictor
from framework.policy.reports import Reported as ReportedInspection
from framework.policy.retention import Retention
from framework.policy.spans import SpanRow, span_row
from framework.policy.view import Cluster
from framework.policy.view import Request as RequestView
from framework.reference.asking import ROLE_NAMES
from framework.reference.faults.reports import Reports
from framework.reference.holdings import coming, kv_tokens
from framework.reference.hooks.base import Hooks
from framework.reference.inspection import INSTANCE_COLUMNS, ReferenceInspection
from framework.reference.inspection import REQUEST_COLUMNS as COLUMNS_OF_REQUESTS
from framework.reference.simulation import Simulation
from framework.reference.state import FINISHED, PENDING, Instance, Request
from framework.system.cluster import PoolSpec
from framework.system.faults import Recovery
from tests.helpers.compiled_rules import COMPILED_ADMIT, COMPILED_PARAMS, COMPILED_ROUTES, InterpretedRules

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
MODES = (
    *("decode_first", "prefill_first", "mixed", "static", "unified", "decode_first", "unified", "decode_only"),
    *("concurrent", "concurrent"),
)
_WORD = 2**64 - 1
NAMES_OF_ROLES = ("mixed", "prefill", "decode", "off")
COLUMNS = (
    *("queued", "queued_tokens", "running", "prefilling", "kv_tokens", "incoming", "incoming_kv_tokens", "swapped"),
    *("free_blocks", "evictable_blocks", "token_budget", "changing"),
)
# The other columns of a view, as the reference engine's own view tells them.
MORE_COLUMNS = (
    *("pool", "role", "next_role", "draining_role", "total_blocks", "max_batch", "bandwidth_bytes_s"),
    *("prefill_percent", "gpus"),
)
_ROLE_COLUMNS = ("role", "next_role", "draining_role")  # current even where instances report
_REPORTED_COLUMNS = tuple(name for name in MORE_COLUMNS if name not in _ROLE_COLUMNS)
REQUEST_COLUMNS = ("instance", "destination", "prefill_instance", "decode_instance", "preemptions", "migrations")
OPTIONAL_HOOKS = (
    *(
        "admit",
        "route_prefill",
        "fetch_prefix",
        "split_at",
        "route_decode",
        "prioritize",
        "batching",
        "decide",
        "victim",
        "select",
        "on_finish",
        "on_call_end",
        "prefetch",
        "span",
        "reconfigure",
        "on_failure",
        "on_tick",
    ),
)


@dataclass(frozen=True)
class Rules:
    """A random policy as data. An empty name: that hook is not overridden. `tick_s` 0: no ticks."""

    seed: int = 0
    route_prefill: str = "turn"
    route_decode: str = ""
    refuse: bool = False  # route_decode turns some requests away
    fetch_prefix: str = ""
    admit: str = ""
    prioritize: str = ""
    batching: str = ""
    split_at: str = ""
    tick_s: float = 0.0
    moves: int = 0  # migrations asked for at each tick
    budgets: bool = False  # ticks also set token budgets
    roles: int = 0  # changes of role asked for at each tick
    scales: int = 0  # pools scaled at each tick
    shares: bool = True  # plans may let prefills run concurrently with decodes
    decide: int = 0  # `decide`, and ticks, preempt, resume and cancel those of so many requests
    decides_at_ticks_alone: bool = False  # `decide` is not overridden
    calm: int = 4  # in how many questions on average one decision is made
    victim: str = ""
    select: str = ""
    on_finish: str = ""
    on_call_end: str = ""  # "any", or "all": each call that ends is pinned
    ttl_exponent: int = -5  # of the seconds of pins, and until prefetches
    prefetches: int = 0  # of each eight calls that end, so many are prefetched
    prefetch: str = ""
    on_failure: str = ""  # "any": each request that a crash drops is treated by a hash
    moves_kv: int = 0  # of each eight other calls that end, the KV of so many moves
    span: str = ""  # "some", "most" or "all" of the requests are computed by several instances
    reconfigure: str = ""  # "hash": in three of four cases

    @property
    def predicts(self) -> bool:
        """Whether it asks a predictor."""
        return self.prioritize == "predicted"

    @property
    def modes(self) -> tuple[str, ...]:
        return MODES if self.shares else tuple(mode for mode in MODES if mode != "concurrent")

    @property
    def overridden(self) -> frozenset[str]:
        names = {name for name in OPTIONAL_HOOKS[:-1] if getattr(self, name)}
        names -= {"decide"} if self.decides_at_ticks_alone else set()
        return frozenset(names | ({"on_tick"} if self.tick_s else set()))


def mix(*values: int) -> int:
    """A hash of integers (the finalizer of splitmix64, chained), 0 <= result < 2^64."""
    state = 0
    for value in values:
        state = (state + value + 0x9E3779B97F4A7C15) & _WORD
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state


def is_deep(asked: int) -> bool:
    """Whether a policy that has been asked so often looks at all there is: it takes as long as the rest of a run."""
    return mix(15, asked) % 5 == 0


def percent(draw: int) -> int:
    """A prefill's part of the SMs, where slowdowns of exact scenarios are exact, or 0: as before."""
    return 4 + draw % 93 if draw % 5 else 0


# Seconds of each instance's next decode step, and of the next step of each stream of one of them, by some shares of its
# SMs; which of those that decode are being migrated.
Times = tuple[list[float], list[list[float]], list[bool]]
Reported = Mapping[str, Sequence[float]]  # columns of instances
Residents = list[tuple[int, int, bool]]  # request, position of where it is or is going, whether it stays


@dataclass
class Look:
    """What a policy sees at one moment; lists by instance. `decoding`: (request, generated, KV) in running order.

    `rest` is all else that it may ask for, at one question in three (`is_deep`).
    """

    now_s: float
    roles: Sequence[str]
    columns: dict[str, list[int]]
    decoding: list[list[tuple[int, int, int]]]
    rest: tuple[Any, ...]
    seats: list[int] = field(default_factory=list)
    pools: list[int] = field(default_factory=list)  # instances of each pool that can be scaled, 0: it cannot
    drafts: list[int] = field(default_factory=list)  # most drafts for each decode


@dataclass(frozen=True)
class Note:
    """One question to the policy and what it saw then."""

    hook: str
    subject: int
    now_s: float
    seen: tuple[Any, ...]


_SHARES = (4, 36, 75, 100)  # percent of the SMs


@dataclass
class Ruler:
    """Decides by `rules`, and notes all that it was asked."""

    rules: Rules
    notes: list[Note] = field(default_factory=list)
    routed: dict[int, int] = field(default_factory=dict)  # how often each request was routed
    seats: dict[int, int] = field(default_factory=dict)  # of each instance whose seats have been set, before
    drafts: int = 0  # most drafts for a decode that have been seen
    taken_off: list[int] = field(default_factory=list)  # those that it has last preempted and not resumed

    def note(self, hook: str, subject: int, look: Look, *more: Any) -> None:
        seen = look.columns, look.decoding, look.rest, more
        self.notes.append(Note(hook, subject, look.now_s, seen))

    def admit(self, look: Look, request: int) -> bool:
        self.note("admit", request, look)
        if self.rules.admit == "hash":
            return mix(self.rules.seed, 1, request) % 8 > 0
        if self.rules.admit == "late":
            return request >= 6
        return min(look.columns["queued_tokens"]) < 96

    def route_prefill(self, look: Look, request: int, generated: int, cached: list[int], prefill_s: list[float]) -> int:
        """`prefill_s`: of each instance, in pieces of `piece(request)`."""
        self.note("route_prefill", request, look, generated, cached, prefill_s)
        return self.pick(self.rules.route_prefill, "prefill", 2, look, request, generated, cached)

    def fetch_prefix(self, look: Look, request: int, cached: list[int]) -> int:
        self.note("fetch_prefix", request, look, cached)
        if self.rules.fetch_prefix == "most":
            return max(range(len(cached)), key=lambda i: (cached[i], -i))
        return mix(self.rules.seed, 10, request) % (len(cached) + 1) - 1

    def route_decode(self, look: Look, request: int, generated: int, cached: list[int]) -> int | str:
        self.note("route_decode", request, look, generated, cached)
        if self.rules.refuse and mix(self.rules.seed, 11, request, generated) % 5 == 0:
            return "refused"
        return self.pick(self.rules.route_decode, "decode", 3, look, request, generated, cached)

    def pick(
        self, rule: str, phase: str, salt: int, look: Look, request: int, generated: int, cached: list[int]
    ) -> int:
        able = [i for i, role in enumerate(look.roles) if role in ("mixed", phase)]
        if rule == "hash":
            self.routed[request] = self.routed.get(request, 0) + 1
            return able[mix(self.rules.seed, salt, request, generated, self.routed[request]) % len(able)]
        if rule in ("turn", "next"):
            return able[(request + (rule == "next")) % len(able)]
        if rule == "cached":
            return max(able, key=lambda i: (cached[i], -i))
        return min(able, key=lambda i: (look.columns[rule][i], i))

    def prioritize(self, look: Look, queue: list[int], known: list[float]) -> list[float]:
        """`known`: what the rule goes by that is known of each: its prompt, its priority, tokens predicted."""
        self.note("prioritize", queue[0], look, queue, known)
        if self.rules.prioritize == "dynamic":
            keys = [float(mix(self.rules.seed, 4, r, *look.columns["kv_tokens"]) % 3) for r in queue]
            by_rank = sorted(queue, key=lambda r: mix(self.rules.seed, 14, r))
            return [float(by_rank.index(r)) for r in queue] if self.rules.seed % 2 else keys
        if self.rules.prioritize == "hash":
            return [float(mix(self.rules.seed, 4, r) % 3) for r in queue]
        return known

    def batching(self, look: Look, instance: int) -> tuple[int, str, int]:
        self.note("batching", instance, look)
        seen = [look.columns[name][instance] for name in ("queued", "running", "kv_tokens", "free_blocks")]
        modes = self.rules.modes
        mode = modes[mix(self.rules.seed, 6, *(seen if self.rules.batching == "mode" else [instance])) % len(modes)]
        return 1 + mix(self.rules.seed, 5, *seen) % 48, mode, percent(mix(self.rules.seed, 10, *seen))

    def split_at(self, look: Look, request: int, prompt: int) -> int:
        self.note("split_at", request, look)
        draw = mix(self.rules.seed, 10, request)
        if self.rules.split_at == "prompt":
            return draw % prompt
        if self.rules.split_at == "output":
            return prompt + draw % 16
        return draw % (2 * prompt + 8)

    def decide(self, look: Look, instance: int) -> list[tuple[Any, ...]]:
        """As `on_tick`."""
        self.note("decide", instance, look)
        decisions = self.decisions(look, instance)
        if self.rules.budgets and mix(self.rules.seed, 18, len(self.notes)) % 8 == 0:
            decisions.append(("budget", instance, 1 + mix(self.rules.seed, 19, len(self.notes)) % 48))
        if self.rules.scales and mix(self.rules.seed, 27, len(self.notes)) % 8 == 0:
            decisions.append(self.scale(look, len(self.notes)))
        if mix(self.rules.seed, 20, len(self.notes)) % 8 == 0:
            seats = self.seats.setdefault(instance, int(look.seats[instance]))
            decisions.append(("seats", instance, 1 + mix(self.rules.seed, 21, len(self.notes)) % seats))
        self.drafts = max([self.drafts, *look.drafts])
        if self.drafts > 0 and mix(self.rules.seed, 40, len(self.notes)) % 4 == 0:
            decisions.append(("drafts", instance, mix(self.rules.seed, 41, len(self.notes)) % (self.drafts + 1)))
        return decisions

    def scale(self, look: Look, number: int) -> tuple[Any, ...]:
        """Some pool with a role and, as often as not, as many of its instances as a hash says, else one or all."""
        draw = mix(self.rules.seed, 26, number, *look.columns["queued"], *look.columns["running"])
        pool = [k for k, size in enumerate(look.pools) if size > 0][draw % sum(size > 0 for size in look.pools)]
        size = look.pools[pool]
        return "scale", pool, ((draw >> 16) % (size + 1), (draw >> 16) % (size + 1), 1, size)[(draw >> 8) % 4]

    def victim(self, look: Look, instance: int, candidates: list[int]) -> int:
        """By a hash or, half of the time, the first admitted."""
        self.note("victim", instance, look, candidates)
        draw = mix(self.rules.seed, 23, len(self.notes))
        return candidates[(draw >> 8) % len(candidates)] if draw % 2 else candidates[0]

    def select(self, look: Look, instance: int, decoding: list[int]) -> list[int]:
        """Each by a hash; the first stays in if nobody else does."""
        self.note("select", instance, look, decoding)
        share = mix(self.rules.seed, 24, len(self.notes)) % 3
        skips = [r for r in decoding if mix(self.rules.seed, 25, r, len(self.notes)) % 4 < share]
        return skips if len(skips) < len(decoding) else skips[1:]

    def on_finish(self, look: Look, request: int) -> list[tuple[Any, ...]]:
        """As `on_tick`."""
        self.note("on_finish", request, look)
        return self.decisions(look, request) if self.rules.decide else []

    def on_call_end(self, look: Look, request: int) -> Retention:
        """The TTL of its pin, the rank of its blocks, and when they are prefetched."""
        self.note("on_call_end", request, look)
        draw, unit_s = mix(self.rules.seed, 28, request), 2.0**self.rules.ttl_exponent
        rank = (NO_RANK, 0, 0, -8, -1, 3, 7)[(draw >> 16) % 7]
        if rank == NO_RANK:
            return Retention()
        prefetch_s = None
        if (draw >> 32) % 8 < self.rules.prefetches:
            prefetch_s, rank = (draw >> 24) % 24 * unit_s, (-8, rank)[(draw >> 40) % 2]
        move_to = -1
        if prefetch_s is None and (draw >> 44) % 8 < self.rules.moves_kv:
            move_to = (draw >> 48) % len(look.roles)
        if self.rules.on_call_end == "all" or draw % 4 == 0:
            return Retention(float("inf"), rank, prefetch_s, move_to)
        return Retention((draw >> 8) % 40 * unit_s * (draw % 4 > 1), rank, prefetch_s, move_to)

    def prefetch(self, look: Look, request: int, instance: int) -> int:
        """The instance where it has ended, or any; at times none."""
        self.note("prefetch", request, look)
        draw = mix(self.rules.seed, 32, request)
        if draw % 8 == 0:
            return -1
        return instance if self.rules.prefetch == "own" else (draw >> 8) % len(look.roles)

    def on_failure(self, look: Look, request: int) -> Recovery | None:
        """Restored as often as all else together."""
        self.note("on_failure", request, look)
        answers: tuple[Recovery | None, ...] = ("restore", "restore", "restore", "recompute", "fail", None)
        return answers[mix(self.rules.seed, 31, request, len(self.notes)) % 6]

    def span(self, look: Look, request: int, tokens: int) -> Span | None:
        """Of one to all instances, of which a part keep some of `tokens` tokens; it waits at times while others run."""
        self.note("span", request, look, tokens)
        draw, count = mix(self.rules.seed, 29, request, len(self.notes)), len(look.roles)
        if mix(self.rules.seed, 30, request) % 4 >= {"some": 1, "most": 3, "all": 4}[self.rules.span]:
            return None
        able = [i for i in range(count) if look.roles[i] == "mixed"]
        busy = any(sum(look.columns[name]) for name in ("running", "prefilling"))
        if not able or (busy and draw % 4 == 0):
            return Span()
        chosen = sorted(able, key=lambda i: mix(self.rules.seed, 31, i, draw))[: 1 + (draw >> 8) % len(able)]
        chosen = chosen[: 2 if len(chosen) == 3 else 4]  # halves and quarters of times are exact
        parts = [(draw >> 12 + 4 * k) % 5 * tokens // 16 for k in range(len(chosen) - 1)]
        return Span(chosen, None if (draw >> 40) % 3 == 0 else parts, (draw >> 44) % 2 * (1 + (draw >> 48) % 24))

    def reconfigure(self, look: Look, instance: int) -> bool:
        """By a hash."""
        self.note("reconfigure", instance, look)
        return mix(self.rules.seed, 32, instance, len(self.notes)) % 4 > 0

    def decisions(self, look: Look, asked_about: int) -> list[tuple[Any, ...]]:
        """A few decisions; once nothing runs or waits, all that it has taken off are resumed."""
        if not any(sum(look.columns[name]) for name in ("queued", "running", "prefilling", "incoming", "swapped")):
            resumed, self.taken_off = self.taken_off, []
            return [("resume", r) for r in resumed]
        found: list[tuple[Any, ...]] = []
        for k in range(2):
            draw = mix(self.rules.seed, 16, k, len(self.notes), asked_about)
            r, kind = (draw >> 16) % self.rules.decide, draw % (4 * self.rules.calm)
            if kind < 2:
                found.append(("preempt", r, ("drop", "kv", "swap", "kv")[(draw >> 8) % 4]))
                self.taken_off.append(r)
            elif kind == 2:
                found.append(("cancel", r, ("hasty", "late")[(draw >> 8) % 2]))
            elif kind < 5 and self.taken_off:
                found.append(("resume", self.taken_off.pop((draw >> 16) % len(self.taken_off))))
            elif 5 <= kind < 7:
                found.append(("requeue", r, (draw >> 40) % len(look.roles)))
        return found

    def on_tick(self, look: Look) -> list[tuple[Any, ...]]:
        """("migrate", request, instance), ("budget", instance, tokens), ("role", instance, role, plan),
        ("seats", instance, requests), ("drafts", instance, tokens), ("preempt", request, keep),
        ("resume", request), ("cancel", request, reason), ("requeue", request, instance) and ("scale", pool, instances).
        """
        self.note("on_tick", 0, look)
        actions: list[tuple[Any, ...]] = []
        decoding = sorted(id for there in look.decoding for id, _, _ in there)
        for k in range(self.rules.moves):
            draw = mix(self.rules.seed, 7, k, *look.columns["kv_tokens"])
            if decoding:
                actions.append(("migrate", decoding[draw % len(decoding)], (draw >> 32) % len(look.roles)))
        if self.rules.budgets:
            draw = mix(self.rules.seed, 8, *look.columns["free_blocks"])
            actions.append(("budget", draw % len(look.roles), 1 + (draw >> 32) % 48))
        for k in range(self.rules.roles):
            draw = mix(self.rules.seed, 9, k, *look.columns["free_blocks"], *look.columns["queued"])
            plan = None
            if (draw >> 32) % 3 == 0:
                modes = self.rules.modes
                plan = (1 + (draw >> 40) % 48, modes[(draw >> 48) % len(modes)], percent(draw >> 52))
            actions.append(("role", draw % len(look.roles), NAMES_OF_ROLES[(draw >> 16) % 4], plan))
        actions += [self.scale(look, k) for k in range(self.rules.scales)]
        if self.rules.decide:
            decisions = self.decisions(look, -1)
            actions = decisions + actions if self.rules.seed % 2 else actions + decisions
        return actions


STRIDE = 4


def piece(request: int) -> int:
    """In chunks of how many tokens a prompt is taken to be prefilled."""
    return 7 if request % 2 else 10**9


def expected_tokens(rules: Rules, request: int, generated: int, ended_tokens: int) -> float:
    """What is predicted to come of a request after so many tokens, once others have ended with so many in sum."""
    return float(mix(rules.seed, 12, request, generated, ended_tokens) % 40)


class RuledPredictor(Predictor):
    """Predicts by plain numbers, and by what has ended."""

    stride = STRIDE

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.ended_tokens = 0

    def predict(self, requests: Integers, generated: Integers) -> tuple[Floats, Floats]:
        pairs = zip(requests.tolist(), generated.tolist(), strict=True)
        remaining = [expected_tokens(self.rules, r, tokens, self.ended_tokens) for r, tokens in pairs]
        return np.array(remaining), np.zeros(len(requests))

    def observe(self, request: int, output_tokens: int) -> None:
        self.ended_tokens += output_tokens


# the reference


def reported_look(s: Simulation, columns: Reported) -> Look:
    """What the front end sees if instances have last reported these columns: roles and requests as they are."""
    changing = [int(i.draining_role != i.next_role) for i in s.instances]
    seen = {name: list(map(int, columns[name])) for name in COLUMNS[:-1]}
    known = [(r.id, r.emitted, 0) for r in s.requests]
    more = [list(map(float, columns[name])) for name in _REPORTED_COLUMNS]
    roles = [[float(_OF_INSTANCE[name](i)) for i in s.instances] for name in _ROLE_COLUMNS]
    return Look(
        now_s=s.now_s,
        roles=[ROLE_NAMES[i.role] for i in s.instances],
        columns=seen | {"changing": changing},
        decoding=[known],
        rest=(more, roles),
        pools=pools_in_simulation(s),
    )


def reported_columns(s: Simulation) -> Reported:
    """What the instances report."""
    columns = zip(*(instance_columns(i) for i in s.instances), strict=True)
    more = {name: [_OF_INSTANCE[name](i) for i in s.instances] for name in _REPORTED_COLUMNS}
    return dict(zip(COLUMNS, map(list, columns), strict=True)) | more


def look_at_simulation(s: Simulation, asked: int) -> Look:
    """After so many questions."""
    columns = zip(*(instance_columns(i) for i in s.instances), strict=True)
    return Look(
        now_s=s.now_s,
        roles=[ROLE_NAMES[i.role] for i in s.instances],
        columns=dict(zip(COLUMNS, map(list, columns), strict=True)),
        decoding=[[(r.id, r.emitted, r.kv) for r in i.running] for i in s.instances],
        rest=rest_in_simulation(s, asked) if is_deep(asked) else (),
        drafts=[i.most_drafts for i in s.instances],
        seats=[i.max_batch for i in s.instances],
        pools=pools_in_simulation(s),
    )


def pools_in_simulation(s: Simulation) -> list[int]:
    sizes = [0] * (1 + max(i.spec.pool for i in s.instances))
    for i in s.instances:
        sizes[i.spec.pool] += i.spec.role != "off" and i.spec.group == 1
    return sizes


def rest_in_simulation(s: Simulation, asked: int) -> tuple[Any, ...]:
    """Who prefills and waits, residents, times, and the columns by which nothing is decided: of instances, then of
    requests that are listed.
    """
    prefilling = [[r.id for r in i.prefilling] for i in s.instances]
    queued = [[r.id for _, _, r in [*sorted(i.waiting), *i.inbox]] for i in s.instances]
    more = [[float(_OF_INSTANCE[name](i)) for i in s.instances] for name in MORE_COLUMNS]
    about = [[float(_OF_REQUEST[name](r)) for name in REQUEST_COLUMNS] for r in _listed(s)]
    suspended = [r.id for r in s.requests if r.suspended]
    whole = suspended, states_in_simulation(s)
    return prefilling, queued, whole, residents_in_simulation(s), *times_in_simulation(s, asked), more, about


def states_in_simulation(s: Simulation) -> list[tuple[str, float]]:
    """Where each request is, and its age; -1 while it is to come."""
    places = {
        "queued": {r for i in s.instances for _, _, r in [*i.waiting, *i.inbox]},
        "prefilling": {r for i in s.instances for r in i.prefilling},
        "decoding": {r for i in s.instances for r in i.running},
        "suspended": {r for r in s.requests if r.suspended},
        "to_come": {r for r in s.requests if math.isnan(r.arrival_s)},
        "ended": {r for r in s.requests if r.state != PENDING},
    }
    names = [[name for name, there in places.items() if r in there] for r in s.requests]
    ages_s = [-1.0 if math.isnan(r.arrival_s) else s.now_s - r.arrival_s for r in s.requests]
    return [(there[-1] if there else "between", age_s) for there, age_s in zip(names, ages_s, strict=True)]


_OF_INSTANCE = {name: value for name, _, value in INSTANCE_COLUMNS}
_OF_REQUEST = {name: value for name, _, value in COLUMNS_OF_REQUESTS}


def _listed(s: Simulation) -> list[Request]:
    """Those that wait, prefill or decode."""
    waiting = [r for i in s.instances for _, _, r in [*sorted(i.waiting), *i.inbox]]
    return waiting + [r for i in s.instances for r in i.prefilling] + [r for i in s.instances for r in i.running]


def instance_columns(i: Instance) -> tuple[int, ...]:
    """In the order of COLUMNS."""
    queue, on_the_way = i.waiting + i.inbox, i.incoming + i.reserved
    return (
        len(queue),
        sum([r.goal for _, _, r in queue]) + sum([r.prefill_until - r.prefilled for r in i.prefilling + coming(i)]),
        len(i.running),
        len(i.prefilling),
        kv_tokens(i),
        len(on_the_way),
        sum([r.migration.copied if r.migration else r.coming_kv for r in on_the_way]),
        len(i.swapped),
        i.cache.free,
        i.cache.evictable,
        i.token_budget,
        int(i.draining_role != i.next_role),
    )


def residents_in_simulation(s: Simulation) -> Residents:
    """Who decodes where new decodes may come, and who is on the way there."""
    position = {i.id: k for k, i in enumerate([i for i in s.instances if i.role & DECODE])}
    targets = {r.id: r.migration.target if r.migration else r.destination for r in s.present.values()}
    bound = {id: i.id for id, i in targets.items() if i is not None}
    decoding = [(r.id, bound.get(r.id, i.id)) for i in s.instances if i.id in position for r in i.running]
    here = [(id, position[at], id not in bound) for id, at in decoding if at in position]
    known = {id for id, _ in decoding}
    return here + [(id, position[to], False) for id, to in sorted(bound.items()) if to in position and id not in known]


def cached_in_simulation(s: Simulation, r: Request) -> list[int]:
    """Tokens of r's prompt in the cache of each instance, one token at least left to compute."""
    if not s.hash_tokens:
        return [0] * len(s.instances)
    runs = [0] * len(s.instances)
    for k, i in enumerate(s.instances):
        names = set(i.cache.references)
        for store in i.stores:
            chunks = [r.hash_ids[at : at + store.chunk] for at in range(0, len(r.hash_ids), store.chunk)]
            names.update(*(ids for ids in chunks if len(ids) == store.chunk and ids[-1] in store.ids))
        while runs[k] < len(r.hash_ids) and r.hash_ids[runs[k]] in names:
            runs[k] += 1
    return [s.hash_tokens * min(run, (r.input_tokens - 1) // s.hash_tokens) for run in runs]


def times_in_simulation(s: Simulation, asked: int) -> Times:
    """After so many questions."""
    seen, count = _inspected(s), len(s.instances)
    return (
        seen.step_times_s(np.arange(count)).tolist(),
        [stream[list(_SHARES)].tolist() for stream in seen.stream_times_s(asked % count)],
        [r.migration is not None for i in s.instances for r in i.running],
    )


def prefills_in_simulation(s: Simulation, r: Request, cached: list[int]) -> list[float]:
    """Behind what each instance has cached."""
    return _inspected(s).prefill_times_s(np.arange(len(cached)), r.id, np.array(cached), piece(r.id)).tolist()


def _inspected(s: Simulation) -> ReferenceInspection:
    """The reference's second statement of these times."""
    seen = ReferenceInspection.__new__(ReferenceInspection)  # all but the times are columns, which a look does without
    seen._s = s
    return seen


class RuledHooks(Hooks):
    """The ruler for the reference engine, with the framework's default routing where it rules nothing."""

    simulation: Simulation  # that it is asked in

    def __init__(self, ruler: Ruler) -> None:
        self.ruler = ruler
        self.compiled = InterpretedRules()
        self.predicted: dict[int, tuple[int, float]] = {}  # request -> stride, remaining tokens
        self.overrides = ruler.rules.overridden
        self.tick_s = ruler.rules.tick_s or None
        self.dynamic_keys = ruler.rules.prioritize == "dynamic"
        self.reports: Reports[Reported] | None = None

    def report(self, s: Simulation, number: int) -> None:
        assert self.reports is not None
        self.reports.keep(number, reported_columns(s))

    def begin(self, s: Simulation) -> None:
        """Take what instances report before the first event."""
        self.simulation = s
        self.reports = Reports(s.options.engine.views, reported_columns(s)) if s.options.engine.views else None

    def _look(self, s: Simulation) -> Look:
        return look_at_simulation(s, len(self.ruler.notes))

    def _front_look(self, s: Simulation, hook: str = "") -> Look:
        reports = self.reports if s.options.engine.views.hooks in ("front_end", hook) else None
        return self._look(s) if reports is None else reported_look(s, reports.arrived(s.now_s))

    def _columns(self, s: Simulation) -> Reported:
        """The columns that compiled rules see."""
        reports = self.reports if s.options.engine.views.hooks == "front_end" else None
        return reported_columns(s) if reports is None else reports.arrived(s.now_s)

    def admit(self, s: Simulation, r: Request) -> str | None:
        look = self._front_look(s)
        if self.ruler.rules.admit == "compiled":
            return None if self.compiled.admits(look.columns["queued_tokens"]) else "policy"
        return None if self.ruler.admit(look, r.id) else "policy"

    def route_prefill(self, s: Simulation, r: Request) -> int:
        if self.ruler.rules.route_prefill in COMPILED_ROUTES:
            return self.compiled.route(s, self._columns(s), self.ruler.rules.route_prefill, "prefill")
        look = self._front_look(s)
        if "route_prefill" in self.overrides:
            cached = cached_in_simulation(s, r)
            return self.ruler.route_prefill(look, r.id, r.emitted, cached, prefills_in_simulation(s, r, cached))
        able = [i for i, role in enumerate(look.roles) if role in ("mixed", "prefill")]
        if any(len(i.group) > 1 for i in s.instances if i.spec.role in ("mixed", "prefill")):
            return least_waiting(look, able)
        return min(able, key=lambda i: (look.columns["queued_tokens"][i], look.columns["running"][i], i))

    def fetch_prefix(self, s: Simulation, r: Request) -> int:
        return self.ruler.fetch_prefix(self._front_look(s), r.id, cached_in_simulation(s, r))

    def route_decode(self, s: Simulation, r: Request) -> int | str:
        if self.ruler.rules.route_decode in COMPILED_ROUTES:
            return self.compiled.route(s, self._columns(s), self.ruler.rules.route_decode, "decode")
        look = self._front_look(s)
        if "route_decode" in self.overrides:
            return self.ruler.route_decode(look, r.id, r.emitted, cached_in_simulation(s, r))
        able = [i for i, role in enumerate(look.roles) if role in ("mixed", "decode")]
        if any(len(i.group) > 1 for i in s.instances if i.spec.role in ("mixed", "decode")):
            return least_waiting(look, able)
        return min(able, key=lambda i: (look.columns["kv_tokens"][i] + look.columns["incoming_kv_tokens"][i], i))

    def prioritize(self, s: Simulation, queue: Sequence[Request]) -> list[float]:
        rule, known = self.ruler.rules.prioritize, [float(r.input_tokens) for r in queue]
        if rule == "priority":
            assert s.workload.priority is not None
            known = [-float(s.workload.priority[r.id]) for r in queue]
        elif rule == "predicted":
            known = [self._remaining(s, r) for r in queue]
        return self.ruler.prioritize(self._look(s), [r.id for r in queue], known)

    def _remaining(self, s: Simulation, r: Request) -> float:
        """Tokens that are predicted, asked anew when the request has got to its next stride."""
        stride = r.emitted // STRIDE
        if self.predicted.get(r.id, (-1, 0.0))[0] != stride:
            ended = sum(other.output_tokens for other in s.requests if other.state == FINISHED)
            self.predicted[r.id] = stride, expected_tokens(self.ruler.rules, r.id, stride * STRIDE, ended)
        return self.predicted[r.id][1]

    def batching(self, s: Simulation, i: Instance) -> tuple[int, str, int]:
        return self.ruler.batching(self._look(s), i.id)

    def split_at(self, s: Simulation, r: Request) -> int:
        return self.ruler.split_at(self._front_look(s), r.id, r.input_tokens)

    def decide(self, s: Simulation, i: Instance) -> Sequence[tuple[Any, ...]]:
        return self.ruler.decide(self._look(s), i.id)

    def on_tick(self, s: Simulation, tick: int) -> Sequence[tuple[Any, ...]]:
        return self.ruler.on_tick(self._front_look(s, "on_tick"))

    def select(self, s: Simulation, i: Instance) -> Sequence[int]:
        return self.ruler.select(self._look(s), i.id, [r.id for r in i.running])

    def on_finish(self, s: Simulation, r: Request) -> Sequence[tuple[Any, ...]]:
        return self.ruler.on_finish(self._front_look(s), r.id)

    def on_call_end(self, s: Simulation, r: Request) -> Retention:
        return self.ruler.on_call_end(self._look(s), r.id)

    def prefetch(self, s: Simulation, r: Request) -> int:
        return self.ruler.prefetch(self._front_look(s), r.id, r.instance)

    def on_failure(self, s: Simulation, r: Request) -> str | None:
        return self.ruler.on_failure(self._front_look(s), r.id)

    def span(self, s: Simulation, r: Request) -> SpanRow | None:
        tokens = r.input_tokens + r.emitted
        answer = self.ruler.span(self._look(s), r.id, tokens)
        return span_row(answer, tokens, s.options.block_tokens, lambda i: s.instances[i].role == MIXED, ValueError)

    def reconfigure(self, s: Simulation, i: Instance) -> bool:
        return self.ruler.reconfigure(self._look(s), i.id)

    def ask(self, hook: str, argument: int) -> Any:
        assert hook == "victim"
        i = self.simulation.instances[argument]
        return self.ruler.victim(self._look(self.simulation), i.id, [r.id for r in i.running + i.prefilling])


def least_waiting(look: Look, able: list[int]) -> int:
    """The framework's default where ranks are instances, written a second time."""
    waiting = [sum(look.columns[name][i] for name in ("queued", "incoming", "swapped")) for i in able]
    running = [look.columns["running"][i] + look.columns["prefilling"][i] for i in able]
    return min((4 * ahead + running_too, i) for ahead, running_too, i in zip(waiting, running, able, strict=True))[1]


# the compiled engine


def front_look(cluster: Cluster) -> Look:
    """As `reported_look`."""
    instances, ids = cluster.instances, np.arange(len(cluster.requests.input_tokens))
    columns = {name: getattr(instances, name).tolist() for name in COLUMNS[:-1]}
    columns["changing"] = instances.changing().astype(np.int64).tolist()
    known = [(int(r), int(tokens), 0) for r, tokens in zip(ids, cluster.requests.generated(ids), strict=True)]
    more, roles = (
        [getattr(instances, name).astype(float).tolist() for name in names]
        for names in (_REPORTED_COLUMNS, _ROLE_COLUMNS)
    )
    return Look(cluster.now_s, _roles(cluster), columns, [known], (more, roles), pools=_pools(cluster))


def _roles(cluster: Cluster) -> list[str]:
    """The name of each instance's role."""
    prefill, decode = set(cluster.prefill.ids.tolist()), set(cluster.decode.ids.tolist())
    return [ROLE_NAMES[PREFILL * (i in prefill) + DECODE * (i in decode)] for i in range(len(cluster.instances))]


def look_at_cluster(cluster: Cluster, asked: int) -> Look:
    """After so many questions."""
    instances, count = cluster.instances, len(cluster.instances)
    columns = {name: getattr(instances, name).tolist() for name in COLUMNS[:-1]}
    columns["changing"] = instances.changing().astype(np.int64).tolist()
    running = [cluster.decoding(i) for i in range(count)]
    ids = np.concatenate(running)
    cells = zip(
        ids.tolist(),
        *(of(ids).tolist() for of in (cluster.requests.generated, cluster.requests.kv_tokens)),
        strict=True,
    )
    decoding = [list(itertools.islice(cells, len(there))) for there in running]
    rest = rest_in_cluster(cluster, asked, ids.tolist()) if is_deep(asked) else ()
    seats, pools = instances.max_batch.tolist(), _pools(cluster)
    drafts = instances.most_drafts.tolist()
    return Look(cluster.now_s, _roles(cluster), columns, decoding, rest, seats, pools, drafts)


def _pools(cluster: Cluster) -> list[int]:
    """As `pools_in_simulation`."""
    return [pool.instances * (pool.role != "off" and pool.group == 1) for pool in cluster.spec.pools]


def rest_in_cluster(cluster: Cluster, asked: int, running: list[int]) -> tuple[Any, ...]:
    """As `rest_in_simulation`."""
    count = len(cluster.instances)
    prefilling, queued = ([of(i).tolist() for i in range(count)] for of in (cluster.prefilling, cluster.queued))
    listed = [*itertools.chain(*queued, *prefilling), *running]
    more = [getattr(cluster.instances, name).astype(float).tolist() for name in MORE_COLUMNS]
    about = [[float(getattr(cluster.requests, name)[r]) for name in REQUEST_COLUMNS] for r in listed]
    residents = [*zip(*(column.tolist() for column in cluster.residents(cluster.decode)), strict=True)]
    ids = np.arange(len(cluster.requests.input_tokens))
    ages_s = np.nan_to_num(cluster.requests.age_s(ids), nan=-1.0).tolist()
    states = [*zip(cluster.requests.states(ids), ages_s, strict=True)]
    whole = cluster.suspended.tolist(), states
    return prefilling, queued, whole, residents, *_times(cluster, asked), more, about


def _cached(request: RequestView, cluster: Cluster) -> list[int]:
    return [int(tokens) for tokens in cluster.instances.cached_tokens(request)]


class _Ruled(Policy):
    ruler: Ruler

    def look(self, cluster: Cluster) -> Look:
        if isinstance(cluster._engine, ReportedInspection):
            return front_look(cluster)
        return look_at_cluster(cluster, len(self.ruler.notes))


def _admit(self: _Ruled, request: RequestView, cluster: Cluster) -> bool | str:
    return True if self.ruler.admit(self.look(cluster), request.id) else "policy"


def _route_prefill(self: _Ruled, request: RequestView, cluster: Cluster) -> int:
    prefill_s = cluster.instances.prefill_s(request, chunk_tokens=piece(request.id)).tolist()
    cached = _cached(request, cluster)
    return self.ruler.route_prefill(self.look(cluster), request.id, request.generated, cached, prefill_s)


def _fetch_prefix(self: _Ruled, request: RequestView, cluster: Cluster) -> int:
    return self.ruler.fetch_prefix(self.look(cluster), request.id, _cached(request, cluster))


def _route_decode(self: _Ruled, request: RequestView, cluster: Cluster) -> int | str:
    return self.ruler.route_decode(self.look(cluster), request.id, request.generated, _cached(request, cluster))


def _prioritize(self: _Ruled, queue: np.ndarray[Any, Any], cluster: Cluster) -> np.ndarray[Any, Any]:
    rule, known = self.ruler.rules.prioritize, cluster.requests.input_tokens[queue]
    if rule == "priority":
        known = -cluster.requests.priority[queue]
    elif rule == "predicted":
        known = cluster.remaining_tokens(queue)
    return np.array(self.ruler.prioritize(self.look(cluster), queue.tolist(), known.astype(float).tolist()))


def _batching(self: _Ruled, instance: int, cluster: Cluster) -> Plan:
    return _plan(*self.ruler.batching(self.look(cluster), int(instance)))


def _plan(budget: int, mode: str, percent: int) -> Plan:
    return Plan(budget, mode, percent or None)  # type: ignore[arg-type]


def _split_at(self: _Ruled, request: RequestView, cluster: Cluster) -> int:
    return self.ruler.split_at(self.look(cluster), request.id, request.input_tokens)


def _on_tick(self: _Ruled, cluster: Cluster) -> Iterable[Action]:
    return [_action(action, cluster.spec.pools) for action in self.ruler.on_tick(self.look(cluster))]


def _decide(self: _Ruled, instance: int, cluster: Cluster) -> Iterable[Action]:
    return [_action(action, cluster.spec.pools) for action in self.ruler.decide(self.look(cluster), int(instance))]


def _victim(self: _Ruled, instance: int, candidates: Integers, cluster: Cluster) -> int:
    return self.ruler.victim(self.look(cluster), int(instance), candidates.tolist())


def _select(self: _Ruled, instance: int, decoding: Integers, cluster: Cluster) -> Iterable[int]:
    return self.ruler.select(self.look(cluster), int(instance), decoding.tolist())


def _on_finish(self: _Ruled, request: RequestView, cluster: Cluster) -> Iterable[Action]:
    return [_action(action, cluster.spec.pools) for action in self.ruler.on_finish(self.look(cluster), request.id)]


def _on_call_end(self: _Ruled, request: RequestView, cluster: Cluster) -> Retain | None:
    answer = self.ruler.on_call_end(self.look(cluster), request.id)
    if answer.rank == NO_RANK:
        return None
    return Retain(answer.ttl_s, answer.rank, answer.prefetch_s, None if answer.move_to < 0 else answer.move_to)


def _prefetch(self: _Ruled, request: RequestView, cluster: Cluster) -> int:
    return self.ruler.prefetch(self.look(cluster), request.id, int(cluster.requests.instance[request.id]))


def _on_failure(self: _Ruled, request: RequestView, cluster: Cluster) -> Recovery | None:
    return self.ruler.on_failure(self.look(cluster), request.id)


def _span(self: _Ruled, request: RequestView, cluster: Cluster) -> Span | None:
    return self.ruler.span(self.look(cluster), request.id, request.input_tokens + request.generated)


def _reconfigure(self: _Ruled, instance: int, cluster: Cluster) -> bool:
    return self.ruler.reconfigure(self.look(cluster), int(instance))


_KINDS: dict[str, Any] = {
    "migrate": Migrate,
    "seats": SetMaxBatch,
    "drafts": SetDrafts,
    "budget": SetTokenBudget,
    "preempt": Preempt,
    "resume": Resume,
    "cancel": Cancel,
    "requeue": Requeue,
}


def _action(action: tuple[Any, ...], pools: Sequence[PoolSpec]) -> Action:
    kind, *rest = action
    if kind == "role":
        return SetRole(rest[0], rest[1], _plan(*rest[2]) if rest[2] else None)
    if kind == "scale":
        return Scale(pools[rest[0]].name, rest[1])
    made: Action = _KINDS[kind](*rest)
    return made


def _times(cluster: Cluster, asked: int) -> Times:
    count = len(cluster.instances)
    decoding = np.concatenate([cluster.decoding(i) for i in range(count)])
    return (
        cluster.instances.step_s().tolist(),
        [stream[list(_SHARES)].tolist() for stream in cluster.streams_s(asked % count)],
        cluster.migrating(decoding).tolist(),
    )


_METHODS: dict[str, Callable[..., Any]] = {
    "admit": _admit,
    "route_prefill": _route_prefill,
    "fetch_prefix": _fetch_prefix,
    "route_decode": _route_decode,
    "prioritize": _prioritize,
    "batching": _batching,
    "split_at": _split_at,
    "decide": _decide,
    "victim": _victim,
    "select": _select,
    "on_finish": _on_finish,
    "on_call_end": _on_call_end,
    "prefetch": _prefetch,
    "span": _span,
    "reconfigure": _reconfigure,
    "on_failure": _on_failure,
    "on_tick": _on_tick,
}


def ruled_policy(ruler: Ruler) -> Policy:
    """A policy whose class defines exactly the hooks that the ruler rules."""
    rules = ruler.rules
    members: dict[str, Any] = {name: _METHODS[name] for name in rules.overridden}
    if rules.route_prefill in COMPILED_ROUTES:
        members["route_prefill"] = COMPILED_ROUTES[rules.route_prefill].prefill
    if rules.route_decode in COMPILED_ROUTES:
        members["route_decode"] = COMPILED_ROUTES[rules.route_decode].decode
    if rules.admit == "compiled":
        members["admit"] = COMPILED_ADMIT
    members["compiled_params"] = COMPILED_PARAMS
    members["tick_s"] = ruler.rules.tick_s or None
    members["changes_roles"] = ruler.rules.roles + ruler.rules.scales > 0
    members["roles"] = NAMES_OF_ROLES
    members["shares_gpus"] = ruler.rules.shares
    members["dynamic_keys"] = ruler.rules.prioritize == "dynamic"
    policy = type("Ruled", (_Ruled,), members)()
    policy.ruler = ruler
    return policy
