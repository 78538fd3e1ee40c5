"""Bugs to seed into the compiled engine, one at a time: what the differential tests must see.

Each replaces a piece of one file of `framework/engine/` that occurs there once. `equivalent` says of one that changes
no result why it does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

ENGINE = Path("framework", "engine")


@dataclass(frozen=True)
class Mutant:
    """A bug: in `file`, `after` stands in place of `before`."""

    name: str
    file: str
    before: str
    after: str
    equivalent: str = ""

    def text(self, root: Path = ROOT) -> str:
        """The file with the bug. Raises ValueError where `before` does not occur once."""
        text = (root / ENGINE / self.file).read_text()
        if text.count(self.before) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.before)} times {self.before!r}")
        return text.replace(self.before, self.after)


_ROOM = "available(s, i) - blocks < watermark_of(s, i)"
MUTANTS = (
    # --- memory ---
    Mutant(
        "kept KV behind a window is not swapped",
        "setup/options.py",
        "model.kv_bytes_per_token * setting.engine.memory_share(model)",
        "model.kv_bytes_per_token * setting.engine.kv_compression.memory_share",
    ),
    Mutant(
        "kept KV behind a window is not copied",
        "setup/options.py",
        "setting.copy_bytes_per_token",
        "model.kv_bytes_per_token * setting.engine.kv_compression.copy_share",
    ),
    # --- preemption, swapping ---
    Mutant("swap-in ignores the watermark", "requests/preemption.py", _ROOM, "available(s, i) - blocks < 0"),
    Mutant("swap-in ignores the largest batch", "requests/preemption.py", "seats(s, i) >= inst.max_batch or ", ""),
    Mutant(
        "swap-in takes no new admission number",
        "requests/preemption.py",
        "        sim.admissions += 1\n        q.admission = sim.admissions\n        if unlikely(inst.ranks > 0):",
        "        if unlikely(inst.ranks > 0):",
    ),
    Mutant(
        "swap-in moves no bytes",
        "requests/preemption.py",
        "        inst.swap_bytes += q.kv * s.options.kv_bytes_per_token\n        add_kv_tokens",
        "        add_kv_tokens",
    ),
    Mutant(
        "the victim is the last that runs",
        "requests/preemption.py",
        "        if s.requests[r].admission > latest:\n",
        "        if True:\n",
    ),
    Mutant(
        "no prefilling victim",
        "requests/preemption.py",
        "if s.requests[r].state == PREFILLING and s.requests[r].admission > latest:",
        "if False:",
    ),
    Mutant(
        "a migration outlives the preemption of its request",
        "requests/preemption.py",
        "    if q.migration != NOT_MIGRATING:\n        cancel_migration(s, r)\n",
        "",
    ),
    Mutant(
        "a preempted chunk does not mark its instance",
        "requests/preemption.py",
        "    inst.preempted = True\n    inst.changed = True\n    s.requests[r]",
        "    inst.preempted = True\n    s.requests[r]",
        "the request is queued there again, which wakes the instance, and that marks it",
    ),
    Mutant(
        "a preempted chunk lets admission go on",
        "requests/preemption.py",
        "    inst.preempted = True\n    inst.changed = True\n    s.requests[r]",
        "    inst.changed = True\n    s.requests[r]",
    ),
    Mutant("a preempted request waits last", "requests/lifecycle.py", "q.key = -np.inf", "q.key = np.inf"),
    Mutant(
        "requests preempted later wait behind",
        "requests/lifecycle.py",
        "q.queue_number = -s.sim.preemptions",
        "q.queue_number = s.sim.preemptions - (1 << 40)",
    ),
    Mutant(
        "a step of preemption wakes nobody",
        "steps/scheduler.py",
        "        start_transfers(s, i)\n        wake(s, i)\n    elif unlikely(recomputed > 0)",
        "        start_transfers(s, i)\n    elif unlikely(recomputed > 0)",
    ),
    Mutant(
        "what comes during a step is in the queue at once",
        "requests/lifecycle.py",
        "        put_in_inbox(s, i, r)\n",
        "        queue_push(s, i, r)\n",
    ),
    Mutant(
        "KV of one that has ended is free while the next step is formed",
        "requests/lifecycle.py",
        "        defer_free(s, i, r)\n",
        "        free_kv(s, i, r)\n        s.instances[i].frees_memory = True\n",
    ),
    Mutant(
        "KV of one that has ended stays where nobody waits",
        "steps/scheduler.py",
        "came_free = unlikely(s.options.asynchronous) and free_deferred(s, i)",
        "came_free = unlikely(s.options.asynchronous) and inst.waiting_root >= 0 and free_deferred(s, i)",
    ),
    Mutant(
        "of those that have ended the first gives way",
        "requests/asynchronous.py",
        "if last < 0 or s.requests[r].admission > s.requests[last].admission:",
        "if last < 0:",
    ),
    Mutant(
        "one that has ended gives way to nobody",
        "steps/running_list.py",
        "    return ended if ended >= 0 and s.requests[ended].admission > s.requests[last].admission else last\n",
        "    return last\n",
    ),
    Mutant(
        "one that gives way has known what it was to emit",
        "requests/preemption.py",
        "        remove_running(s, i, r)\n        forget_last(s, i, r)\n",
        "        remove_running(s, i, r)\n",
    ),
    Mutant(
        "the watermark is spared with one that has ended",
        "memory/kv_blocks.py",
        "inst.running + inst.prefilling == 0 and inst.deferred_head < 0:",
        "inst.running + inst.prefilling == 0:",
    ),
    Mutant(
        "who is swapped out does not learn of KV that came free late",
        "requests/asynchronous.py",
        "inst.waiting_root >= 0 or inst.joining_head >= 0 or inst.swapped > 0",
        "inst.waiting_root >= 0 or inst.joining_head >= 0",
    ),
    Mutant(
        "seats that come free are not late",
        "requests/asynchronous.py",
        "inst.late_seats = max(0, taken_seats - seats(s, i))",
        "inst.late_seats = 0",
    ),
    Mutant(
        "a host slower than kernels makes later steps longer",
        "durations/duration.py",
        "        first_s, increment_s = least_s, 0.0\n",
        "        first_s = least_s\n",
    ),
    Mutant(
        "swapped bytes cost nothing",
        "durations/duration.py",
        "    first_s += inst.swap_bytes / inst.host_bytes_s\n",
        "",
    ),
    # --- KV memory ---
    Mutant(
        "a block too many",
        "memory/kv_blocks.py",
        "(tokens + s.options.block_tokens - 1)",
        "(tokens + s.options.block_tokens)",
    ),
    Mutant(
        "joining requests have no seat", "memory/kv_blocks.py", " + inst.joining + inst.reserved", " + inst.reserved"
    ),
    Mutant(
        "room for KV ignores the watermark",
        "memory/kv_blocks.py",
        "available(s, i) - blocks >= watermark_of(s, i)",
        "available(s, i) - blocks >= 0",
    ),
    Mutant(
        "the peak counts a token more",
        "memory/kv_blocks.py",
        "s.lists[s.options.output_at + r] - 1",
        "s.lists[s.options.output_at + r]",
    ),
    Mutant(
        "blocks of a leap are booked at its end",
        "durations/leap.py",
        "    allocate_noted(s, i, blocks, taken_s)",
        "    allocate_noted(s, i, blocks, blocks * s.sim.now_s)",
    ),
    Mutant(
        "KV tokens of a leap are booked at its end",
        "durations/leap.py",
        "note_tokens(s, i, fresh * step.decodes, added_s)",
        "note_tokens(s, i, fresh * step.decodes, fresh * step.decodes * s.sim.now_s)",
    ),
    Mutant(
        "a reservation is freed by its tokens",
        "memory/kv_blocks.py",
        "return reserved if reserved > 0 else blocks_for(s, tokens)",
        "return blocks_for(s, tokens)",
    ),
    # --- leaps ---
    Mutant(
        "a leap goes on past the opening of admission",
        "durations/leap.py",
        "if inst.admission_opens > inst.decode_steps:",
        "if False:",
    ),
    Mutant(
        "a leap takes a block more than there is",
        "durations/leap.py",
        "growth(s, i, inst.decode_steps + 1, middle - 1) <= room",
        "growth(s, i, inst.decode_steps + 1, middle - 1) <= room + 1",
    ),
    Mutant(
        "a leap ends a step early for want of blocks",
        "durations/leap.py",
        "growth(s, i, inst.decode_steps + 1, middle - 1) <= room",
        "growth(s, i, inst.decode_steps + 1, middle) <= room",
        "the next step is formed as any other: rows of the log differ, times do not, and rows are not compared",
    ),
    Mutant(
        "a leap ends a step late",
        "durations/leap.py",
        "            step.steps = begun\n            set_time",
        "            step.steps = begun + 1\n            set_time",
    ),
    Mutant(
        "a boundary at this very time has passed",
        "durations/leap.py",
        "boundary < now_s or (included and boundary == now_s)",
        "boundary <= now_s",
    ),
    Mutant(
        "a boundary at this very time has not passed",
        "durations/leap.py",
        "boundary < now_s or (included and boundary == now_s)",
        "boundary < now_s",
    ),
    Mutant(
        "KV that comes does not end a leap",
        "durations/leap.py",
        "ungrown) > _room_of_leap(s, i)\n",
        "ungrown) > _room_of_leap(s, i) + 1000\n",
    ),
    Mutant(
        "decodes that evict do not let who waits for a chunk look again",
        "durations/leap.py",
        "if unlikely(_waits_for_chunk(s, i)) else available(s, i)",
        "if False else available(s, i)",
    ),
    Mutant(
        "steps of a leap last all the same",
        "durations/leap.py",
        "step.increment_s * (steps * (steps - 1) // 2)",
        "step.increment_s * 0",
    ),
    Mutant(
        "a leap crosses a knot",
        "steps/step.py",
        "min(steps_until_decision(s, i), straight)",
        "steps_until_decision(s, i)",
    ),
    Mutant(
        "a knot is crossed a step late",
        "durations/duration.py",
        "max(1, math.ceil((knot - step.context) / decodes))",
        "max(1, math.ceil((knot - step.context) / decodes) + 1)",
    ),
    Mutant(
        "a hook sees a leap as it began",
        "durations/leap.py",
        "if inst.busy and step.steps > 1:\n        passed =",
        "if False:\n        passed =",
    ),
    # --- runs of single steps ---
    Mutant(
        "a run of single steps goes on past an arrival",
        "steps/single_steps.py",
        "    if r >= 0:\n",
        "    if False:\n",
    ),
    Mutant(
        "a run of single steps goes on though its instance was woken",
        "steps/single_steps.py",
        "return not s.instances[i].changed and bool(",
        "return bool(",
    ),
    Mutant(
        "a run of single steps goes on past the last token",
        "steps/single_steps.py",
        "growth if ended < step.next_finish and",
        "growth if ended <= step.next_finish and",
    ),
    Mutant(
        "drafts take a block too few for the next step",
        "durations/speculation.py",
        "min(kv + accepted + 1 + step.depth, last) - room",
        "min(kv + accepted + step.depth, last) - room",
    ),
    Mutant(
        "a run of fixed-depth steps goes on past a step that ends at the same time",
        "steps/drafted_steps.py",
        "if now_s >= first_time_of_others(s, STEP_END, i):",
        "if False:",
    ),
    Mutant(
        "a run of fixed-depth steps goes on past an arrival",
        "steps/drafted_steps.py",
        "if end_s >= others_s or ",
        "if ",
    ),
    Mutant(
        "fixed-depth steps take a block too few for the next one",
        "steps/drafted_steps.py",
        "min(1 + depth, left - accepted) > room",
        "min(depth, left - accepted) > room",
    ),
    Mutant(
        "fixed-depth steps go on past a knot of the step times",
        "steps/drafted_steps.py",
        "or context >= step.line_to",
        "or False",
    ),
    Mutant(
        "the last step of a run of fixed-depth ones is not counted",
        "durations/totals.py",
        "steps = inst.decode_steps - step.fixed_from",
        "steps = inst.decode_steps - step.fixed_from - 1",
    ),
    Mutant(
        "draws that are made ahead begin a token late",
        "durations/draws.py",
        "_known_from(s, r, token)\n    return",
        "_known_from(s, r, token + 1)\n    return",
    ),
    # --- the rule of one instant ---
    Mutant(
        "an instance schedules before the other events of its time",
        "events/order.py",
        "if sim.woken > 0 and sim.now_s < time_s:",
        "if sim.woken > 0 and sim.now_s <= time_s:",
    ),
    Mutant(
        "instances schedule in the order of their waking",
        "events/order.py",
        "        if other < i:\n",
        "        if True:\n",
    ),
    Mutant(
        "a leap woken at a boundary goes on for one step",
        "durations/leap.py",
        "if passed > 0 and s.sim.scheduled < i and",
        "if False and",
    ),
    Mutant(
        "all have scheduled at a time once one has",
        "durations/leap.py",
        "s.sim.scheduled < i and",
        "s.sim.scheduled < 0 and",
    ),
    Mutant(
        "who has scheduled at a time is forgotten",
        "events/order.py",
        "    sim.scheduled = max(sim.scheduled, i)\n",
        "",
    ),
    # --- prefix cache and stores ---
    Mutant(
        "the last token may be cached",
        "kv/prefix_cache.py",
        "(target - 1) // hash_tokens",
        "target // hash_tokens",
    ),
    Mutant(
        "the youngest prefix is evicted",
        "kv/prefix_cache.py",
        "    node = inst.cache_old\n    _unlink",
        "    node = inst.cache_young\n    _unlink",
    ),
    Mutant(
        "a referenced prefix stays evictable",
        "kv/prefix_cache.py",
        "        inst.evictable_blocks -= s.options.hash_blocks\n        note_use",
        "        note_use",
    ),
    Mutant(
        "a prefix is known before it is computed",
        "kv/prefix_cache.py",
        "(q.registered + 1) * hash_tokens <= tokens",
        "q.registered * hash_tokens <= tokens",
    ),
    Mutant(
        "a block that is known stays private",
        "kv/prefix_cache.py",
        "if s.options.shares_early or find(s, i, key) < 0:",
        "if find(s, i, key) < 0:",
    ),
    Mutant(
        "a chunk is shared once it is computed",
        "steps/chunks.py",
        "share_chunk(s, i, r, s.requests[r].prefilled + chunk)",
        "share_chunk(s, i, r, s.requests[r].prefilled)",
    ),
    Mutant(
        "what was generated is forgotten",
        "kv/kv_cache.py",
        "if unlikely(s.options.shares_early) and q.caches:",
        "if False:",
    ),
    Mutant(
        "KV from elsewhere enters the cache",
        "kv/kv_cache.py",
        "if unlikely(s.options.shares_early) and q.caches:",
        "if unlikely(s.options.shares_early):",
    ),
    Mutant(
        "blocks are unreferenced from the first",
        "kv/kv_cache.py",
        "range(q.registered - 1, -1, -1)",
        "range(q.registered)",
    ),
    Mutant(
        "fetched blocks are kept from the first",
        "requests/arrivals.py",
        "range(q.fetched_to - 1, q.fetched_from - 1, -1)",
        "range(q.fetched_from, q.fetched_to)",
    ),
    Mutant(
        "stored blocks are kept from the first",
        "kv/prefix_tiers.py",
        "range(q.registered - 1, -1, -1)",
        "range(q.registered)",
    ),
    Mutant(
        "a block kept again stays old",
        "kv/prefix_tiers.py",
        "        _unlink(s, store.home, key)\n    elif",
        "        return\n    elif",
    ),
    Mutant(
        "a store holds one block more",
        "kv/prefix_tiers.py",
        "store.count < store.capacity",
        "store.count <= store.capacity",
    ),
    Mutant(
        "the slowest tier is read",
        "kv/prefix_tiers.py",
        "    for k in range(tiers):\n",
        "    for k in range(tiers - 1, -1, -1):\n",
    ),
    Mutant("loads take no latency", "kv/prefix_cache.py", "store.latency_s + bytes_ / store", "bytes_ / store"),
    Mutant(
        "a hit counts at each admission",
        "kv/prefix_cache.py",
        "            if q.start_s != q.start_s:\n                store",
        "            if True:\n                store",
    ),
    Mutant(
        "a fetched prefix comes to an instance that prefills no more",
        "requests/arrivals.py",
        "    if s.instances[i].role & PREFILL:\n        _queue",
        "    if True:\n        _queue",
    ),
    Mutant("as much is fetched as is here", "requests/arrivals.py", "    if there <= here:", "    if there < here:"),
    Mutant(
        "loads add to the step where layers overlap",
        "parallel/sm_sharing.py",
        "max(step_s, load_s) if s.options.loads_layer_wise else step_s + load_s",
        "step_s + load_s",
    ),
    # --- prefills ---
    Mutant(
        "admission ignores the watermark",
        "steps/admission.py",
        "    if left < watermark_of(s, i) or",
        "    if left < 0 or",
    ),
    Mutant(
        "a head is admitted while others are swapped out",
        "steps/admission.py",
        "inst.preempted or inst.swapped > 0:",
        "inst.preempted:",
    ),
    Mutant(
        "blocks that r itself references count as room",
        "steps/admission.py",
        " - unreferenced_among(s, i, r, matched)",
        "",
    ),
    Mutant(
        "the schedule of chunks has a size less",
        "steps/chunks.py",
        "min(done // inst.stage_tokens, inst.chunk_stages - 1)",
        "min(done // inst.stage_tokens, inst.chunk_stages - 2)",
    ),
    Mutant(
        "the schedule of chunks forgets the step's decodes",
        "steps/chunks.py",
        "return min(most, size - (inst.token_budget // max(1, inst.ranks) - left))",
        "return min(most, size)",
    ),
    Mutant(
        "a static batch may exceed its budget", "steps/prefill.py", "load > 0 and load + chunk > most", "load > most"
    ),
    Mutant(
        "a queue that waits opens anew",
        "steps/scheduler.py",
        "inst.admission_opens < 0 and inst.waiting_root >= 0",
        "inst.waiting_root >= 0",
    ),
    Mutant(
        "an empty queue leaves admission open",
        "steps/scheduler.py",
        "        inst.admission_opens = -1\n    came_free",
        "        pass\n    came_free",
    ),
    # --- transfers, migration, splits ---
    Mutant("a link is claimed at its source alone", "copies/transfers.py", "    dst.ingress_free_s = end_s\n", ""),
    Mutant(
        "the source's bandwidth decides",
        "copies/transfers.py",
        "bytes_ / min(src.bandwidth_bytes_s, dst.bandwidth_bytes_s)\n    src",
        "bytes_ / src.bandwidth_bytes_s\n    src",
    ),
    Mutant(
        "a copy arrives without latency",
        "copies/transfers.py",
        "landing_s = s.options.latency_s + tokens * dst.unpack_s",
        "landing_s = tokens * dst.unpack_s",
    ),
    Mutant(
        "what is cached there is copied too",
        "copies/prefix_transfer.py",
        "    return kv - s.requests[r].shared_there * s.options.hash_blocks * s.options.block_tokens\n",
        "    return kv\n",
    ),
    Mutant(
        "a prefix that is referenced there still counts as room",
        "copies/prefix_transfer.py",
        "has_room(s, i, blocks + unreferenced_among(s, i, r, run) + kept)",
        "has_room(s, i, blocks + kept)",
    ),
    Mutant(
        "KV that has come enters no cache",
        "copies/prefix_transfer.py",
        "    q.shared_there = 0\n    register_prefix(s, i, r, min(q.prefilled, q.kv + s.options.pulls))\n",
        "    q.shared_there = 0\n",
    ),
    Mutant(
        "a block beyond what is copied is referenced",
        "copies/prefix_transfer.py",
        "min(q.hash_count, kv // (s.options.hash_blocks * s.options.block_tokens))",
        "q.hash_count",
    ),
    Mutant(
        "a copy that ends tells the rates of its sender's copies alone",
        "copies/link_sharing.py",
        "        note_change(s, link)\n",
        "        if flows > 0 or link == channel.sender:\n            note_change(s, link)\n",
    ),
    Mutant(
        "the tightest link is that with least bandwidth",
        "copies/link_sharing.py",
        "            share = link.left_bytes_s / link.unserved\n",
        "            share = link.left_bytes_s\n",
    ),
    Mutant(
        "filling forgets what the other side has given",
        "copies/link_sharing.py",
        "                s.links[end].left_bytes_s -= rate * channel.flows\n",
        "                s.links[end].left_bytes_s -= 0.0\n",
    ),
    Mutant(
        "a copy that overtakes leaves the other's end announced",
        "copies/link_sharing.py",
        "    if before < 0 and after >= 0:\n        copy_move(s, after, np.inf)\n",
        "",
    ),
    Mutant(
        "a withdrawn copy keeps its share",
        "copies/link_sharing.py",
        "    channel.changed = True\n    for link",
        "    channel.changed = flows > 0\n    for link",
    ),
    Mutant(
        "a change of rate counts the past at the new one",
        "copies/link_sharing.py",
        "    _count_sent(s, c)\n    channel.rate_bytes_s = rate\n",
        "    channel.rate_bytes_s = rate\n    _count_sent(s, c)\n",
    ),
    Mutant(
        "the second in line overtakes",
        "copies/transfers.py",
        "if dst.incoming_head >= 0 or not reserve_for",
        "if not reserve_for",
    ),
    Mutant(
        "a switch sends all KV again",
        "copies/migration.py",
        "start_copy(s, r, q.instance, target, kv - q.migrated_kv)",
        "start_copy(s, r, q.instance, target, kv)",
    ),
    Mutant("a switch needs no room", "copies/migration.py", "if extra > available(s, target):", "if False:"),
    Mutant(
        "a copied migration is withdrawn as if it were under way",
        "copies/migration.py",
        "    if q.migration == COPYING:\n        withdraw_copy",
        "    if True:\n        withdraw_copy",
    ),
    Mutant(
        "a migration is no reason to wake its target",
        "copies/migration.py",
        "    target = withdraw_migration(s, r)\n    start_transfers(s, target)\n    wake(s, target)",
        "    target = withdraw_migration(s, r)\n    start_transfers(s, target)",
    ),
    Mutant(
        "a split keeps its migration",
        "requests/lifecycle.py",
        "    if q.migration != NOT_MIGRATING:\n        cancel_migration(s, r)\n    q.split = 0",
        "    q.split = 0",
    ),
    Mutant(
        "a split in the output is a token late",
        "requests/lifecycle.py",
        "inst.decode_steps + q.split - q.input_tokens - q.emitted)",
        "inst.decode_steps + q.split - q.input_tokens - q.emitted + 1)",
    ),
    # --- roles ---
    Mutant(
        "an instance changes with decodes on their way",
        "roles/inventory.py",
        "inst.running + inst.joining + inst.incoming + inst.swapped",
        "inst.running + inst.joining + inst.swapped",
    ),
    Mutant("an instance that is off keeps its prefixes", "roles/changes.py", "        forget_prefixes(s, i)\n", ""),
    Mutant(
        "a start takes as long as a change",
        "roles/changes.py",
        "inst.start_s if inst.draining_role == OFF else s.options.role_change_s",
        "s.options.role_change_s",
    ),
    Mutant(
        "a queue stays where nobody prefills",
        "roles/changes.py",
        "        take_in(s, i)\n        _reroute_queue(s, i)\n",
        "        take_in(s, i)\n",
    ),
    # --- scaling ---
    Mutant(
        "one that is off starts before one that drains comes back",
        "roles/scaling.py",
        "0 if inst.draining_role != OFF else 1 + inst.down",
        "1 if inst.draining_role != OFF else inst.down",
    ),
    Mutant(
        "one that is down is switched on before one that is off",
        "roles/scaling.py",
        "else 1 + inst.down",
        "else 2 - inst.down",
    ),
    Mutant("the last of those that are off starts", "roles/scaling.py", "place < least", "place <= least"),
    Mutant("the first of those with equal work stops", "roles/scaling.py", "work <= least", "work < least"),
    Mutant(
        "one that serves stops before one that starts",
        "roles/scaling.py",
        "work = -1 if inst.draining_role == OFF else _requests(s, i)",
        "work = 1 << 40 if inst.draining_role == OFF else _requests(s, i)",
    ),
    Mutant("those that wait are no work", "roles/scaling.py", "inst.queued + inst.prefilling", "inst.prefilling"),
    Mutant("those that decode are no work", "roles/scaling.py", "inst.running + inst.joining", "inst.joining"),
    Mutant("those on their way are no work", "roles/scaling.py", "here + inst.incoming", "here"),
    Mutant("suspended ones are no work", "roles/scaling.py", " + inst.swapped + inst.suspended", " + inst.swapped"),
    Mutant(
        "the last instance of a phase may go",
        "roles/scaling.py",
        "return lost == OFF and keeps_phases(s, i, OFF)",
        "return lost == OFF",
    ),
    Mutant(
        "the last instance that is to stay may go",
        "roles/scaling.py",
        "return lost == OFF and keeps_phases(s, i, OFF)",
        "return keeps_phases(s, i, OFF)",
    ),
    Mutant(
        "those that drain count as on",
        "roles/scaling.py",
        "s.instances[i].next_role != OFF\n",
        "s.instances[i].draining_role != OFF\n",
    ),
    Mutant("a plan of before comes with a start", "roles/scaling.py", "    s.instances[i].next_budget = 0", "    pass"),
    Mutant(
        "an order to start counts as off",
        "roles/changes.py",
        "        inst.off_s += sim.now_s - inst.off_since_s\n",
        "",
    ),
    Mutant(
        "a start that is called off is no stop",
        "roles/changes.py",
        "it was starting\n        inst.off_since_s = sim.now_s\n        inst.stops += 1\n",
        "it was starting\n        inst.off_since_s = sim.now_s\n",
    ),
    # --- ranks, stages, streams, drafts ---
    Mutant(
        "a rank crosses a step late",
        "parallel/data_parallel.py",
        "most = int(crossing) + 1",
        "most = int(crossing) + 2",
    ),
    Mutant(
        "a rank's decodes cost its budget nothing",
        "parallel/data_parallel.py",
        "inst.token_budget // inst.ranks - decode_tokens",
        "inst.token_budget // inst.ranks",
    ),
    Mutant(
        "ranks are chosen by their decodes alone",
        "parallel/data_parallel.py",
        "int(s.lists[at + DECODES] + s.lists[at + PREFILLS])\n",
        "int(s.lists[at + DECODES])\n",
    ),
    Mutant(
        "a step of a group ends when its rank's own would",
        "durations/lockstep.py",
        "            step.first_s = first_s\n",
        "",
    ),
    Mutant(
        "a group leaps one step too far until another rank is the slowest",
        "durations/lockstep.py",
        "steps = int(crossing) + 1",
        "steps = int(crossing) + 2",
    ),
    Mutant(
        "a group leaps on when an idle rank is woken",
        "events/order.py",
        "        stepping = rank_in_step(s, i)\n",
        "        stepping = -1\n",
    ),
    Mutant(
        "a leap of one rank of a group ends without the others",
        "durations/leap.py",
        "                _end_group_early(s, i, begun)\n",
        "                pass\n",
    ),
    Mutant(
        "a group leaps though a rank has been woken while it was formed",
        "durations/lockstep.py",
        "        if s.instances[k].changed:",
        "        if False:",
    ),
    Mutant(
        "a rank of a group reads the experts of its own tokens alone",
        "parallel/pipeline_parallel.py",
        "ranks = max(1, inst.group)",
        "ranks = 1",
    ),
    Mutant(
        "first tokens of a group are stamped before the end of its step is known",
        "steps/step.py",
        "and decodes > 0 and inst.group == 0:",
        "and decodes > 0:",
    ),
    Mutant(
        "copies ahead leave before the end of a group's step is known",
        "steps/scheduler.py",
        " and prefill_tokens > 0 and inst.group == 0:",
        " and prefill_tokens > 0:",
    ),
    Mutant(
        "an idle rank of a group that is woken lets its group schedule",
        "loop.py",
        "0 if rank_in_step(s, i) >= 0 else inst.group",
        "0 if inst.busy else inst.group",
    ),
    Mutant(
        "bubbles of more decodes than stages",
        "parallel/pipeline_parallel.py",
        "elif step.decodes < inst.stages:",
        "else:",
    ),
    Mutant(
        "a pipeline reads its weights once a step",
        "parallel/pipeline_parallel.py",
        "step.steps * batches\n",
        "step.steps\n",
    ),
    Mutant(
        "bubbles of chunks are not counted",
        "parallel/pipeline_parallel.py",
        "inst.bubble_s += step.bubble_s",
        "inst.bubble_s += 0.0",
    ),
    Mutant(
        "chunks are dealt to the fullest",
        "parallel/pipeline_parallel.py",
        "s.lists[inst.loads_at + m] < s.lists[inst.loads_at + lightest]",
        "s.lists[inst.loads_at + m] > s.lists[inst.loads_at + lightest]",
    ),
    Mutant(
        "a prefill step wakes nobody",
        "steps/step_end.py",
        "    complete_prefill_step(s, i)\n    wake(s, i)\n",
        "    complete_prefill_step(s, i)\n",
    ),
    Mutant(
        "decodes concurrent with a prefill step go at full speed",
        "durations/duration.py",
        "decode_slowdown(s, WHOLE - s.instances[i].prefill_percent)",
        "1.0",
    ),
    Mutant(
        "drafts beyond the last token are stored",
        "durations/speculation.py",
        "return min(kv + 1 + s.step[i].depth, last)",
        "return kv + 1 + s.step[i].depth",
    ),
    Mutant("all drafts may be accepted at the end", "durations/speculation.py", "last - kv)\n", "last - kv + 1)\n"),
    Mutant(
        "the depth of before is drafted",
        "durations/speculation.py",
        "if tokens * best_s > best_tokens * time_s:",
        "if tokens * best_s >= best_tokens * time_s:",
    ),
    Mutant(
        "drafting is free",
        "durations/duration.py",
        "first_s += slowdown * (step.depth * draft_s(s, i, decodes, step.context - decodes * (1 + step.depth)))",
        "first_s += 0.0",
    ),
    # --- steps in order of admission ---
    Mutant(
        "decodes never wait for tokens",
        "steps/running_list.py",
        "            if s.requests[r].skips or _left_of_all(s, i, s.requests[r].rank) <= 0:\n",
        "            if s.requests[r].skips:\n",
    ),
    Mutant(
        "decodes that waited stay behind those that did not",
        "requests/pausing.py",
        "            inst.disordered |= aside > 0\n",
        "",
    ),
    Mutant(
        "the tokens of a victim that had its turn are lost",
        "steps/running_list.py",
        "        _count_decode(s, i, r, -1)\n",
        "",
    ),
    Mutant(
        "decodes give way before prefills",
        "steps/running_list.py",
        "if b < 0 or (a >= 0 and not _decode_is_next(s, i, a, b)):",
        "if b < 0 or a >= 0:",
    ),
    Mutant(
        "decodes that wait are read",
        "steps/step.py",
        "inst.decode_kv - paused_kv(s, i) + decodes",
        "inst.decode_kv + decodes",
    ),
    Mutant(
        "prefills that end free their blocks before all decodes",
        "steps/prefill_end.py",
        "        finish_decodes_before(s, i, s.requests[r].admission)\n",
        "",
    ),
    Mutant("chunks have no longest one", "steps/chunks.py", "most = min(left, s.options.longest_chunk)", "most = left"),
    Mutant(
        "a watermark is spared where prompts are computed",
        "memory/kv_blocks.py",
        "s.options.spares_idle) and inst.running + inst.prefilling == 0",
        "s.options.spares_idle) and inst.running == 0",
    ),
    Mutant(
        "whoever gave way waits behind others of its urgency",
        "requests/lifecycle.py",
        "    if unlikely(s.options.waits_last):\n        s.sim",
        "    q.queue_number = s.sim.queue_number + s.sim.preemptions\n"
        "    if unlikely(s.options.waits_last):\n        s.sim",
    ),
    # --- step times, order of events ---
    Mutant(
        "the longest context is that of the step before",
        "durations/duration.py",
        "ahead = inst.decode_steps + 1 + s.step[i].depth",
        "ahead = inst.decode_steps + s.step[i].depth",
    ),
    Mutant(
        "a split prompt samples a token", "durations/duration.py", "if done and q.prefill_until != q.split:", "if done:"
    ),
    Mutant(
        "attentions overlap by the longer one",
        "durations/duration.py",
        "s.options.attention_overlap * min(chunks_s, joint_s)",
        "s.options.attention_overlap * max(chunks_s, joint_s)",
    ),
    Mutant(
        "a tick comes after an arrival of its time",
        "events/order.py",
        "if tick_s < time_s or (tick_s == time_s and kind >= ARRIVAL):",
        "if tick_s < time_s:",
    ),
    Mutant(
        "a role changes after an arrival of its time",
        "events/order.py",
        "sim.change_s < time_s or (sim.change_s == time_s and kind >= ARRIVAL)",
        "sim.change_s < time_s",
    ),
    Mutant(
        "a later turn arrives before a request of its time",
        "events/order.py",
        "if x < y or (x == y and other < r):",
        "if x <= y:",
    ),
    # --- what came of looking for bugs that these runs would not see ---
    Mutant(
        "a copy withdrawn from the middle only sinks its substitute",
        "memory/queues.py",
        "        _sift_up(s, s.options.heap_at, j)\n"
        "        _sift_down(s, s.options.heap_at, sim.heap_size, s.requests[last].heap_index)",
        "        _sift_down(s, s.options.heap_at, sim.heap_size, j)",
    ),
    Mutant(
        "a withdrawn reservation comes back before the growth of its target's leap",
        "copies/transfers.py",
        "    catch_up_one(s, target)\n    release(s, target, r, room)\n",
        "    release(s, target, r, room)\n",
    ),
    Mutant(
        "a switch sees the room that its target's leap began with",
        "copies/migration.py",
        "    catch_up_one(s, target)\n    kv = kv_now(s, r)\n    room",
        "    kv = kv_now(s, r)\n    room",
    ),
    Mutant(
        "an instance has drained of prefill while its prefill stream runs",
        "roles/inventory.py",
        "(inst.queued_tokens > again or streaming(s, i))",
        "inst.queued_tokens > again",
    ),
    Mutant(
        "a prefill stream begins concurrent with a step with chunks",
        "parallel/sm_sharing.py",
        "    return not inst.busy or s.step[i].prefill_tokens == 0\n",
        "    return True\n",
    ),
    Mutant(
        "a queue that the prefill stream empties leaves admission open",
        "steps/scheduler.py",
        "        _form_stream(s, i)\n        if inst.waiting_root < 0:\n            inst.admission_opens = -1\n",
        "        _form_stream(s, i)\n",
    ),
    Mutant(
        "a prefill step ends before a step that ends with it",
        "events/order.py",
        "    if sim.prefill_end_s < time_s:\n",
        "    if sim.prefill_end_s <= time_s and sim.prefill_end_s < np.inf:\n",
    ),
    Mutant(
        "a preempted request is queued again where it does not fit",
        "requests/preemption.py",
        "        if not fits(s, target, r):\n"
        "            end_request(s, r, FAILED, REASON_KV)\n"
        "            return\n"
        "    queue_again(s, target, r)",
        "    queue_again(s, target, r)",
    ),
    Mutant(
        "a request as long as the longest context is rejected",
        "requests/arrivals.py",
        "s.lists[s.options.output_at + r] > s.options.max_context:",
        "s.lists[s.options.output_at + r] >= s.options.max_context:",
    ),
    Mutant(
        "finished decodes do not tell the tree of loads",
        "requests/lifecycle.py",
        "    load_changed(s, i)\n    return leaving\n",
        "    return leaving\n",
    ),
    Mutant(
        "the slowest micro-batch does not tell how wide it is",
        "parallel/pipeline_parallel.py",
        "            step.widest_tokens = inst.stages * s.lists[inst.loads_at + m]\n",
        "",
    ),
    Mutant(
        "a leap does not see that another rank comes to hold less",
        "durations/leap.py",
        "        steps = min(steps, steps_of_choice(s, i))\n",
        "        pass\n",
    ),
    Mutant(
        "a rank that is as full as the one of least KV is taken later",
        "parallel/data_parallel.py",
        "lead // closing + (0 if lead % closing == 0 and _wins_tie(s, i, k, best) else 1)",
        "lead // closing + 1",
    ),
    Mutant(
        "KV that comes finds blocks that the running leap has evicted",
        "copies/prefix_transfer.py",
        "    catch_up_one(s, i)  # blocks that its running leap has evicted by now are not cached\n",
        "",
    ),
    # --- what was preempted while it decoded, and is computed again there ---
    Mutant(
        "what is preempted where nobody prefills is routed",
        "requests/preemption.py",
        "if s.instances[i].role & PREFILL == 0 and not recomputes_here(s, r):",
        "if s.instances[i].role & PREFILL == 0:",
    ),
    Mutant(
        "it is asked where what was computed again decodes",
        "steps/destinations.py",
        "elif unlikely(s.options.recomputes_there and (emitted > 1 or q.first_token_pending) and not q.rerouted):",
        "elif False:",
    ),
    Mutant(
        "KV comes before those that were preempted there",
        "memory/kv_blocks.py",
        "    if unlikely(inst.recompute_tokens > 0):\n        return False\n",
        "",
    ),
    Mutant(
        "nothing is sent once those that were preempted there are admitted",
        "steps/scheduler.py",
        "    elif unlikely(recomputed > 0) and inst.recompute_tokens == 0 and not s.options.pulls:\n"
        "        start_transfers(s, i)\n",
        "",
    ),
    Mutant(
        "those that were preempted there bar others after their admission",
        "steps/admission.py",
        "        inst.recompute_tokens -= s.requests[r].prefill_until\n",
        "        pass\n",
    ),
    Mutant(
        "what is computed again is queued elsewhere by a change of role",
        "roles/changes.py",
        "        if recomputes_here(s, r):\n",
        "        if False:\n",
    ),
    Mutant(
        "an instance leaves decode with one that is to be computed again",
        "roles/inventory.py",
        "inst.suspended + again > 0",
        "inst.suspended > 0",
    ),
    Mutant(
        "an instance leaves decode with one that is being computed again",
        "roles/inventory.py",
        "        if recomputes_here(s, r):\n",
        "        if False:\n",
    ),
    Mutant(
        "what is computed again keeps its instance from leaving prefill",
        "roles/inventory.py",
        "inst.queued_tokens > again or",
        "inst.queued_tokens > 0 or",
    ),
    Mutant(
        "what is computed again is sent layer by layer",
        "steps/scheduler.py",
        "        if unlikely(recomputes_here(s, r)):\n            continue\n",
        "",
    ),
    Mutant(
        "who waits does not hear that a shared store has gained a prefix",
        "steps/step_end.py",
        "        stores_gained(s)\n",
        "        pass\n",
    ),
    Mutant(
        "growth of a short leap is counted from the phase of another step",
        "durations/leap.py",
        "blocks, taken_s = _grown_once(s, i, phase, count)",
        "blocks, taken_s = _grown_once(s, i, 0, count)",
    ),
    # --- chunks first, the reserve for outputs, who gives way ---
    Mutant(
        "chunks that come first have no tokens of decodes of their rank",
        "parallel/data_parallel.py",
        "decode_tokens = 0 if inst.mode == CHUNKS_FIRST else s.lists",
        "decode_tokens = s.lists",
    ),
    Mutant(
        "the reserve holds for one that is alone",
        "kv/output_reserve.py",
        "inst.reserve_blocks > 0 or inst.running + inst.prefilling == 0",
        "inst.reserve_blocks > 0",
    ),
    Mutant(
        "what those admitted together may emit is not reserved",
        "kv/output_reserve.py",
        "        others += _to_come(s, s.lists[inst.prefilling_at + j], 0)\n",
        "        pass\n",
    ),
    Mutant(
        "the ratio falls from the step on at which it is measured",
        "kv/output_reserve.py",
        "    inst.ratio_since = inst.decode_steps + 1\n",
        "    inst.ratio_since = inst.decode_steps\n",
    ),
    Mutant(
        "an instance that idles keeps its ratio",
        "kv/output_reserve.py",
        "        inst.output_ratio, inst.ratio_since = s.options.first_ratio, inst.decode_steps\n",
        "        pass\n",
    ),
    Mutant(
        "the ratio falls below its least",
        "kv/output_reserve.py",
        "    return max(inst.output_ratio - steps * s.options.ratio_decay, s.options.least_ratio)\n",
        "    return inst.output_ratio - steps * s.options.ratio_decay\n",
    ),
    Mutant(
        "KV that came free late opens no admission",
        "kv/output_reserve.py",
        "    inst.freed = 1 if late or (known and chunks_alone) else 0",
        "    inst.freed = 1 if known and chunks_alone else 0",
    ),
    Mutant(
        "a step of chunks alone opens admission",
        "kv/output_reserve.py",
        "(known and not chunks_alone))",
        "known)",
    ),
    Mutant(
        "admission stays closed though a prompt is computed in part",
        "steps/scheduler.py",
        "    if unlikely(inst.closed) and inst.prefilling > 0:\n        inst.closed = False\n",
        "",
    ),
    Mutant(
        "admission that has opened wakes nobody",
        "steps/scheduler.py",
        "    if unlikely(s.options.reserves) and settle_reserve(s, i, decodes, prefill_tokens):\n        wake(s, i)\n",
        "    if unlikely(s.options.reserves):\n        settle_reserve(s, i, decodes, prefill_tokens)\n",
    ),
    Mutant(
        "of those with the fewest tokens the shortest prompt gives way",
        "requests/preemption.py",
        "    return x.input_tokens > y.input_tokens or (",
        "    return x.input_tokens < y.input_tokens or (",
    ),
    Mutant(
        "a preempted request that waits last keeps its queue number",
        "requests/lifecycle.py",
        "        s.sim.queue_number += 1\n        q.queue_number = s.sim.queue_number\n",
        "        pass\n",
    ),
    # --- what came of a second look for bugs that these runs would not see ---
    Mutant(
        "a plan outlives the change of role that it came with",
        "roles/changes.py",
        "    inst.next_mode = action.mode\n"
        "    inst.next_budget = action.value\n"
        "    inst.next_percent = action.percent\n",
        "    if action.value > 0:\n"
        "        inst.next_mode, inst.next_budget = action.mode, action.value\n"
        "        inst.next_percent = action.percent\n",
    ),
    Mutant(
        "late room that transfers take at once is not late",
        "steps/step_end.py",
        "    if unlikely(s.options.asynchronous):\n"
        "        note_late(s, i, free_blocks, taken_seats)\n"
        "    if inst.frees_memory:\n"
        "        start_transfers(s, i)\n",
        "    if inst.frees_memory:\n"
        "        start_transfers(s, i)\n"
        "    if unlikely(s.options.asynchronous):\n"
        "        note_late(s, i, free_blocks, taken_seats)\n",
    ),
    Mutant(
        "of KV that comes a token at least is copied",
        "copies/prefix_transfer.py",
        "kv // (s.options.hash_blocks * s.options.block_tokens))",
        "(kv - 1) // (s.options.hash_blocks * s.options.block_tokens))",
    ),
    Mutant(
        "the last layer is sent at the bandwidth of its source",
        "copies/transfers.py",
        "last_layer_bytes / min(s.instances[source].bandwidth_bytes_s, dst.bandwidth_bytes_s)",
        "last_layer_bytes / s.instances[source].bandwidth_bytes_s",
    ),
    Mutant(
        "decodes that wait are drafted for",
        "durations/duration.py",
        "draft_s(s, i, decodes, step.context - decodes * (1 + step.depth))",
        "draft_s(s, i, decodes, inst.decode_kv)",
    ),
    Mutant(
        "of ranks that are as full the lowest number is taken",
        "parallel/data_parallel.py",
        "0 if lead % closing == 0 and _wins_tie(s, i, k, best) else 1",
        "0 if lead % closing == 0 and k < best else 1",
    ),
    Mutant(
        "swap-in keeps the watermark of an instance that idles",
        "requests/preemption.py",
        _ROOM,
        "available(s, i) - blocks < inst.watermark",
    ),
    Mutant(
        "a prompt that goes on where it was split does not tell the tree of loads",
        "steps/destinations.py",
        "        s.instances[i].queued_tokens += q.prefill_until - q.prefilled\n        load_changed(s, i)\n",
        "        s.instances[i].queued_tokens += q.prefill_until - q.prefilled\n",
    ),
    Mutant(
        "an instance that does not page closes admission",
        "kv/output_reserve.py",
        "inst.closed = s.options.reserves and inst.reserve_blocks == 0",
        "inst.closed = s.options.reserves",
    ),
    Mutant(
        "admission closes where nothing decodes",
        "kv/output_reserve.py",
        "inst.reserve_blocks == 0 and inst.running > 0",
        "inst.reserve_blocks == 0",
    ),
    Mutant(
        "a head without a seat leaves admission open",
        "steps/admission.py",
        "        close_admission(s, i)\n        return False\n    tokens =",
        "        return False\n    tokens =",
    ),
    Mutant(
        "who ends with its prompt opens admission a step later",
        "steps/prefill_end.py",
        "        inst.closed = False\n        inst.freed = freed\n",
        "        pass\n",
    ),
    Mutant(
        "what decodes freed that have all ended opens admission later",
        "steps/scheduler.py",
        "        inst.closed = False\n        inst.freed = 0\n",
        "        inst.closed = False\n",
    ),
    Mutant(
        "KV that comes at a boundary finds the growth of a leap counted from a step too late",
        "durations/leap.py",
        "growth(s, i, inst.decode_steps - step.done + step.grown, ungrown)",
        "growth(s, i, inst.decode_steps + 1, ungrown)",
    ),
    Mutant(
        "a micro-batch samples a token of a split prompt",
        "parallel/pipeline_parallel.py",
        "if q.prefilled + chunk == q.prefill_until and q.prefill_until != q.split:",
        "if q.prefilled + chunk == q.prefill_until:",
    ),
    Mutant(
        "a start that is given up leaves its instance on",
        "roles/changes.py",
        "    elif is_off(s, i):  # it was starting\n        inst.off_since_s = sim.now_s\n",
        "",
    ),
    Mutant(
        "a decode that waits and migrates is on its way twice",
        "setup/inspect.py",
        "q.state != DECODING and q.state != PAUSED and position",
        "q.state != DECODING and position",
    ),
    Mutant(
        "a decode that migrates from an instance that leaves its role is not on its way",
        "setup/inspect.py",
        "        if position[i] >= 0:\n            continue\n",
        "        continue\n",
    ),
    Mutant(
        "prefills that take no time hide the decodes with them",
        "setup/inspect.py",
        "        if prefill_s > 0.0:\n            decode_s",
        "        if tokens > 0:\n            decode_s",
    ),
    Mutant(
        "what is to be prefilled counts although it is on its way",
        "setup/inspect.py",
        "    if r >= 0 and tokens > 0:",
        "    if tokens > 0:",
    ),
    Mutant(
        "the next decode step drafts nothing",
        "setup/inspect.py",
        "times_s[j] = decode_step_s(s, instances[j], choose_depth(s, instances[j]))",
        "times_s[j] = decode_step_s(s, instances[j], 0)",
    ),
    Mutant(
        "the next prefill begins its prompt anew",
        "setup/inspect.py",
        "attention_s = chunk_s(tables, inst.pool, q.prefilled, chunk)",
        "attention_s = chunk_s(tables, inst.pool, 0, chunk)",
    ),
    Mutant(
        "the last prompt token is sent although it is computed once more",
        "copies/transfers.py",
        "return int(q.kv - (q.emitted == 0 and q.kv == q.input_tokens))",
        "return int(q.kv)",
    ),
    Mutant(
        "who is preempted before its first token is routed anew",
        "requests/lifecycle.py",
        "(q.emitted > 0 or q.first_token_pending) and not",
        "q.emitted > 0 and not",
    ),
    Mutant(
        "there is a gap before the first token",
        "requests/lifecycle.py",
        "q.previous_token_s if q.emitted > 0 else np.nan",
        "q.previous_token_s",
    ),
    Mutant(
        "a first token that comes with the KV waits for a step",
        "steps/pulling.py",
        "if unlikely(q.first_token_pending) and s.options.first_token == TOKEN_AT_JOIN:",
        "if False:",
    ),
    Mutant(
        "KV that is pulled leaves nothing for prompts that are computed there",
        "steps/pulling.py",
        "    kept = _blocks_to_come(s, i)\n",
        "    kept = 0\n",
    ),
    Mutant(
        "the last token of what is pulled has no block of its own",
        "copies/transfers.py",
        "return kv_of_first_step(s, r, kv) if unlikely(s.options.pulls) else kv",
        "return kv",
    ),
    Mutant(
        "who comes with KV that was pulled does not keep the watermark",
        "steps/pulling.py",
        "or available(s, i) >= inst.watermark",
        "or True",
    ),
    Mutant(
        "KV that is pulled takes a seat at once",
        "memory/kv_blocks.py",
        "return here + inst.computed if unlikely(s.options.pulls) else here + inst.joining + inst.reserved",
        "return here + inst.joining + inst.reserved",
    ),
    Mutant(
        "a single token that is computed elsewhere ends in the order of admission",
        "steps/prefill_end.py",
        " and not may_leave_before_token(s, i, r):",
        ":",
    ),
    # --- circles of held KV ---
    Mutant(
        "a circle of two is not looked for",
        "loop.py",
        "unlikely(s.sim.crossing > 1)",
        "unlikely(s.sim.crossing > 2)",
    ),
    Mutant(
        "the first of a circle gives way",
        "roles/circles.py",
        "q.admission > s.requests[last].admission",
        "q.admission < s.requests[last].admission",
    ),
    Mutant(
        "a circle is looked for before all have scheduled",
        "events/order.py",
        "    if sim.woken > 0:\n        return False\n",
        "",
    ),
    Mutant(
        "what waits for one that is not blocked is in a circle",
        "roles/circles.py",
        "r = -1 if s.instances[i].marked else s.instances[i].incoming_head",
        "r = -1",
    ),
    Mutant(
        "a held block counts for each that shares it",
        "kv/prefix_cache.py",
        "if node >= 0 and (s.lists[refs_at + node] < _MARK) == (mark > 0):",
        "if node >= 0:",
    ),
    Mutant(
        "who waits shares nothing with what is held",
        "roles/circles.py",
        "        while shared < most and finds_marked",
        "        while shared < most and False and finds_marked",
    ),
    Mutant(
        "a cached block shares where nobody who is held has it",
        "kv/prefix_cache.py",
        "return bool(node >= 0 and s.lists[refs_at + node] >= _MARK)",
        "return bool(node >= 0)",
    ),
    Mutant(
        "who is computed again bars for no ever",
        "roles/circles.py",
        "    if inst.recompute_tokens == 0:\n        return False\n",
        "    if inst.recompute_tokens >= 0:\n        return False\n",
    ),
    Mutant(
        "a circle leaves no watermark",
        "roles/circles.py",
        "(0 if s.options.spares_idle else inst.watermark)",
        "0",
    ),
    Mutant(
        "who gives way without a token has one",
        "roles/circles.py",
        "    q.first_token_pending |= sent < q.kv\n",
        "",
    ),
    Mutant(
        "room where a circle is broken starts no copy",
        "roles/circles.py",
        "    start_transfers(s, source)\n    wake(s, source)\n",
        "    wake(s, source)\n",
    ),
    Mutant(
        "who waits behind one that gives way waits on",
        "roles/circles.py",
        "    wake(s, source)\n    start_transfers(s, target)\n",
        "    wake(s, source)\n",
    ),
    Mutant(
        "where a circle is broken nobody schedules",
        "roles/circles.py",
        "    start_transfers(s, source)\n    wake(s, source)\n",
        "    start_transfers(s, source)\n",
    ),
    Mutant(
        "a seat that a prompt leaves starts no copy",
        "steps/destinations.py",
        "    s.instances[i].frees_memory = True  # at least a seat came free\n",
        "",
    ),
    Mutant(
        "a plan of decodes alone withholds nothing",
        "roles/circles.py",
        "inst.mode == DECODE_ONLY or inst",
        "inst",
    ),
    Mutant(
        "KV that waits for one that is withheld is not withheld",
        "roles/circles.py",
        "r = s.instances[i].incoming_head if s.instances[i].marked else -1",
        "r = -1",
    ),
    # --- two streams, each scheduled ahead ---
    Mutant(
        "what comes during a prefill step is in the next one",
        "requests/asynchronous.py",
        "    if _know_late(s, i):\n        wake(s, i)\n",
        "    take_in(s, i)\n    if _know_late(s, i):\n        wake(s, i)\n",
    ),
    Mutant(
        "a prefill step counts on blocks that came free since the one before began",
        "requests/asynchronous.py",
        "    inst.late_blocks = max(inst.late_blocks, available(s, i) - stream.available_blocks)\n",
        "",
    ),
    Mutant(
        "a prefill step counts on seats that came free since the one before began",
        "requests/asynchronous.py",
        "    inst.late_seats = max(inst.late_seats, stream.seats - seats(s, i))\n",
        "",
    ),
    Mutant(
        "what is computed concurrent with a step is in the next one",
        "requests/asynchronous.py",
        "    if not inst.busy and not inst.between:\n",
        "    if not inst.between:\n",
    ),
    Mutant(
        "nobody tells the decodes who is computed",
        "requests/asynchronous.py",
        "        inst.computed_known = inst.computed\n        wake(s, i)\n",
        "        inst.computed_known = inst.computed\n",
    ),
    Mutant(
        "an idle prefill stream learns late who has come",
        "requests/asynchronous.py",
        "    is_idle = inst.mode == CONCURRENT or not inst.between\n",
        "    is_idle = not inst.between\n",
    ),
    Mutant(
        "a prefill step that ends with nothing to follow has no turn",
        "loop.py",
        "(unlikely(may_prefill(s, i)) or unlikely(has_just_prefilled(s, i)))",
        "unlikely(may_prefill(s, i))",
    ),
    Mutant(
        "who ends with a prefill step has a deferred free for the decodes",
        "steps/scheduler.py",
        "    if unlikely(s.options.asynchronous) and free_deferred(s, i):\n",
        "    if False and free_deferred(s, i):\n",
    ),
    Mutant(
        "a prefill step concurrent with decodes has no host",
        "parallel/sm_sharing.py",
        "max(alone_s, host_s(tables, inst.pool, tokens, 0))",
        "alone_s",
    ),
    Mutant(
        "who is computed concurrent with decodes has no seat where KV is pulled",
        "memory/kv_blocks.py",
        "return here + inst.computed if unlikely",
        "return here if unlikely",
    ),
    # --- KV that is pulled layer by layer, and with drafts ---
    Mutant(
        "layers that are fetched are there before they are computed",
        "steps/pulling.py",
        "        if unlikely(q.state == PREFILLING):\n",
        "        if False:\n",
    ),
    Mutant(
        "nobody tells that one waits no more to be fetched",
        "copies/transfers.py",
        "    load_changed(s, i)\n    start_transfers(s, i)\n    wake(s, i)\n",
        "    load_changed(s, i)\n",
    ),
    Mutant(
        "what can never be held waits to be fetched",
        "copies/transfers.py",
        "        if fits(s, target, r):\n            send(s, r, target)\n",
        "        send(s, r, target)\n",
    ),
    Mutant(
        "a prompt that is being computed brings the token that is computed there",
        "copies/transfers.py",
        "return int(q.prefill_until - (s.options.first_token == TOKEN_RECOMPUTED and q.emitted == 0))",
        "return int(q.prefill_until)",
    ),
    Mutant(
        "what is pulled finds no blocks for its drafts",
        "copies/transfers.py",
        "    return min(kv + 1 + s.options.depth, last)\n",
        "    return min(kv + 1, last)\n",
    ),
    Mutant(
        "what is pulled finds blocks beyond its last token",
        "copies/transfers.py",
        "    return min(kv + 1 + s.options.depth, last)\n",
        "    return kv + 1 + s.options.depth\n",
    ),
    Mutant(
        "the tail of a migration finds no blocks for its drafts",
        "copies/migration.py",
        "    room = kv_of_first_step(s, r, kv) if unlikely(s.options.pulls) else kv\n",
        "    room = kv + s.options.pulls\n",
    ),
    Mutant(
        "single steps go on while KV waits to be fetched",
        "steps/single_steps.py",
        " or (s.options.pulls and inst.incoming_head >= 0)",
        "",
    ),
    # --- decisions about requests that already run ---
    Mutant(
        "decisions about steps do not wait for their ends",
        "roles/decisions.py",
        "    if _awaits_turn(s, r, kind) and not first <= q.instance < first + count:\n",
        "    if False:\n",
    ),
    Mutant(
        "no decision undoes one that waits",
        "roles/postponing.py",
        "        forget(s, j)\n        return withdrawn\n",
        "        return withdrawn\n",
    ),
    Mutant(
        "a cancellation that waits is undone",
        "roles/postponing.py",
        "entry.kind == CANCEL or ",
        "",
    ),
    Mutant(
        "preemptions by the policy are not counted",
        "roles/suspension.py",
        "    q.preemptions += 1\n    s.sim.preemptions += 1\n    evict(s, i, r)\n",
        "    evict(s, i, r)\n",
    ),
    Mutant(
        "nothing is sent to the room of one that the policy preempts",
        "roles/suspension.py",
        "    s.instances[i].suspended += comes_back(s, r)\n    start_transfers(s, i)\n",
        "    s.instances[i].suspended += comes_back(s, r)\n",
    ),
    Mutant(
        "an instance drains before one that is suspended there",
        "roles/inventory.py",
        "inst.swapped + inst.suspended + again",
        "inst.swapped + again",
    ),
    Mutant(
        "the policy decides before the first step alone",
        "loop.py",
        "        s.instances[k].asked = False\n",
        "",
    ),
    Mutant(
        "a decision sees leaps as they were before their turns",
        "roles/decisions.py",
        "    s.sim.scheduled = max(s.sim.scheduled, i - 1)  # the instances before it have too, if they leap\n",
        "",
    ),
    Mutant(
        "a decision that waits misses a turn that was asked about",
        "roles/postponing.py",
        "    s.instances[entry.instance].asked = False\n",
        "",
    ),
    Mutant(
        "copies that a decision withdraws leave rates as they are",
        "roles/decisions.py",
        "    if s.sim.changed_links > 0:\n        share_links(s)\n",
        "",
    ),
    Mutant(
        "a suspended request is resumed where no prompts are taken",
        "roles/suspension.py",
        "    if s.instances[i].role & PREFILL == 0 and not recomputes_here(s, r):\n",
        "    if False:\n",
    ),
    Mutant(
        "a resumed request keeps its place",
        "roles/suspension.py",
        "    take_place(s, r)\n",
        "",
    ),
    Mutant(
        "one with kept KV comes back without a seat",
        "roles/suspension.py",
        "    elif q.state == SUSPENDED_HERE and seats(s, i) < s.instances[i].max_batch:\n",
        "    elif q.state == SUSPENDED_HERE:\n",
    ),
    Mutant(
        "one with kept KV comes back by its old admission",
        "roles/suspension.py",
        "        s.sim.admissions += 1\n        q.admission = s.sim.admissions\n",
        "",
    ),
    Mutant(
        "KV that a decision swaps out takes no time",
        "roles/suspension.py",
        "    s.instances[i].swap_bytes += s.requests[r].kv * s.options.kv_bytes_per_token\n",
        "",
    ),
    Mutant(
        "one cancelled with kept KV leaves it",
        "roles/decisions.py",
        "        if q.state == SUSPENDED_HERE:\n            free_kv(s, i, r)\n",
        "",
    ),
    Mutant(
        "a run that stalls leaves kept KV",
        "roles/inventory.py",
        "        if q.state == SUSPENDED_HERE:\n            free_kv(s, q.instance, r)\n",
        "",
    ),
    Mutant(
        "kept KV lets nobody stall",
        "roles/circles.py",
        "            s.instances[s.requests[r].instance].marked = True\n",
        "            pass\n",
    ),
    Mutant(
        "nothing is sent to seats that the policy adds",
        "roles/actions.py",
        "        start_transfers(s, action.instance)\n",
        "",
    ),
    Mutant(
        "one cancelled on its way leaves its KV where it was",
        "roles/leaving.py",
        "    free_kv(s, q.instance, r)\n",
        "",
    ),
    Mutant(
        "one cancelled while it joins keeps its KV",
        "roles/leaving.py",
        "    load_changed(s, i)\n    free_kv(s, i, r)\n",
        "    load_changed(s, i)\n",
    ),
    Mutant(
        "one that leaves the queue still bars transfers",
        "roles/leaving.py",
        "            inst.recompute_tokens -= q.prefill_until\n",
        "            pass\n",
    ),
    Mutant(
        "one that waits is moved to an instance that takes no prompts",
        "roles/decisions.py",
        " or s.instances[target].role & PREFILL == 0:\n",
        ":\n",
    ),
    Mutant(
        "one that is recomputed where it was is moved",
        "roles/decisions.py",
        "    if recomputes_here(s, r) or not fits(s, target, r):\n",
        "    if not fits(s, target, r):\n",
    ),
    Mutant(
        "nobody wakes where one that waited has left",
        "roles/decisions.py",
        "    enter_queue(s, target, r)\n    wake(s, i)\n",
        "    enter_queue(s, target, r)\n",
    ),
    Mutant(
        "the policy names no victim in order of admission",
        "steps/running_list.py",
        " or is_asked(s, VICTIM)\n",
        "\n",
    ),
    Mutant(
        "the policy names the victim where one has ended",
        "requests/preemption.py",
        "return ended if ended >= 0 else _asked_for(s, i)",
        "return _asked_for(s, i)",
    ),
    Mutant(
        "decodes that are left out need room",
        "requests/selection.py",
        "        if not s.requests[r].skips:\n            blocks += growth_of(s, i, r)\n",
        "        blocks += growth_of(s, i, r)\n",
    ),
    Mutant(
        "decodes that are left out are left out for good",
        "events/ask.py",
        "        s.requests[s.lists[inst.running_at + j]].skips = False\n",
        "        pass\n",
    ),
    Mutant(
        "decodes that are left out are not on their ranks",
        "parallel/data_parallel.py",
        "        if unlikely(inst.paused > 0):\n            paused, kv",
        "        if False:\n            paused, kv",
    ),
    Mutant(
        "one that comes back is left out as before",
        "requests/lifecycle.py",
        "    q.skips = False\n",
        "",
    ),
    Mutant(
        "decodes that are left out take tokens in order of admission",
        "steps/running_list.py",
        "s.requests[r].skips or ",
        "",
    ),
    Mutant(
        "the policy is told of the first end of a step alone",
        "roles/decisions.py",
        "        s.sim.told += 1\n",
        "        s.sim.told = s.sim.finished\n",
    ),
    Mutant(
        "the policy is told of ends at the next decision",
        "loop.py",
        " or unlikely(tells(s))",
        "",
    ),
    Mutant(
        "what a tick decides is carried out up to a decision alone",
        "roles/decisions.py",
        "        _carry_out(s, ON_TICK, first, count, 0, 0)\n",
        "        _carry_out(s, ON_TICK, first, first + 1, 0, 0)\n",
    ),
    Mutant(
        "ranks of a group are asked about one alone",
        "roles/decisions.py",
        "    first, count = group_of(s, i)\n    s.sim.scheduled",
        "    first, count = i, 1\n    s.sim.scheduled",
    ),
    # --- stores of KV blocks ---
    Mutant(
        "stores of KV blocks hold as many as they would of the trace's",
        "setup/prefix_layout.py",
        '    block_tokens = int(options["hash_blocks"][0] * options["block_tokens"][0])\n',
        "    block_tokens = workload.hash_block_tokens or 1\n",
    ),
    Mutant(
        "KV blocks are not found in stores",
        "kv/prefix_cache.py",
        "(s.options.tiers == 0 or tier_of(s, i, key) < 0)",
        "(s.options.tiers == 0 or s.options.shares_early or tier_of(s, i, key) < 0)",
    ),
    Mutant(
        "KV blocks in stores take no room",
        "kv/prefix_cache.py",
        "    if s.options.tiers == 0:\n        return run\n",
        "    if s.options.tiers == 0 or s.options.shares_early:\n        return run\n",
    ),
    # --- faults ---
    Mutant(
        "leaps outlive the begin of a slow-down",
        "roles/slow_downs.py",
        "        end_leap_early(s, i)\n",
        "        pass\n",
    ),
    Mutant(
        "a hung instance keeps its turn",
        "roles/hangs.py",
        "        resume(s, j)\n        drop_turn(s, j)\n",
        "        resume(s, j)\n",
    ),
    Mutant(
        "what a hung instance does not compute is sent",
        "roles/hangs.py",
        "                call_back(s, r)\n",
        "                pass\n",
    ),
    Mutant(
        "a run ends while a network is parted",
        "roles/networks.py",
        "    s.sim.awaited += int(bytes_s == 0.0) - int(s.links[i].bandwidth_bytes_s == 0.0)\n",
        "",
    ),
    Mutant(
        "a network fails in one direction",
        "roles/networks.py",
        "    for link in (i, s.options.instances + i):\n",
        "    for link in (i, i):\n",
    ),
    Mutant(
        "copies under way keep their rates when a network fails",
        "roles/networks.py",
        "        note_change(s, link)\n",
        "        pass\n",
    ),
    Mutant("a hung instance schedules", "events/order.py", " or s.instances[i].hung:", ":"),
    Mutant("copies to a hung instance begin", "copies/transfers.py", " or inst.hung:", ":"),
    Mutant(
        "paused decodes stay paused in a hang",
        "roles/hangs.py",
        "        resume(s, j)\n        drop_turn",
        "        drop_turn",
    ),
    Mutant(
        "a client waits no longer than it did the first time",
        "requests/giving_up.py",
        "    s.times[s.options.patient_times_at + last] = sim.now_s + s.options.patience_s\n",
        "    s.times[s.options.patient_times_at + last] = s.requests[r].arrival_s + s.options.patience_s\n",
    ),
    Mutant(
        "a client waits while its request is refused",
        "requests/giving_up.py",
        "    if q.state == FUTURE or q.state >= FINISHED:\n",
        "    if q.state >= FINISHED:\n",
    ),
    Mutant(
        "a request whose prompt is computed is given up",
        "requests/giving_up.py",
        "    return not np.isnan(s.requests[r].prefill_end_s)\n",
        "    return s.requests[r].emitted > 1\n",
    ),
    Mutant("a client comes back as soon each time", "requests/giving_up.py", " * 2.0 ** (attempts - 1)", ""),
    Mutant(
        "a client comes back once less",
        "requests/giving_up.py",
        "    if 0 < attempts <= s.options.retries and",
        "    if 0 < attempts < s.options.retries and",
    ),
    Mutant(
        "a client comes back after the end of its load",
        "requests/giving_up.py",
        " and again_s < s.options.horizon_s:\n",
        ":\n",
    ),
    Mutant("one that is sent again keeps its split", "requests/giving_up.py", "        q.split = 0\n", ""),
    Mutant(
        "one that is sent again has sent what it lost",
        "requests/giving_up.py",
        "        forget_place(s, r)\n",
        "",
    ),
    Mutant(
        "a run ends while clients wait",
        "requests/giving_up.py",
        "    sim.awaited += 1\n",
        "",
    ),
    Mutant(
        "ticks before a client gives up are not quiet",
        "events/order.py",
        " and kind != GIVE_UP) or sim",
        ") or sim",
    ),
    Mutant(
        "who waits behind is forgotten where a role changes",
        "roles/changes.py",
        "    note_next_to_give_up(s)\n",
        "",
    ),
    Mutant(
        "a detected instance still hangs", "roles/hangs.py", "        s.instances[j].hung = False\n", "        pass\n"
    ),
    Mutant(
        "a run ends while an instance hangs",
        "roles/hangs.py",
        "    s.sim.awaited += count\n    for j",
        "    for j",
    ),
    Mutant("single steps outlive the begin of a slow-down", "roles/slow_downs.py", "    step.repeats = False\n", ""),
    Mutant(
        "later steps of a leap are not slow",
        "durations/duration.py",
        "        first_s *= slowdown\n        increment_s *= slowdown\n",
        "        first_s *= slowdown\n",
    ),
    Mutant(
        "prefill streams are not slow", "parallel/sm_sharing.py", "inst.slowness * prefill_slowdown", "prefill_slowdown"
    ),
    Mutant(
        "drafts are not slow",
        "durations/duration.py",
        "        first_s += slowdown * (step.depth * draft_s(",
        "        first_s += slowdown / inst.slowness * (step.depth * draft_s(",
    ),
    Mutant("the step under way at a crash counts", "roles/lost_steps.py", "            step.steps = step.done\n", ""),
    Mutant(
        "growth of a lost step stays taken",
        "roles/lost_steps.py",
        "        if step.decodes > 0 and step.grown > step.done:\n",
        "        if False:\n",
    ),
    Mutant("a lost step is no busy time", "roles/lost_steps.py", "        count_busy(s, i, 0.0)\n", "        pass\n"),
    Mutant(
        "a first token of a lost step is stamped",
        "roles/lost_steps.py",
        "        if q.first_token_s > s.sim.now_s:\n",
        "        if False:\n",
    ),
    Mutant(
        "a prefill step outlives the crash",
        "roles/lost_steps.py",
        "        drop_prefill_step(s, i)\n",
        "        pass\n",
    ),
    Mutant("a crashed instance keeps its turn", "roles/crashes.py", "    drop_turn(s, i)\n", ""),
    Mutant("cached prefixes outlive the crash", "roles/crashes.py", "    forget_prefixes(s, i)\n", ""),
    Mutant(
        "a plan that was followed is followed again",
        "roles/crashes.py",
        "        inst.next_budget = 0\n",
        "        pass\n",
    ),
    Mutant(
        "who waits for room elsewhere is not told of a crash",
        "roles/crashes.py",
        "            start_transfers(s, j)\n            wake(s, j)\n",
        "            wake(s, j)\n",
    ),
    Mutant(
        "an instance that is off crashes",
        "roles/changes.py",
        "    return not (s.instances[i].down or is_off(s, i))\n",
        "    return not s.instances[i].down\n",
    ),
    Mutant("admission stays closed over a crash", "roles/crashes.py", "    inst.admission_opens = -1\n", ""),
    Mutant(
        "one that migrates to a crashed instance is dropped",
        "roles/inventory.py",
        "        return here\n    elif",
        "        return True\n    elif",
    ),
    Mutant(
        "one that is sent ahead to a crashed instance is dropped",
        "roles/inventory.py",
        "        return here or q.state != PREFILLING\n",
        "        return True\n",
    ),
)
