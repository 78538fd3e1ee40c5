"""Reads of the compiled engine's memory during a run, for a policy's view and for the log; and times to come."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled, inner
from framework.engine.durations.speculation import choose_depth, decode_step_s
from framework.engine.kv.prefix_cache import matched_blocks
from framework.engine.memory.attach import addresses_of, attach_at
from framework.engine.memory.state import Memory, State
from framework.engine.parallel.sm_sharing import WHOLE, contention_with_s, decode_slowdown, prefill_slowdown
from framework.engine.setup.inspect_requests import (
    list_decoding,
    list_residents,
    list_waiting,
    write_generated,
    write_kv,
    write_oldest_open_steps,
)
from framework.policy.inspection import View, require_decoding
from framework.timing.estimate import prefill_alone_s
from framework.timing.table import StepTables, base_s, chunk_s

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class MemoryInspection:
    """The memory of one run as `framework.policy.inspection.Inspection`."""

    def __init__(self, memory: Memory) -> None:
        self.requests = memory.requests
        self.instances = memory.instances
        self._key, self._queue_number = memory.requests["key"], memory.requests["queue_number"]
        self._addresses = addresses_of(memory)
        self.view = View(memory.options, memory.sim, memory.requests, memory.instances, self._addresses)
        self.tables = StepTables(memory.timing_rows, memory.timing_data)
        self.block_tokens = int(memory.options["block_tokens"][0])
        self.copy_bytes_per_token = float(memory.options["copy_bytes_per_token"][0])
        self._memory = memory
        self._now_s = memory.sim["now_s"]
        most, size = int(memory.options["most_running"][0]), len(memory.instances)
        self._running = memory.lists[memory.instances["running_at"][0] :][: size * most].reshape(size, most)
        self._prefilling = memory.lists[memory.instances["prefilling_at"][0] :][: size * most].reshape(size, most)
        self._suspended = memory.lists[memory.options["suspended_at"][0] :][: len(memory.requests)]
        self._finished = memory.lists[memory.options["finished_at"][0] :][: len(memory.requests)]
        self._residents = np.empty((3, len(memory.requests)), np.int64)  # unread pages take no memory

    @property
    def now_s(self) -> float:
        return float(self._now_s.item())

    @property
    def role_changes(self) -> int:
        return int(self._memory.sim["role_changes"][0])

    @property
    def finished(self) -> Integers:
        return self._finished[: int(self._memory.sim["finished"][0])]

    def decoding(self, i: int) -> Integers:
        return self._running[i, : self.instances["running"][i]].copy()

    def prefilling(self, i: int) -> Integers:
        return self._prefilling[i, : self.instances["prefilling"][i]].copy()

    def queued(self, i: int) -> Integers:
        waiting, count = list_waiting(self._addresses, i, self._residents)
        ids = self._residents[0, :count].copy()
        queue = ids[:waiting]
        ids[:waiting] = queue[np.lexsort((self._queue_number[queue], self._key[queue]))]
        return ids

    @property
    def suspended(self) -> Integers:
        return self._suspended[: int(self._memory.sim["suspended"][0])].copy()

    def decoding_on(self, ids: Integers) -> tuple[Integers, Integers]:
        return list_decoding(self._addresses, self._running, ids)

    def residents(self, ids: Integers) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        found = self._residents[:, : list_residents(self._addresses, ids, self._residents)].copy()
        return found[0], found[1], found[2] != 0

    def migrating(self, ids: Integers) -> NDArray[np.bool_]:
        return np.asarray(self.requests["migration"][ids] != 0)

    def generated(self, ids: Integers) -> Integers:
        tokens = np.empty(len(ids), np.int64)
        write_generated(self._addresses, ids, tokens)
        return tokens

    def kv_tokens(self, ids: Integers) -> Integers:
        tokens = np.empty(len(ids), np.int64)
        wrong = write_kv(self._addresses, ids, tokens)
        if wrong >= 0:
            require_decoding(ids[wrong : wrong + 1], np.zeros(1, np.bool_))
        return tokens

    def cached_tokens(self, ids: Integers, r: int) -> Integers:
        return _cached_tokens(self._addresses, ids, r)

    def prefill_times_s(self, ids: Integers, r: int, cached: Integers, most: int) -> Floats:
        return _prefill_times_s(self._addresses, ids, r, cached, most)

    def step_times_s(self, ids: Integers) -> Floats:
        times_s = np.empty(len(ids))
        _step_times_s(self._addresses, ids, times_s)
        return times_s

    def stream_times_s(self, i: int) -> tuple[Floats, Floats]:
        return _stream_times_s(self._addresses, i)

    def oldest_open_step(self) -> Integers:
        """For each instance, the first decode step whose log a request that decodes there still needs."""
        oldest = np.empty(len(self.instances), np.int64)
        write_oldest_open_steps(self._addresses, self._running, oldest)
        return oldest


@compiled
def _cached_tokens(addresses: Any, instances: NDArray[np.int64], r: int) -> NDArray[np.int64]:
    """Tokens of r's prompt in the prefix cache, or a store, of each of these instances."""
    s = attach_at(addresses)
    tokens = np.empty(len(instances), np.int64)
    for j in range(len(instances)):
        run = matched_blocks(s, instances[j], r, s.requests[r].input_tokens)
        tokens[j] = run * s.options.hash_blocks * s.options.block_tokens
    return tokens


