"""One run of the reference engine: its requests, instances, events and clock."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Sequence

from framework.codes import (
    ARRIVAL,
    COPY_END,
    DECODE,
    FAULT,
    GATEWAY,
    GIVE_UP,
    MIXED,
    OFF,
    PIN_END,
    PREFILL,
    REPORT,
    ROLE_CHANGE,
    SCHEDULE,
    TICK,
)
from framework.reference.cache import BlockCache, Cache, Store
from framework.reference.copies.under_way import Channel, Link
from framework.reference.gateway.gate import gate_of
from framework.reference.hooks.base import Hooks
from framework.reference.options import Options, Spec, StepTime
from framework.reference.spans.span import Spans
from framework.reference.state import FINISHED, UNSENT, Instance, Postponed, Request
from framework.workload import Workload, block_names

FAR_OFF = (ARRIVAL, COPY_END, GIVE_UP, GATEWAY)  # kinds of events before which ticks alone may pass for long
NOT_AWAITED = (TICK, ROLE_CHANGE, FAULT, REPORT, PIN_END)  # kinds of events that alone do not keep a run going


class Simulation:
    """The state of one run, and the few operations on it that all sections of SEMANTICS.md use."""

    def __init__(
        self, workload: Workload, specs: Sequence[Spec], options: Options, timing: StepTime, hooks: Hooks
    ) -> None:
        self.workload = workload
        self.options = options
        self.timing = timing
        self.hooks = hooks
        self.shares_early = options.shares_blocks
        self.hash_tokens = workload.hash_block_tokens if options.prefix_cache and workload.has_prefixes else 0
        if self.shares_early:
            self.hash_tokens = options.block_tokens
            self._names, self._name_offsets = block_names(workload, options.block_tokens)
        per_id, kind = self.hash_tokens // options.block_tokens, BlockCache if self.shares_early else Cache
        begin_s = float(workload.arrival_s[0]) if options.clients is None else 0.0
        self.instances = [
            Instance(k, spec, kind(spec.total_blocks, per_id), watermark, options.prefill_percent, begin_s)
            for k, spec in enumerate(specs)
            for watermark in [math.floor(options.watermark * spec.total_blocks)]
        ]
        pool_begins = {spec.pool: k for k, spec in reversed(list(enumerate(specs)))}
        for i in self.instances:
            first = i.id - (i.id - pool_begins[i.spec.pool]) % i.spec.group
            i.group = self.instances[first : first + i.spec.group]
            i.most_drafts = options.drafts.depth
            i.ratio_set = (options.engine.output_reserve.ratio, 0)
        if self.hash_tokens:
            self._build_stores()
        self.requests = [self._read_request(k) for k in range(len(workload))]
        self.followers = _followers(workload)
        self.awaits = Counter(itertools.chain.from_iterable(self.followers.values()))
        self.opener = workload.openers.tolist()
        self.programs = _programs(self.opener)
        self.gate = gate_of(options.engine.gateway, workload, options.engine.views)
        self.channels: dict[tuple[int, int], Channel] = {}  # open channels by source and target
        self.links_changed = False  # a copy has ended
        self.now_s = self.intake_free_s = self.source_free_s = 0.0  # source_free_s: of weights, for the next start
        self.heap: list[tuple[float, int, int, int]] = []  # time, kind, id, serial number
        self.withdrawn: set[int] = set()  # serial numbers
        self.outstanding = 0  # events in the heap that are not ticks, changes of role or withdrawn
        self.far_off = 0  # arrivals and ends of copies among the outstanding events
        self.quiet_ticks = 0  # consecutive ticks with nothing between them, and only far-off events to follow
        self.order: list[tuple[float, int, int]] = []  # events processed, except turns to schedule: time, kind, id
        self.sessions: list[Request] = []  # first turns that no client has taken up yet
        self.present: dict[int, Request] = {}  # requests that have arrived and not ended, by number
        self.ended: list[Request] = []  # ended requests in the order of their ends
        self.notices: list[tuple[Request, bool]] = []  # see `note`; once more of one that has ended: its KV has moved
        self.finished_seen = 0  # number of these finished requests that the policy has seen
        self.sent: list[Request] = []  # arrived requests, in order; a retry adds its request again
        self.parked: list[Request] = []  # requests to be routed once each phase has an instance
        self.spans = Spans()
        self.trends = {PREFILL: 0, DECODE: 0}  # whether the number of a phase's instances last grew, 1, or shrank, -1
        self.postponed: list[Postponed] = []  # decisions that await the turn of an instance, in order
        self.step_log: list[tuple[float, float, int, int, int, int, int, int, int]] = []  # see `count_step`
        self.token_log: list[tuple[int, int, float, int, int, int]] = []  # see `stop_decoding`
        self.crash_log: list[tuple[float, float, int, int, float]] = []  # see `framework.result.CRASHED`
        self.drops: list[tuple[int, int, int, int]] = []  # see `framework.result.DROPPED`
        self.marks_s: Sequence[float] = ()  # times at which the totals of instances are recorded
        self.marks: list[list[dict[str, float]]] = []  # marks that have passed
        self.faults = self.pushed = self.queue_number = self.admissions = self.preemptions = self.freed_early = 0
        self.role_changes = self.timed_starts = 0  # of any instance

    def _read_request(self, k: int) -> Request:
        w, tokens, ids = self.workload, int(self.workload.input_tokens[k]), []
        if self.shares_early:
            ids = self._names[self._name_offsets[k] : self._name_offsets[k + 1]].tolist()
        elif self.hash_tokens:
            ids = w.hash_ids_of(k)[: tokens // self.hash_tokens].tolist()
        return Request(k, tokens, int(w.output_tokens[k]), ids)

    def _build_stores(self) -> None:
        for tier in self.options.tiers:
            common = Store(*tier.store)
            for i in self.instances:
                i.stores.append(common if tier.shared else Store(*tier.store))
                i.hit_tokens.append(0)
                i.loaded_bytes.append(0.0)
        for i in self.instances:
            if i.stores and i.stores[0].on_eviction:
                i.cache.write_back = functools.partial(i.keep, 0)

    # --- events ---

    def push(self, time_s: float, kind: int, id: int) -> int:
        """Announce an event; return its serial number."""
        self.pushed += 1
        self.outstanding += kind not in NOT_AWAITED
        self.far_off += kind in FAR_OFF
        heapq.heappush(self.heap, (time_s, kind, id, self.pushed))
        return self.pushed

    def withdraw(self, serial: int) -> None:
        """Withdraw the end of a copy."""
        self.withdrawn.add(serial)
        self.outstanding -= 1
        self.far_off -= 1

    def drop_events(self, kind: int, id: int) -> None:
        """Drop the end of a step."""
        serials = [serial for _, a, b, serial in self.heap if (a, b) == (kind, id) and serial not in self.withdrawn]
        self.withdrawn.update(serials)
        self.outstanding -= len(serials)

    @property
    def goes_on(self) -> bool:
        """Whether anything is to come except ticks, changes of role, and faults."""
        if self.outstanding > 0 or any(i.down or i.hung or i.link_share == 0 for i in self.instances):
            return True
        return any(r.loading for i in self.instances for r in i.pinned)

    @property
    def unserved(self) -> int:
        """Phases of which no instance takes work."""
        served = OFF
        for i in self.instances:
            served |= i.role
        return MIXED & ~served

    def wake(self, i: Instance) -> None:
        """Let i, for which something changed, schedule a step: at this time if it is idle, else at the end of
        its step.
        """
        i.changed = True
        if not (i.busy or i.group_steps) or i.may_prefill:
            self.await_turn(i)

    def queue_of_arrivals(self, i: Instance) -> list[tuple[float, int, Request]]:
        """The list for requests that come to i now: its queue or its inbox."""
        return i.inbox if self.options.asynchronous else i.waiting

    def await_turn(self, i: Instance) -> None:
        """Let i schedule once all events of this time have been processed."""
        if not i.woken and not i.hung:
            i.woken = True
            self.push(self.now_s, SCHEDULE, i.id)

    # --- marks ---

    @property
    def next_mark_s(self) -> float:
        """The next time at which totals are recorded."""
        return self.marks_s[len(self.marks)] if len(self.marks) < len(self.marks_s) else math.inf

    def take_mark(self) -> None:
        """Record the totals as of now, after all events of this time: steps that have ended, time up to now."""
        rows = []
        for i in self.instances:
            steps = [step.start_s for step in (i.step, i.prefill_step) if step is not None]
            fresh_s = self.now_s - i.counted_s if steps else 0.0
            busy_s = i.totals["busy_s"] + fresh_s
            rows.append({**i.totals, "busy_s": busy_s, "since_s": min([self.now_s, *steps])})
        self.marks.append(rows)

    # --- quantities ---

    def blocks_for(self, tokens: int) -> int:  # blocks that hold `tokens` tokens
        return -(-tokens // self.options.block_tokens)

    def blocks_of(self, i: Instance, tokens: int) -> int:
        """Blocks that one request of `tokens` KV tokens has on i."""
        paged = self.blocks_for(tokens) + i.spec.state_blocks
        return paged if i.spec.reserve_blocks is None else i.spec.reserve_blocks

    def fits(self, i: Instance, r: Request) -> bool:
        """Whether i could ever admit r at its peak KV."""
        return self.blocks_for(r.input_tokens + r.output_tokens - 1) + i.spec.state_blocks <= i.largest_kv

    def recomputes_here(self, r: Request) -> bool:
        """Whether r, which waits or prefills, is recomputed on the instance of its decode."""
        comes_again = self.options.first_token != "prefill" and r.first_token_pending
        return self.options.engine.recompute == "there" and (r.emitted > 0 or comes_again) and not r.rerouted

    def gives_way(self, i: Instance) -> bool:
        """Whether requests that come to i with KV wait for those that are recomputed there."""
        return any(self.recomputes_here(r) for _, _, r in i.waiting)

    def give_admission_number(self, r: Request) -> None:
        """Number the admission of r; the request with the largest number is preempted first."""
        self.admissions += 1
        r.admission = self.admissions

    def links_of(self, channel: Channel) -> list[Link]:
        """The links of a channel's copies: both sides, and the fabric if its bandwidth is limited."""
        fabric = [] if self.options.fabric_bytes_s is None else [2 * len(self.instances)]
        return [channel.source, len(self.instances) + channel.target, *fabric]

    def link_bytes_s(self, link: Link) -> float:
        """Bandwidth of a link."""
        if link == 2 * len(self.instances) and self.options.fabric_bytes_s is not None:
            return self.options.fabric_bytes_s
        i = self.instances[link % len(self.instances)]
        return i.spec.bandwidth_bytes_s * i.link_share

    # --- ends ---

    def note(self, r: Request, has_ended: bool) -> None:
        """Note that r has ended, and that its KV has come free; else, that it needs no pin of those before it."""
        if "on_call_end" in self.hooks.overrides and self.hash_tokens:
            self.notices.append((r, has_ended))

    def awaited_by(self, r: Request) -> list[Request]:
        """The requests that r waited for."""
        return [self.requests[k] for k, later in self.followers.items() if r.id in later]

    def end_request(self, r: Request, state: int, reason: str = "") -> None:
        """End r: what waits for it alone, or the next session of its client, is to come."""
        r.state, r.reason, r.end_s = state, reason, self.now_s
        self.ended.append(r)
        self.present.pop(r.id, None)
        if math.isnan(r.start_s):
            self.note(r, has_ended=False)
        for later in self.followers.get(r.id, ()):
            self.awaits[later] -= 1
            if not self.awaits[later]:
                think_s = 0.0 if self.workload.think_s is None else float(self.workload.think_s[later])
                self.push(self._next_s(r, think_s), ARRIVAL, later)
        program = self.programs[self.opener[r.id]]
        program.remove(r.id)
        if self.sessions and not program:
            self.push(self._next_s(r, 0.0), ARRIVAL, self.sessions.pop(0).id)

    def announce_next_beside(self, r: Request) -> None:
        """r, first of a closed load's program: its next first call comes as long after it as recorded."""
        if self.options.clients is not None and self.waits_for_none(r.id):
            beside = [k for k in self.programs[self.opener[r.id]] if k > r.id and self.waits_for_none(k)]
            if beside:
                gap_s = float(self.workload.arrival_s[beside[0]]) - float(self.workload.arrival_s[r.id])
                self.push(self.now_s + gap_s, ARRIVAL, beside[0])

    def opens(self, r: int) -> bool:
        """Whether a request is the first of its program."""
        return int(self.opener[r]) == r

    def waits_for_none(self, r: int) -> bool:
        """Whether a request waits for the end of no other."""
        return self.workload.previous is None or int(self.workload.previous[r]) < 0

    def _next_s(self, r: Request, think_s: float) -> float:
        """The time of the next request of r's client, after r has ended. The client waits first if r was rejected. Once
        the load is over it neither waits nor thinks.
        """
        if r.state == UNSENT:
            return self.now_s
        away_s = 0.0 if r.state == FINISHED else self.options.backoff_s
        return self.now_s + (think_s + self.options.request_s) + away_s

    @property
    def gave_way(self) -> int:
        """How many requests have given up their KV for others so far: preempted ones, and deferred frees done early."""
        return self.preemptions + self.freed_early

    @property
    def finished(self) -> list[Request]:
        """Finished requests, in the order of their ends."""
        return [r for r in self.ended if r.state == FINISHED]


def _programs(openers: Sequence[int]) -> dict[int, list[int]]:
    """The calls of each program, by its first: those that have not ended."""
    programs: dict[int, list[int]] = {}
    for call, first in enumerate(openers):
        programs.setdefault(first, []).append(call)
    return programs


def _followers(workload: Workload) -> dict[int, list[int]]:
    """The requests that wait for the end of each one that any waits for."""
    found: dict[int, list[int]] = {}
    links = [] if workload.previous is None else list(enumerate(workload.previous.tolist()))
    links += [] if workload.joins is None else workload.joins.tolist()
    for later, before in links:
        if before >= 0:
            found.setdefault(before, []).append(later)
    return found
