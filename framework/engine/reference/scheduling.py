"""The slow, obvious engine: every decode step is an event, every token has a time.

A second implementation of framework/engine/SEMANTICS.md that shares no code with the compiled engine. It keeps plain
Python objects and lists, so that it can be read beside that page line by line.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any

from framework.errors import PolicyError
from framework.workload import Workload
from tests.helpers.reference_parts import (
    PHASES,
    Cache,
    Instance,
    Links,
    Migration,
    Options,
    Request,
    Spec,
    Step,
    StepTime,
    Store,
)

STEP_END, PREFILL_END, TRANSFER_END, ROLE_CHANGE, TICK, ARRIVAL = range(6)
FINISHED, REJECTED, FAILED = range(1, 4)
Chunk = tuple[Request, int, int]  # request, prefix, tokens


class Hooks:
    """What a policy decides. `overrides` names the optional hooks that are asked at all."""

    overrides: frozenset[str] = frozenset()
    tick_s: float | None = None
    dynamic_keys: bool = False

    def admit(self, simulation: Simulation, r: Request) -> str | None:
        """Reason of a rejection, None to accept."""
        return None

    def route_prefill(self, simulation: Simulation, r: Request) -> int:
        return 0

    def fetch_prefix(self, simulation: Simulation, r: Request) -> int:
        """Instance that sends a prefix ahead, -1: none."""
        return -1

    def route_decode(self, simulation: Simulation, r: Request) -> int | str:
        """An instance, or the reason of a rejection."""
        return 0

    def split_at(self, simulation: Simulation, r: Request) -> int:
        return 0

    def prioritize(self, simulation: Simulation, r: Request) -> float:
        return 0.0

    def batching(self, simulation: Simulation, i: Instance) -> tuple[int, str, int]:
        """Token budget, mode and prefill percent (0: as before)."""
        return i.token_budget, i.mode, 0

    def on_tick(self, simulation: Simulation) -> Sequence[tuple[Any, ...]]:
        """In order: ("migrate", request, instance), ("budget", instance, tokens) or ("role", instance, role, plan)."""
        return ()


class Simulation:
    def __init__(
        self, workload: Workload, specs: Sequence[Spec], options: Options, timing: StepTime, hooks: Hooks
    ) -> None:
        self.workload = workload
        self.options = options
        self.timing = timing
        self.hooks = hooks
        self.hash_tokens = workload.hash_block_tokens if options.prefix_cache and workload.has_prefixes else 0
        per_id = self.hash_tokens // options.block_tokens
        self.instances = [
            Instance(k, spec, Cache(spec.total_blocks, per_id), watermark, options.prefill_percent)
            for k, spec in enumerate(specs)
            for watermark in [math.floor(options.watermark * spec.total_blocks)]
        ]
        if self.hash_tokens:
            self.build_stores()
        self.requests = [self.read_request(k) for k in range(len(workload))]
        self.links = Links(options.latency_s)
        self.now = 0.0
        self.heap: list[tuple[float, int, int, int]] = []  # time, kind, id, serial number
        self.pushed = self.enqueued = self.admitted = self.preempted = self.ended = 0
        self.withdrawn: set[int] = set()
        self.sessions: list[Request] = []  # first turns that no client has taken up yet
        self.intake_free = 0.0
        self.outstanding = 0  # events in the heap that are neither ticks, changes of role nor withdrawn
        self.order: list[tuple[float, int, int]] = []
        self.woken: list[Instance] = []  # idle instances that begin an iteration once the present event is done with

    def read_request(self, k: int) -> Request:
        w, p, ids = self.workload, int(self.workload.input_tokens[k]), []
        if self.hash_tokens and w.hash_offsets is not None:
            ids = [int(x) for x in w.hash_ids[w.hash_offsets[k] : w.hash_offsets[k + 1]]][: p // self.hash_tokens]
        return Request(k, p, int(w.output_tokens[k]), ids)

    def build_stores(self) -> None:
        for tier in self.options.tiers:
            common = Store(tier.blocks)
            for i in self.instances:
                i.stores.append(common if tier.shared else Store(tier.blocks))
                i.hit_tokens.append(0)
                i.loaded_bytes.append(0.0)

    # events

    def push(self, time: float, kind: int, id: int) -> int:
        self.pushed += 1
        self.outstanding += kind not in (TICK, ROLE_CHANGE)
        heapq.heappush(self.heap, (time, kind, id, self.pushed))
        return self.pushed

    def withdraw(self, serial: int) -> None:
        self.withdrawn.add(serial)
        self.outstanding -= 1

    def run(self) -> Simulation:
        opening = [r for r in self.requests if self.workload.previous is None or self.workload.previous[r.id] < 0]
        if self.options.clients is None:
            for r in opening:
                self.push(float(self.workload.arrival_s[r.id]) + self.options.request_s, ARRIVAL, r.id)
        else:
            self.sessions = opening
            for _ in range(min(self.options.clients, len(opening))):
                self.open_session(0.0)
        if self.hooks.tick_s is not None:
            self.push(self.hooks.tick_s, TICK, 1)
        while self.ended < len(self.requests):
            if self.outstanding == 0:
                self.stall()
                break
            time, kind, id, serial = heapq.heappop(self.heap)
            if serial not in self.withdrawn:
                self.outstanding -= kind not in (TICK, ROLE_CHANGE)
                self.advance(time)
                self.order.append((time, kind, id))
                self.handle(kind, id)
                while self.woken:
                    self.begin_woken(self.woken.pop(0))
        return self

    def stall(self) -> None:
        for r in self.requests:
            if r.state == 0:
                r.state, r.reason, r.end_s = FAILED, "stalled", self.now

    def advance(self, time: float) -> None:
        for i in self.instances:
            i.totals["kv_block_s"] += i.cache.used * (time - self.now)
            i.totals["kv_token_s"] += i.kv_tokens * (time - self.now)
        self.now = time

    def handle(self, kind: int, id: int) -> None:
        if kind == STEP_END:
            self.step_end(self.instances[id])
        elif kind == PREFILL_END:
            self.prefill_end(self.instances[id])
        elif kind == TRANSFER_END:
            self.transfer_end(self.requests[id])
        elif kind == ARRIVAL:
            self.arrival(self.requests[id])
        elif kind == ROLE_CHANGE:
            self.take_role(self.instances[id])
            self.poke(self.instances[id])
        else:
            assert self.hooks.tick_s is not None
            self.push((id + 1) * self.hooks.tick_s, TICK, id + 1)
            for action, a, b, *plan in self.hooks.on_tick(self):
                if action == "role":
                    self.set_role(self.instances[a], b, *plan)
                elif action == "migrate":
                    self.migrate(self.requests[a], self.instances[b])
                else:
                    self.instances[a].token_budget = b
                    self.poke(self.instances[a])

    # roles

    def set_role(self, i: Instance, role: str, plan: tuple[int, str, int] | None) -> None:
        after = PHASES[role]
        kept = i.before & after
        others = [j.accepts for j in self.instances if j is not i]
        if after == i.after or kept.union(*others) != {"prefill", "decode"}:
            return
        if i.change is not None:
            self.withdrawn.add(i.change)
        if i.off_since is not None:
            i.off_s += self.now - i.off_since
        i.accepts, i.after, i.plan, i.change = kept, after, plan, None
        i.off_since = None if i.before or i.after else self.now
        self.poke(i)
        if "prefill" not in kept:
            while i.waiting:
                self.reroute(i, min(i.waiting))

    def reroute(self, i: Instance, entry: tuple[float, int, Request]) -> None:
        i.waiting.remove(entry)
        r = entry[2]
        target = self.chosen("route_prefill", self.hooks.route_prefill(self, r), "prefill")
        if self.need(r) > target.largest_kv:
            self.end(r, FAILED, "kv")
            return
        target.waiting.append(entry)
        self.poke(target)

    def drained(self, i: Instance) -> None:
        delay = self.options.role_change_s if i.before else self.options.start_s
        if i.after <= i.before or delay == 0:
            self.take_role(i)
        else:
            i.change = self.push(self.now + delay, ROLE_CHANGE, i.id)

    def take_role(self, i: Instance) -> None:
        i.accepts = i.before = i.after
        i.change, i.changed = None, True
        if i.plan is not None:
            self.follow(i, i.plan)
        if not i.after:
            i.off_since = self.now
            i.cache.clear()

    def follow(self, i: Instance, plan: tuple[int, str, int]) -> None:
        i.token_budget, i.mode, percent = plan
        i.prefill_percent = percent or i.prefill_percent

    # arrival and end of a request

    def arrival(self, r: Request) -> None:
        if not r.taken_in:
            r.taken_in, r.arrival_s = True, self.now
            if self.options.intake_s > 0:
                self.intake_free = max(self.now, self.intake_free) + self.options.intake_s
                self.push(self.intake_free, ARRIVAL, r.id)
                return
        if r.p + r.n > self.options.max_context:
            self.end(r, REJECTED, "context")
            return
        if all(self.need(r) > i.largest_kv for i in self.instances):
            self.end(r, REJECTED, "kv")
            return
        reason = self.hooks.admit(self, r) if "admit" in self.hooks.overrides else None
        if reason is not None:
            self.end(r, REJECTED, reason)
            return
        self.place(r)

    def place(self, r: Request) -> None:
        i = self.chosen("route_prefill", self.hooks.route_prefill(self, r), "prefill")
        if self.need(r) > i.largest_kv:
            self.end(r, REJECTED, "kv")
            return
        if "fetch_prefix" in self.hooks.overrides and i.stores:
            source = self.hooks.fetch_prefix(self, r)
            if source >= 0 and self.fetch(r, self.instances[source], i):
                return
        self.enqueue(r, i)

    def fetch(self, r: Request, source: Instance, i: Instance) -> bool:
        """Copy to i the leading blocks that the source has beyond those that i has; False if there are none."""
        blocks = self.cached(source, r)[len(self.cached(i, r)) :]
        if blocks:
            r.fetch = i, blocks
            self.copy(r, source, i, len(blocks) * self.hash_tokens)
        return bool(blocks)

    def fetched(self, r: Request) -> None:
        assert r.fetch is not None
        (i, blocks), r.fetch = r.fetch, None
        for id in reversed(blocks):
            i.stores[0].keep(id)
        if "prefill" in i.accepts:
            self.enqueue(r, i)
        else:
            self.place(r)

    def enqueue(self, r: Request, i: Instance) -> None:
        if "split_at" in self.hooks.overrides:
            cut = self.hooks.split_at(self, r)
            r.cut = cut if cut < r.p else max(cut, r.p + 1)
        key = float(self.hooks.prioritize(self, r)) if "prioritize" in self.hooks.overrides else 0.0
        self.enqueued += 1
        i.waiting.append((key, self.enqueued, r))
        self.poke(i)

    def chosen(self, hook: str, index: int, phase: str) -> Instance:
        if not 0 <= index < len(self.instances) or phase not in self.instances[index].accepts:
            raise PolicyError(f"{hook} returned {index}")
        return self.instances[index]

    def end(self, r: Request, state: int, reason: str = "") -> None:
        r.state, r.reason, r.end_s = state, reason, self.now
        self.ended += 1
        w = self.workload
        if w.previous is not None and w.think_s is not None:
            for later in self.requests:
                if w.previous[later.id] == r.id:
                    self.push(self.now + float(w.think_s[later.id]) + self.options.request_s, ARRIVAL, later.id)
                    return
        if self.sessions:
            self.open_session(self.now)

    def open_session(self, time: float) -> None:
        """A client is free: it takes up the next session."""
        self.push(time + self.options.request_s, ARRIVAL, self.sessions.pop(0).id)

    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.options.block_tokens)

    def blocks_on(self, i: Instance, tokens: int) -> int:
        """Blocks that one request of so many KV tokens has on i."""
        return self.blocks(tokens) if i.spec.reserve_blocks is None else i.spec.reserve_blocks

    def need(self, r: Request) -> int:
        return self.blocks(r.p + r.n - 1)

    # iterations

    def poke(self, i: Instance) -> None:
        i.changed = True
        if (not i.busy or i.may_prefill) and i not in self.woken:
            self.woken.append(i)

    def begin_woken(self, i: Instance) -> None:
        if not i.busy:
            self.begin_iteration(i)
        elif i.may_prefill:
            self.begin_prefills(i)

    def begin_iteration(self, i: Instance) -> None:
        i.busy = True
        for r in list(i.decoding):
            if r.migration is not None and r.migration.ready:
                self.switch(i, r)
        for r in i.joined:
            self.number(r)
            i.take_in(r)
            if r.is_partial:
                i.prefilling.append(r)
            else:
                self.start_decoding(i, r)
        i.joined = []
        if i.before != i.after and i.change is None and i.drained:
            self.drained(i)
        self.ask_plan(i)
        i.changed = False
        self.set_gate(i)
        preempted = self.preempted
        i.dropped = False
        i.swap_bytes = 0.0
        form = {
            "decode_first": self.form_decode_first,
            "prefill_first": self.form_prefill_first,
            "mixed": self.form_mixed,
            "static": self.form_static,
            "unified": self.form_decode_first,
            "decode_only": self.form_decodes,
            "concurrent": self.form_concurrent,
        }
        decodes, chunks = form["decode_only" if i.beside else i.mode](i)
        if not i.waiting:
            i.gate = -1
        if decodes or chunks:
            self.start_step(i, decodes, chunks)
            self.send_ahead(i, chunks)
        else:
            i.busy = False
        if self.preempted > preempted:
            self.start_transfers(i)
            self.poke(i)

    def begin_prefills(self, i: Instance) -> None:
        """The prefill stream alone begins: decodes are under way."""
        self.ask_plan(i)
        self.set_gate(i)
        preempted = self.preempted
        i.dropped = False
        if i.mode == "concurrent":
            self.form_beside(i, barred=False)
        if not i.waiting:
            i.gate = -1
        if self.preempted > preempted:
            self.start_transfers(i)
            self.poke(i)

    def ask_plan(self, i: Instance) -> None:
        if i.changed and "batching" in self.hooks.overrides:
            self.follow(i, self.hooks.batching(self, i))
        if i.changed and self.hooks.dynamic_keys:
            self.renew_keys(i)

    def set_gate(self, i: Instance) -> None:
        if i.gate < 0 and i.waiting:
            i.gate = int(i.totals["decode_steps"]) + self.options.admission_wait_steps

    def renew_keys(self, i: Instance) -> None:
        i.waiting.sort()
        for k, (key, seq, r) in enumerate(i.waiting):
            if key > -math.inf:
                i.waiting[k] = (self.hooks.prioritize(self, r), seq, r)

    def form_decode_first(self, i: Instance) -> tuple[list[Request], list[Chunk]]:
        preempted = self.room(i)
        self.swap_in(i, preempted)
        spent = [sum(r.rank == k for r in i.decoding) * (1 + i.depth) for k in range(i.spec.ranks)]
        return list(i.decoding), self.chunks(i, spent, preempted)

    def form_concurrent(self, i: Instance) -> tuple[list[Request], list[Chunk]]:
        preempted = self.room(i)
        self.swap_in(i, preempted)
        self.form_beside(i, preempted)
        return list(i.decoding), []

    def form_beside(self, i: Instance, barred: bool) -> None:
        chunks = self.chunks(i, [0], barred)
        if chunks:
            self.start_prefills(i, chunks)

    def chunks(self, i: Instance, spent: list[int], preempted: bool) -> list[Chunk]:
        """Of those that prefill, in order, and of new ones unless this iteration preempted; `spent` of the budgets."""
        budget = i.token_budget // i.spec.ranks
        chunks: list[Chunk] = []
        for r in list(i.prefilling):
            size = min(budget, i.chunk_size(r.done))
            tokens = min(r.target - r.done, self.left(i, size, spent[r.rank], r.rank, chunks))
            if r in i.prefilling and tokens > 0:
                if not self.cover(i, r, r.done + tokens):
                    preempted = True
                    break
                chunks.append((r, r.done, tokens))
                spent[r.rank] += tokens
        preempted = preempted or i.dropped
        while not preempted and not i.swapped and self.admissible(i):
            r = min(i.waiting)[2]
            m = self.hash_tokens * len(self.cached(i, r))
            rank = i.coming_rank
            tokens = min(r.goal - m, self.left(i, min(budget, i.chunk_size(m)), spent[rank], rank, chunks))
            if tokens <= 0:
                break
            self.admit(i, m + tokens if i.mode == "unified" else r.goal)
            chunks.append((r, m, tokens))
            spent[rank] += tokens
        return chunks

    def left(self, i: Instance, size: int, spent: int, rank: int, chunks: list[Chunk]) -> int:
        """Tokens for one more chunk, where a step of `size` tokens has `spent` and these chunks already."""
        loads = self.loads(i, [chunk for chunk in chunks if i.spec.ranks == 1 or chunk[0].rank == rank])
        decodes = spent - sum(loads)
        return math.ceil((size - decodes) / i.spec.stages) - min(loads)

    def micro_batches(self, i: Instance, chunks: list[Chunk]) -> list[list[Chunk]]:
        """Each chunk goes to the micro-batch that has least."""
        dealt: list[list[Chunk]] = [[] for _ in range(i.spec.stages)]
        for chunk in chunks:
            min(dealt, key=lambda batch: sum(tokens for _, _, tokens in batch)).append(chunk)
        return dealt

    def loads(self, i: Instance, chunks: list[Chunk]) -> list[int]:
        return [sum(tokens for _, _, tokens in batch) for batch in self.micro_batches(i, chunks)]

    def cover(self, i: Instance, r: Request, tokens: int) -> bool:
        """Blocks for the first `tokens` tokens of a prefill; the last in order give way. False: r itself did."""
        if tokens <= r.covered:
            return True
        fresh = self.blocks_on(i, tokens) - self.blocks_on(i, r.covered)
        while fresh > i.cache.available:
            i.dropped = True
            last = i.prefilling[-1]
            self.preempt(i, last, waits_here=True)
            if last is r:
                return False
        i.cache.take(r.id, fresh)
        r.covered = tokens
        return True

    def form_decodes(self, i: Instance) -> tuple[list[Request], list[Chunk]]:
        self.swap_in(i, self.room(i))
        return list(i.decoding), []

    def form_static(self, i: Instance) -> tuple[list[Request], list[Chunk]]:
        if i.prefilling:
            chunks = self.part_of_batch(i)
            if chunks:
                return [], chunks
        preempted = self.room(i) or i.dropped
        self.swap_in(i, preempted)
        if i.decoding:
            return list(i.decoding), []
        while not preempted and not i.swapped and self.admissible(i):
            r = min(i.waiting)[2]
            self.admit(i, r.goal)
        return [], self.part_of_batch(i)

    def part_of_batch(self, i: Instance) -> list[Chunk]:
        chunks: list[Chunk] = []
        for r in list(i.prefilling):
            tokens = r.target - r.done
            if self.is_full(i, sum(chunk[2] for chunk in chunks), chunks, tokens):
                break
            if r not in i.prefilling or not self.cover(i, r, r.target):
                break
            chunks.append((r, r.done, tokens))
        return chunks

    def form_prefill_first(self, i: Instance) -> tuple[list[Request], list[Chunk]]:
        chunks = self.whole_prompts(i, 0, barred=False)
        if chunks:
            return [], chunks
        self.swap_in(i, self.room(i) or i.dropped)
        return list(i.decoding), []

    def form_mixed(self, i: Instance) -> tuple[list[Request], list[Chunk]]:
        preempted = self.room(i)
        self.swap_in(i, preempted)
        chunks = self.whole_prompts(i, len(i.decoding) * (1 + i.depth), barred=preempted)
        return list(i.decoding), chunks

    def whole_prompts(self, i: Instance, spent: int, barred: bool) -> list[Chunk]:
        chunks: list[Chunk] = []
        for r in list(i.prefilling):
            if r in i.prefilling and self.cover(i, r, r.target):
                chunks.append((r, r.done, r.target - r.done))
        spent += sum(tokens for _, _, tokens in chunks)
        while not barred and not i.dropped and not i.swapped and self.admissible(i):
            r = min(i.waiting)[2]
            tokens = r.goal - self.hash_tokens * len(self.cached(i, r))
            if self.is_full(i, spent, chunks, tokens):
                break
            self.admit(i, r.goal)
            chunks.append((r, r.done, tokens))
            spent += tokens
        return chunks

    def is_full(self, i: Instance, spent: int, chunks: list[Chunk], tokens: int) -> bool:
        """Whether a whole prompt is one too many; the first of a micro-batch never is."""
        return min(self.loads(i, chunks)) > 0 and tokens > self.left(i, i.token_budget, spent, 0, chunks)

    def cached(self, i: Instance, r: Request) -> list[int]:
        """Ids of the cached prefix that r can reference; at least one token is left to compute."""
        ids: list[int] = []
        for id in r.blocks:
            if id not in i.cache.references and not any(id in store.ids for store in i.stores):
                break
            ids.append(id)
        while ids and self.hash_tokens * len(ids) >= r.goal:
            ids.pop()
        return ids

    def admissible(self, i: Instance) -> bool:
        if not i.waiting or i.seats >= i.max_batch:
            return False
        if i.decoding and i.totals["decode_steps"] < i.gate:
            return False
        r = min(i.waiting)[2]
        ids = [id for id in self.cached(i, r) if id in i.cache.references]
        fresh = self.blocks_on(i, r.goal) - len(ids) * i.cache.blocks_per_id
        return i.cache.available - i.cache.idle_blocks(ids) - fresh >= i.watermark

    def admit(self, i: Instance, covered: int) -> None:
        """The head of the queue begins to prefill, with blocks for its first `covered` tokens."""
        entry = min(i.waiting)
        i.waiting.remove(entry)
        r = entry[2]
        ids = self.cached(i, r)
        present = [id for id in ids if id in i.cache.references]
        i.cache.reference(r.id, present)
        r.target, r.registered, r.done = r.goal, len(ids), self.hash_tokens * len(ids)
        r.covered = covered
        i.cache.take(r.id, self.blocks_on(i, covered) - len(present) * i.cache.blocks_per_id)
        self.load(i, r, [id for id in ids if id not in present])
        i.take_in(r)
        i.prefilling.append(r)
        self.number(r)
        if math.isnan(r.start_s):
            r.start_s, r.prefill_instance, r.cached_tokens = self.now, i.id, r.done

    def load(self, i: Instance, r: Request, ids: list[int]) -> None:
        """What is in stores alone comes into the cache."""
        tiers = [next(k for k, store in enumerate(i.stores) if id in store.ids) for id in ids]
        for k in sorted(set(tiers)):
            tier, tokens = self.options.tiers[k], tiers.count(k) * self.hash_tokens
            size = tokens * self.options.kv_bytes_per_token
            i.load_s += tier.latency_s + size / (tier.bandwidth_bytes_s or i.spec.host_bytes_s)
            i.loaded_bytes[k] += size
            i.hit_tokens[k] += tokens if math.isnan(r.start_s) else 0
        for id in ids:
            i.cache.register(r.id, id)
        if ids:
            i.cache.held[r.id].sort(key=r.blocks.index)

    def number(self, r: Request) -> None:
        self.admitted += 1
        r.admission = self.admitted

    def start_decoding(self, i: Instance, r: Request) -> None:
        i.decoding.append(r)
        r.decode_instance = i.id

    def most_kv(self, i: Instance, r: Request) -> int:
        """What r stores at most in the step being formed; drafts of tokens that it does not have store nothing."""
        return min(r.kv + 1 + i.depth, r.p + r.n - 1)

    def growth(self, i: Instance, r: Request) -> int:
        return self.blocks_on(i, self.most_kv(i, r)) - self.blocks_on(i, r.kv)

    def choose_depth(self, i: Instance) -> int:
        drafts = self.options.drafts
        if not drafts.adaptive:
            return drafts.depth
        best, best_tokens, best_s = 0, 0.0, 1.0
        for depth in range(drafts.depth + 1 if i.decoding else 1):
            tokens = sum(drafts.acceptance**k for k in range(depth + 1))
            time = self.verify_s(i, depth) + depth * self.draft_s(i) if i.decoding else 0.0
            if depth == 0 or tokens * best_s > best_tokens * time:
                best, best_tokens, best_s = depth, tokens, time
        return best

    def verify_s(self, i: Instance, depth: int) -> float:
        """A step of all that i decodes, contexts taken as even, drafting not counted."""
        pool, tokens = i.spec.pool, len(i.decoding) * (1 + depth)
        context = sum(r.p + r.g + depth for r in i.decoding)
        return self.timing.base_s(pool, 0, tokens, tokens) + self.timing.decode_s(pool, len(i.decoding), context)

    def draft_s(self, i: Instance) -> float:
        return self.options.drafts.cost * self.verify_s(i, 0)

    def room(self, i: Instance) -> bool:
        """Blocks for the tokens that the next decode step stores. True: something was preempted."""
        preempted = False
        i.depth = self.choose_depth(i)
        while sum(self.growth(i, r) for r in i.decoding) > i.cache.available:
            self.preempt(i, max(i.decoding + i.prefilling, key=lambda r: r.admission))
            preempted = True
        for r in i.decoding:
            i.cache.take(r.id, self.growth(i, r))
        return preempted

    def preempt(self, i: Instance, r: Request, waits_here: bool = False) -> None:
        i.changed = True
        self.preempted += 1
        r.preemptions += 1
        swap = self.options.preemption == "swap" and r in i.decoding
        (i.decoding if r in i.decoding else i.prefilling).remove(r)
        if i.beside is not None:
            i.beside.dropped.append(r)
        i.cache.release(r.id)
        self.drop_migration(r)
        if swap:
            i.swap_bytes += r.kv * self.options.kv_bytes_per_token
            i.swapped.append(r)
            return
        entry = (-math.inf, -self.preempted, r)
        if waits_here or "prefill" in i.accepts:
            i.waiting.append(entry)
            return
        target = self.chosen("route_prefill", self.hooks.route_prefill(self, r), "prefill")
        if self.need(r) > target.largest_kv:
            self.end(r, FAILED, "kv")
            return
        target.waiting.append(entry)
        self.poke(target)

    def swap_in(self, i: Instance, preempted: bool) -> None:
        while not preempted and i.swapped and i.spare(self.blocks_on(i, self.most_kv(i, i.swapped[0]))):
            r = i.swapped.pop(0)
            i.cache.take(r.id, self.blocks_on(i, self.most_kv(i, r)))
            i.swap_bytes += r.kv * self.options.kv_bytes_per_token
            self.number(r)
            i.take_in(r)
            i.decoding.append(r)

    def start_step(self, i: Instance, decodes: list[Request], chunks: list[Chunk]) -> None:
        depth = i.depth if decodes else 0
        context = sum(r.p + r.g + depth for r in decodes)
        duration = max(
            self.like_rank_s(i, [r for r in decodes if r.rank == k], [chunk for chunk in chunks if chunk[0].rank == k])
            for k in range(i.spec.ranks)
        )
        waiting_s = 0.0
        if i.spec.stages > 1 and chunks:
            batches = [batch for batch in self.micro_batches(i, chunks) if batch or decodes]
            times = [self.like_micro_batch_s(i, decodes, batch) for batch in batches]
            duration = max(times)
            waiting_s = i.spec.stages * duration - sum(times)
        slowdown = 1.0
        if i.mode == "concurrent" or i.beside is not None:
            slowdown = self.options.decode_slowdown[100 - i.prefill_percent]
        if i.beside is not None:
            duration += self.contention_s(i, i.beside, context)
        duration = slowdown * duration + i.swap_bytes / i.spec.host_bytes_s
        if depth > 0:
            duration += slowdown * (depth * self.draft_s(i))
        duration = self.with_loads(i, duration)
        if i.beside is None:
            i.counted_s = self.now
        if i.spec.stages > len(decodes) and not chunks:
            waiting_s = (i.spec.stages - len(decodes)) * duration
        i.step = Step(self.now, self.now + duration, i.mode, decodes, chunks, context, depth, waiting_s)
        self.push(i.step.end_s, STEP_END, i.id)

    def with_loads(self, i: Instance, duration: float) -> float:
        load_s, i.load_s = i.load_s, 0.0
        return max(duration, load_s) if self.options.loads_layer_wise else duration + load_s

    def like_rank_s(self, i: Instance, decodes: list[Request], chunks: list[Chunk]) -> float:
        """A step of i if each of its ranks had these decodes and chunks."""
        ranks, pool, depth = i.spec.ranks, i.spec.pool, i.depth if decodes else 0
        batch, context = ranks * len(decodes), ranks * sum(r.p + r.g + depth for r in decodes)
        sampled = batch * (1 + depth) + ranks * sum(
            prefix + tokens == r.target != r.cut for r, prefix, tokens in chunks
        )
        prefill_tokens = ranks * sum(tokens for _, _, tokens in chunks)
        duration = self.timing.base_s(pool, prefill_tokens, batch * (1 + depth), sampled)
        prefill_s, decode_s = 0.0, 0.0
        for _, prefix, tokens in chunks:
            prefill_s += ranks * self.timing.chunk_s(pool, prefix, tokens)
        if decodes:
            decode_s += self.timing.decode_s(pool, batch, context)
            decode_s += self.timing.uneven_s(pool, batch, context, max(r.p + r.g + depth for r in decodes))
            decode_s = self.beside_s(pool, batch, context, decode_s) if chunks else decode_s
        return duration + max(prefill_s, decode_s) + (1 - self.options.attention_overlap) * min(prefill_s, decode_s)

    def beside_s(self, pool: int, batch: int, context: int, decode_s: float) -> float:
        """Attention of decodes in a step with chunks, where one kernel has the tiles of both."""
        rows = self.options.decode_rows
        return decode_s if rows == 0 else max(decode_s, batch * self.timing.chunk_s(pool, context // batch, rows))

    def like_micro_batch_s(self, i: Instance, decodes: list[Request], chunks: list[Chunk]) -> float:
        """A step of i with these decodes if each of its micro-batches had these chunks."""
        pool, copies, depth = i.spec.pool, i.spec.stages, i.depth if decodes else 0
        context, batch = sum(r.p + r.g + depth for r in decodes), len(decodes) * (1 + depth)
        emitting = sum(prefix + tokens == r.target != r.cut for r, prefix, tokens in chunks)
        tokens = copies * sum(tokens for _, _, tokens in chunks)
        prefill_s, decode_s = 0.0, 0.0
        for _, prefix, chunk in chunks:
            prefill_s += copies * self.timing.chunk_s(pool, prefix, chunk)
        if decodes:
            decode_s += self.timing.decode_s(pool, len(decodes), context)
            decode_s += self.timing.uneven_s(pool, len(decodes), context, max(r.p + r.g + depth for r in decodes))
            decode_s = self.beside_s(pool, len(decodes), context, decode_s) if chunks else decode_s
        attention_s = max(prefill_s, decode_s) + (1 - self.options.attention_overlap) * min(prefill_s, decode_s)
        return self.timing.base_s(pool, tokens, batch, batch + copies * emitting) + attention_s

    def start_prefills(self, i: Instance, chunks: list[Chunk]) -> None:
        """A prefill step beside the decodes."""
        pool = i.spec.pool
        sampled = sum(prefix + tokens == r.target != r.cut for r, prefix, tokens in chunks)
        base_s = self.timing.base_s(pool, sum(tokens for _, _, tokens in chunks), 0, sampled)
        attention_s = sum(self.timing.chunk_s(pool, prefix, tokens) for _, prefix, tokens in chunks)
        alone_s = base_s + attention_s
        end = self.now + self.with_loads(i, alone_s * self.options.prefill_slowdown[i.prefill_percent])
        share = attention_s / alone_s if alone_s > 0 else 0.0
        if i.step is None:
            i.counted_s = self.now
        i.beside = Step(self.now, end, i.mode, [], chunks, 0, attention_share=share)
        self.push(end, PREFILL_END, i.id)

    def contention_s(self, i: Instance, beside: Step, context: int) -> float:
        """How much longer decodes read their context because of a prefill step."""
        each = self.options.kv_bytes_per_token
        read = context * each
        of_attention = read / (read + sum(prefix + tokens for _, prefix, tokens in beside.chunks) * each)
        of_layers = read / (read + self.options.weight_bytes)
        share = beside.attention_share * of_attention + (1 - beside.attention_share) * of_layers
        return (1 / share - 1) * (read / i.spec.memory_bytes_s)

    def prefill_end(self, i: Instance) -> None:
        """Of a prefill step beside the decodes, which those join that decode here."""
        step, i.beside = i.beside, None
        assert step is not None
        self.count(i, step)
        self.poke(i)
        released = False
        chunks = [chunk for chunk in step.chunks if chunk[0] not in step.dropped]
        for r, _, tokens in chunks:
            r.done += tokens
            self.register(i, r)
        for r, _, _ in chunks:
            if r.done == r.target == r.cut:
                released = self.prefill_elsewhere(i, r) or released
            elif r.done == r.target:
                i.prefilling.remove(r)
                released = self.prefilled(i, r, beside=True) or released
        if released:
            self.start_transfers(i)

    def step_end(self, i: Instance) -> None:
        step, i.step = i.step, None
        assert step is not None
        self.count(i, step)
        for r in step.decodes:
            if r.g == 1 and not r.decoded and r.transferred and self.options.first_token == "decode":
                r.first_token_s = r.token_s[0] = self.now
            r.decoded = True
            i.totals["decode_tokens"] += self.emit_decoded(i, r, step.depth)
        for r, _, tokens in step.chunks:
            r.done += tokens
            self.register(i, r)
            i.changed = True
        released = False
        for r in step.decodes:
            if r.g == r.n:
                i.decoding.remove(r)
                released = self.finish(i, r)
            elif r.is_at_cut:
                i.decoding.remove(r)
                i.held.append(r)
                self.drop_migration(r)
        for r in step.decodes:
            if r in i.held:
                released = i.changed = True
                self.decode_elsewhere(i, r)
        for r, _, _ in step.chunks:
            if r.done == r.target == r.cut:
                released = self.prefill_elsewhere(i, r) or released
            elif r.done == r.target:
                i.prefilling.remove(r)
                released = self.prefilled(i, r) or released
        if released:
            self.start_transfers(i)
        self.begin_iteration(i)

    def count(self, i: Instance, step: Step) -> None:
        i.steps.append((step.start_s, step.end_s, len(step.decodes), step.prefill_tokens, step.context))
        added = {
            "busy_s": self.now - i.counted_s,
            "steps": 1,
            "decode_steps": len(step.decodes) > 0,
            "prefill_tokens": step.prefill_tokens,
            "drafted_tokens": len(step.decodes) * step.depth,
            "context_tokens": step.context,
            "prefill_square": sum((prefix + tokens) ** 2 - prefix**2 for _, prefix, tokens in step.chunks),
            "bubble_s": step.waiting_s,
            "batch_s": len(step.decodes) * (step.end_s - step.start_s),
        }
        for name, value in added.items():
            i.totals[name] += value
        i.counted_s = self.now

    def emit_decoded(self, i: Instance, r: Request, depth: int) -> int:
        """The token of a decode step and the drafts that it accepts; the KV of the others is dropped."""
        taken, drafts = self.blocks_on(i, min(r.kv + 1 + depth, r.p + r.n - 1)), self.options.drafts
        count = drafts.emitted(r.id, r.g, r.n - r.g, depth)
        for _ in range(count):
            self.emit(r)
        i.cache.take(r.id, self.blocks_on(i, r.kv) - taken)
        i.totals["accepted_tokens"] += count - 1
        return count

    def emit(self, r: Request) -> None:
        r.g += 1
        r.token_s.append(self.now)
        if r.g == 1:
            r.first_token_s = r.prefill_end_s = self.now

    def register(self, i: Instance, r: Request) -> None:
        while r.registered < len(r.blocks) and (r.registered + 1) * self.hash_tokens <= r.done:
            i.cache.register(r.id, r.blocks[r.registered])
            r.registered += 1
        for store in i.stores:
            for id in reversed(r.blocks[: r.registered]):
                store.keep(id)

    def finish(self, i: Instance, r: Request) -> bool:
        i.changed = True
        i.cache.release(r.id)
        self.drop_migration(r)
        self.end(r, FINISHED)
        return True

    def prefilled(self, i: Instance, r: Request, beside: bool = False) -> bool:
        """A prefill has ended: emit, then finish, stay or leave. True: its KV was released.

        `beside`: decodes here are a stream of their own, which r joins at a boundary.
        """
        self.emit(r)
        if r.g == r.n:
            self.call_back(r)
            return self.finish(i, r)
        i.held.append(r)
        d = i
        at_cut = r.is_at_cut
        if at_cut and r.ahead is None:
            r.cut = 0
        if r.ahead is not None:
            assert r.destination is not None
            d = r.destination
            if self.need(r) > d.largest_kv:
                return self.turn_away(i, r, FAILED, "kv")
            r.ahead = None  # from here on it is a transfer like any other
            return False
        if at_cut or self.leaves(i):
            answer = self.hooks.route_decode(self, r)
            if isinstance(answer, str):
                return self.turn_away(i, r, REJECTED, answer)
            d = self.chosen("route_decode", answer, "decode")
            if self.need(r) > d.largest_kv:
                return self.turn_away(i, r, FAILED, "kv")
        if d is i:
            i.held.remove(r)
            if beside:
                i.joined.append(r)
            else:
                self.start_decoding(i, r)
        else:
            r.source, r.destination = i, d
            d.incoming.append(r)
            self.start_transfers(d)
        return False

    # cuts

    def decode_elsewhere(self, i: Instance, r: Request) -> None:
        """r, held on i, has emitted all tokens before its cut."""
        r.cut = 0
        answer = self.hooks.route_decode(self, r)
        if isinstance(answer, str):
            self.turn_away(i, r, REJECTED, answer)
            return
        d = self.chosen("route_decode", answer, "decode")
        if d is i:
            i.held.remove(r)
            self.start_decoding(i, r)
        else:
            self.hand_over(i, r, d)

    def prefill_elsewhere(self, i: Instance, r: Request) -> bool:
        """All tokens of r before the cut in its prompt are prefilled. True: its KV was released."""
        place = i.prefilling.index(r)
        i.prefilling.remove(r)
        i.held.append(r)
        r.target, r.cut = r.p, 0
        d = self.chosen("route_prefill", self.hooks.route_prefill(self, r), "prefill")
        if d is i:
            i.held.remove(r)
            i.prefilling.insert(place, r)
            return False
        return self.hand_over(i, r, d)

    def hand_over(self, i: Instance, r: Request, d: Instance) -> bool:
        """True: there is no room for it at all."""
        if self.need(r) > d.largest_kv:
            return self.turn_away(i, r, FAILED, "kv")
        r.source, r.destination, r.moving = i, d, True
        d.incoming.append(r)
        self.start_transfers(d)
        return False

    def turn_away(self, i: Instance, r: Request, state: int, reason: str) -> bool:
        """It ends after its prefill."""
        i.held.remove(r)
        i.cache.release(r.id)
        self.call_back(r)
        self.end(r, state, reason)
        return True

    # transfers and migrations

    def blocks_of_arrival(self, d: Instance, r: Request) -> int:
        return self.blocks_on(d, r.target if r.is_partial else r.kv)

    def leaves(self, i: Instance) -> bool:
        """Whether the policy is asked where a request that i has prefilled decodes."""
        return "decode" not in i.accepts or "route_decode" in self.hooks.overrides

    def send_ahead(self, i: Instance, chunks: list[Chunk]) -> None:
        """Long prompts that the step completes leave layer by layer, where their destination has room at once."""
        least = self.options.layerwise_tokens
        for r, prefix, tokens in chunks:
            if least is None or r.target < least or prefix + tokens < r.target or r.cut > 0 or not self.leaves(i):
                continue
            answer = self.hooks.route_decode(self, r)
            if isinstance(answer, str):
                continue
            d = self.chosen("route_decode", answer, "decode")
            blocks = self.blocks_on(d, r.target)
            if d is not i and not d.incoming and d.spare(blocks):
                assert i.step is not None
                d.cache.take(r.id, blocks)
                d.arriving.append(r)
                r.source, r.destination = i, d
                r.ahead = self.copy(r, i, d, r.target, i.step.end_s)

    def call_back(self, r: Request) -> None:
        if r.ahead is not None and r.destination is not None:
            d = r.destination
            self.withdraw(r.ahead)
            r.ahead, r.source, r.destination = None, None, None
            d.cache.release(r.id)
            d.arriving.remove(r)
            self.start_transfers(d)
            self.poke(d)

    def start_transfers(self, d: Instance) -> None:
        while d.incoming and d.spare(self.blocks_of_arrival(d, d.incoming[0])):
            r = d.incoming.pop(0)
            assert r.source is not None
            d.cache.take(r.id, self.blocks_of_arrival(d, r))
            d.arriving.append(r)
            self.copy(r, r.source, d, r.kv)

    def copy(self, r: Request, source: Instance, target: Instance, tokens: int, computed: float = 0.0) -> int:
        per_token = self.options.copy_bytes_per_token
        size = tokens * (self.options.kv_bytes_per_token if per_token is None else per_token)
        last = size / self.options.layers if computed > 0 else 0.0
        time = self.links.copy(self.now, source, target, size, tokens, computed, last)
        return self.push(time, TRANSFER_END, r.id)

    def transfer_end(self, r: Request) -> None:
        if r.fetch is not None:
            self.fetched(r)
            return
        if r.migration is not None:
            r.migration.ready = True
            self.poke(self.instances[r.decode_instance])
            return
        s, d = r.source, r.destination
        assert s is not None
        assert d is not None
        if r.moving:
            r.migrations += 1
        else:
            r.transferred = True
            if math.isnan(r.transfer_end_s):
                r.transfer_end_s = self.now
        r.source, r.destination, r.moving = None, None, False
        s.cache.release(r.id)
        s.held.remove(r)
        self.start_transfers(s)
        self.poke(s)
        d.arriving.remove(r)
        if r.is_partial:
            r.covered, r.registered = r.target, 0
        d.joined.append(r)
        self.poke(d)

    def migrate(self, r: Request, d: Instance) -> None:
        s = next((i for i in self.instances if r in i.decoding), None)
        if s is None or s is d or r.migration is not None or "decode" not in d.accepts:
            return
        if self.need(r) > d.largest_kv or not d.spare(self.blocks_on(d, r.kv)):
            return
        d.cache.take(r.id, self.blocks_on(d, r.kv))
        d.arriving.append(r)
        r.migration = Migration(d, r.kv, self.copy(r, s, d, r.kv))

    def drop_migration(self, r: Request) -> None:
        if r.migration is not None:
            d, ready = r.migration.target, r.migration.ready
            if not ready:
                self.withdraw(r.migration.event)
            r.migration = None
            d.cache.release(r.id)
            d.arriving.remove(r)
            self.start_transfers(d)
            self.poke(d)

    def switch(self, i: Instance, r: Request) -> None:
        assert r.migration is not None
        d, copied = r.migration.target, r.migration.copied
        i.changed = True
        extra = self.blocks_on(d, r.kv) - self.blocks_on(d, copied)
        if extra > d.cache.available:
            self.drop_migration(r)
            return
        d.cache.take(r.id, extra)
        i.decoding.remove(r)
        i.held.append(r)
        r.migration, r.source, r.destination, r.moving = None, i, d, True
        self.copy(r, i, d, r.kv - copied)