@compiled
def _prefill_times_s(
    addresses: Any, instances: NDArray[np.int64], r: int, cached: NDArray[np.int64], most: int
) -> NDArray[np.float64]:
    """Seconds to prefill the rest of r on each of these instances, given its cached tokens, in steps of at most `most`
    tokens that one micro-batch holds.
    """
    s = attach_at(addresses)
    tables, prompt = StepTables(s.timing_rows, s.timing_data), s.requests[r].input_tokens
    times_s = np.empty(len(instances))
    for j in range(len(instances)):
        inst = s.instances[instances[j]]
        times_s[j] = prefill_alone_s(tables, inst.row, max(1, inst.stages), cached[j], prompt, most)
    return times_s


@compiled
def _step_times_s(addresses: Any, instances: NDArray[np.int64], times_s: NDArray[np.float64]) -> None:
    """Write the seconds of each instance's next step with all its decodes; 0 if it has none."""
    s = attach_at(addresses)
    for j in range(len(instances)):
        times_s[j] = 0.0
        if s.instances[instances[j]].running > 0:
            times_s[j] = decode_step_s(s, instances[j], choose_depth(s, instances[j]))


@inner
def next_streams_s(s: State, i: int) -> tuple[float, float]:
    """Seconds of i's next prefill and decode step, each on all SMs, concurrent; 0 for a stream without work.

    The prefill step has the tokens that lack prefill, up to the budget; its first chunk is that of the first prefilling
    request, or else of the first waiting one. Tokens that lack prefill may also be on their way here, with the KV
    before them.
    """
    inst = s.instances[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    tokens = min(inst.token_budget, inst.queued_tokens)
    prefill_s, attention_s, read = 0.0, 0.0, 0
    r = s.lists[inst.prefilling_at] if inst.prefilling > 0 else inst.waiting_root
    if r < 0:
        r = inst.inbox_head
    if r >= 0 and tokens > 0:
        q = s.requests[r]
        chunk = min(tokens, q.prefill_until - q.prefilled)
        read = q.prefilled + tokens
        attention_s = chunk_s(tables, inst.row, q.prefilled, chunk)
        if tokens > chunk:
            attention_s += chunk_s(tables, inst.row, 0, tokens - chunk)
        prefill_s = base_s(tables, inst.row, tokens, 0, 1) + attention_s
    decode_s = 0.0
    if inst.running > 0:
        decode_s = decode_step_s(s, i, choose_depth(s, i))
        if prefill_s > 0.0:
            decode_s += contention_with_s(s, i, inst.decode_kv + inst.running, attention_s / prefill_s, read)
    return prefill_s, decode_s


@compiled
def _stream_times_s(addresses: Any, i: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The seconds of each stream by its percent of the SMs, shape (101,)."""
    s = attach_at(addresses)
    prefill_s, decode_s = next_streams_s(s, i)
    prefills_s, decodes_s = np.zeros(WHOLE + 1), np.zeros(WHOLE + 1)
    for percent in range(WHOLE + 1):
        if prefill_s > 0.0:
            prefills_s[percent] = prefill_s * prefill_slowdown(s, percent)
        if decode_s > 0.0:
            decodes_s[percent] = decode_s * decode_slowdown(s, percent)
    return prefills_s, decodes_s
