"""What a policy sees of the reference engine: columns, written from its objects before each question.

`REQUEST_COLUMNS` and `INSTANCE_COLUMNS` list the columns, one row each: name, type, and how an object gives the value.
The instance columns also hold the totals that results report. To show a policy something new, add a row here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.policy.inspection import Floats, Integers, View, require_decoding
from framework.reference.holdings import incoming_kv_tokens, kv_tokens, queued_tokens
from framework.reference.prefixes import known_prefix
from framework.reference.simulation import Simulation
from framework.reference.state import INSTANCE_TOTALS, Instance, Request
from framework.reference.steps.duration import choose_depth, draft_s, verify_s
from framework.timing.table import StepTables
from framework.workload import Workload

_WHOLE = 100  # percent
_COUNTS = (
    "steps",
    "weight_passes",
    "decode_steps",
    "prefill_tokens",
    "decode_tokens",
    "drafted_tokens",
    "accepted_tokens",
)

REQUEST_COLUMNS: tuple[tuple[str, str, Callable[[Request], Any]], ...] = (
    ("arrival_s", "f8", lambda r: r.arrival_s),
    ("instance", "i4", lambda r: r.instance),
    ("destination", "i4", lambda r: _destination(r)),
    ("prefill_instance", "i4", lambda r: r.prefill_instance),
    ("decode_instance", "i4", lambda r: r.decode_instance),
    ("preemptions", "i4", lambda r: r.preemptions),
    ("migrations", "i4", lambda r: r.migrations),
    ("first_token_s", "f8", lambda r: r.first_token_s),
    ("emitted", "i8", lambda r: r.emitted),
    ("end_s", "f8", lambda r: r.end_s),
)
_OF_THE_TRACE = (
    ("input_tokens", "i8"),
    *((name, "i4") for name in ("priority", "slo_class", "tenant", "session", "turn")),
)

INSTANCE_COLUMNS: tuple[tuple[str, str, Callable[[Instance], Any]], ...] = (
    ("pool", "i4", lambda i: i.spec.pool),
    ("row", "i4", lambda i: i.spec.row),
    ("role", "i1", lambda i: i.role),
    ("draining_role", "i1", lambda i: i.draining_role),
    ("next_role", "i1", lambda i: i.next_role),
    ("queued", "i8", lambda i: len(i.waiting) + len(i.inbox)),
    ("queued_tokens", "i8", queued_tokens),
    ("prefilling", "i8", lambda i: len(i.prefilling)),
    ("running", "i8", lambda i: len(i.running)),
    ("joining", "i8", lambda i: len(i.joining) + len(i.computed)),
    ("reserved", "i8", lambda i: len(i.reserved)),
    ("swapped", "i8", lambda i: len(i.swapped)),
    ("incoming", "i8", lambda i: len(i.incoming) + len(i.reserved)),
    ("incoming_kv_tokens", "i8", incoming_kv_tokens),
    ("kv_tokens", "i8", kv_tokens),
    ("decode_kv", "i8", lambda i: sum(r.kv - r.elsewhere for r in i.running)),
    ("total_blocks", "i8", lambda i: i.cache.total),
    ("free_blocks", "i8", lambda i: i.cache.free),
    ("evictable_blocks", "i8", lambda i: i.cache.evictable),
    ("token_budget", "i8", lambda i: i.token_budget),
    ("max_batch", "i8", lambda i: i.max_batch),
    ("prefill_percent", "i8", lambda i: i.prefill_percent),
    ("most_drafts", "i8", lambda i: i.most_drafts),
    ("bandwidth_bytes_s", "f8", lambda i: i.spec.bandwidth_bytes_s),
    ("stages", "i8", lambda i: i.spec.stages),
    ("gpus", "i4", lambda i: i.gpus),
    ("off_s", "f8", lambda i: i.off_s),
    ("extrapolation", "f8", lambda i: i.extrapolation),
    ("down", "b1", lambda i: i.down),
    ("starts", "i8", lambda i: i.starts),
    ("stops", "i8", lambda i: i.stops),
    ("reversals", "i8", lambda i: i.reversals),
    ("pins_broken", "i8", lambda i: i.pins_broken),
    ("restored_tokens", "i8", lambda i: i.restored_tokens),
    *((name, "i8" if name in _COUNTS else "f8", lambda i, name=name: i.totals[name]) for name in INSTANCE_TOTALS),
)


def _destination(r: Request) -> int:
    target = r.destination if r.migration is None else r.migration.target
    return -1 if target is None else target.id


class ReferenceInspection:
    """The objects of one run as `framework.policy.inspection.Inspection`; `tables`: as policies see them."""

    def __init__(self, simulation: Simulation, tables: StepTables, copy_bytes_per_token: float) -> None:
        self.tables = tables
        self.block_tokens = simulation.options.block_tokens
        self.copy_bytes_per_token = copy_bytes_per_token
        self._s = simulation
        self.requests = _requests(simulation)
        self._of_the_trace = [row.tolist()[: len(_OF_THE_TRACE)] for row in self.requests]
        columns = [(name, kind) for name, kind, _ in INSTANCE_COLUMNS]
        self.instances = np.zeros(len(simulation.instances), _record(*columns))
        options, clock = np.zeros(1, _record(("block_tokens", "i8"))), np.zeros(1, _record(("now_s", "f8")))
        options["block_tokens"] = self.block_tokens
        self.view = View(options, clock, self.requests, self.instances)
        self._ended = 0  # rows of ended requests that are final
        self.refresh()

    def refresh(self) -> None:
        """Write all columns again."""
        self.view.sim["now_s"] = self._s.now_s
        for i in self._s.instances:
            self.instances[i.id] = tuple(value(i) for _, _, value in INSTANCE_COLUMNS)
        for r in (*self._s.present.values(), *self._s.ended[self._ended :]):
            self.requests[r.id] = (*self._of_the_trace[r.id], *(value(r) for _, _, value in REQUEST_COLUMNS))
        self._ended = len(self._s.ended)

    @property
    def now_s(self) -> float:
        return self._s.now_s

    @property
    def role_changes(self) -> int:
        return self._s.role_changes

    @property
    def finished(self) -> Integers:
        return _ids(self._s.finished)

    def decoding(self, i: int) -> Integers:
        return _ids(self._s.instances[i].running)

    def prefilling(self, i: int) -> Integers:
        return _ids(self._s.instances[i].prefilling)

    def queued(self, i: int) -> Integers:
        instance = self._s.instances[i]
        return _ids([r for _, _, r in [*sorted(instance.waiting), *instance.inbox]])

    @property
    def suspended(self) -> Integers:
        return _ids([r for r in self._s.requests if r.suspended])

    def decoding_on(self, ids: Integers) -> tuple[Integers, Integers]:
        running = [self._s.instances[i].running for i in ids]
        owners = [k for k, there in enumerate(running) for _ in there]
        return _ids([r for there in running for r in there]), np.array(owners, np.int64)

    def residents(self, ids: Integers) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        position = {int(i): k for k, i in enumerate(ids)}
        decoding, owners = self.decoding_on(ids)
        here = {int(r): (int(k), True) for r, k in zip(decoding, owners, strict=True)}
        for r in sorted(self._s.present):
            target = _destination(self._s.requests[r])
            if target in position:
                here[r] = position[target], False
            elif target >= 0:
                here.pop(r, None)
        positions, stays = zip(*here.values(), strict=True) if here else ((), ())
        return np.array([*here], np.int64), np.array(positions, np.int64), np.array(stays, np.bool_)

    def migrating(self, ids: Integers) -> NDArray[np.bool_]:
        return np.array([self._s.requests[r].migration is not None for r in ids], np.bool_)

    def generated(self, ids: Integers) -> Integers:
        if np.any((ids < 0) | (ids >= len(self._s.requests))):
            raise IndexError("no request has that number")
        return np.array([self._s.requests[r].emitted for r in ids], np.int64)

    def kv_tokens(self, ids: Integers) -> Integers:
        running = {r.id for i in self._s.instances for r in i.running}
        require_decoding(ids, np.array([r in running for r in ids.tolist()], np.bool_))
        return np.array([self._s.requests[r].kv for r in ids], np.int64)

    def cached_tokens(self, ids: Integers, r: int) -> Integers:
        request = self._s.requests[r]
        blocks = [len(known_prefix(self._s, self._s.instances[i], request, request.input_tokens)) for i in ids]
        return np.array(blocks, np.int64) * self._s.hash_tokens

    def prefill_times_s(self, ids: Integers, r: int, cached: Integers, most: int) -> Floats:
        tokens = self._s.requests[r].input_tokens
        pairs = zip(ids, cached, strict=True)
        return np.array([self._prefill_s(self._s.instances[i], int(done), tokens, int(most)) for i, done in pairs])

    def _prefill_s(self, i: Instance, done: int, tokens: int, most: int) -> float:
        """The seconds of a prefill in steps in which each micro-batch has one chunk like this one."""
        timing, pool, stages, time_s = self._s.timing, i.spec.row, i.spec.stages, 0.0
        while done < tokens:
            chunk = min(-(-most // stages), tokens - done)
            time_s += timing.base_s(pool, stages * chunk, 0, stages) + stages * timing.chunk_s(pool, done, chunk)
            done += chunk
        return time_s

    def step_times_s(self, ids: Integers) -> Floats:
        return np.array([self._decode_step_s(self._s.instances[i]) for i in ids], np.float64)

    def _decode_step_s(self, i: Instance) -> float:
        if not i.running:
            return 0.0
        depth = choose_depth(self._s, i)
        drafting_s = depth * draft_s(self._s, i, i.running) if depth else 0.0
        return verify_s(self._s, i, i.running, depth) + drafting_s

    def stream_times_s(self, i: int) -> tuple[Floats, Floats]:
        options, instance = self._s.options, self._s.instances[i]
        prefill_s, attention_s, read = self._next_prefill(instance)
        decode_s = self._decode_step_s(instance)
        if decode_s > 0 and prefill_s > 0:
            decode_s += self._contention_s(instance, attention_s / prefill_s, read)
        zeros = np.zeros(_WHOLE + 1)
        prefills_s = prefill_s * np.array(options.prefill_slowdown) if prefill_s > 0 else zeros
        return prefills_s, decode_s * np.array(options.decode_slowdown) if decode_s > 0 else zeros

    def _next_prefill(self, i: Instance) -> tuple[float, float, int]:
        """Seconds of a step of the tokens that lack prefill, of its attention, and the KV tokens that it reads."""
        tokens = min(i.token_budget, queued_tokens(i))
        if tokens == 0 or not (i.prefilling or i.waiting or i.inbox):  # some may be on its way here
            return 0.0, 0.0, 0
        r = i.prefilling[0] if i.prefilling else (min(i.waiting) if i.waiting else i.inbox[0])[2]
        done, until = (r.prefilled, r.prefill_until) if i.prefilling else (0, r.goal)
        chunk, timing, pool = min(tokens, until - done), self._s.timing, i.spec.row
        attention_s = timing.chunk_s(pool, done, chunk)
        if tokens > chunk:
            attention_s += timing.chunk_s(pool, 0, tokens - chunk)
        return timing.base_s(pool, tokens, 0, 1) + attention_s, attention_s, done + tokens

    def _contention_s(self, i: Instance, attention_share: float, read: int) -> float:
        """Additional seconds in which i's decodes read their context because of a prefill step."""
        each, weights = self._s.options.kv_bytes_per_token, self._s.options.weight_bytes
        own = sum(r.kv + 1 for r in i.running) * each
        share = attention_share * (own / (own + read * each)) + (1 - attention_share) * (own / (own + weights))
        return (1 / share - 1) * (own / i.spec.memory_bytes_s)


def _record(*columns: tuple[str, str]) -> np.dtype[np.void]:
    """A record type whose fields are attributes, as compiled rules read them."""
    return np.dtype((np.record, np.dtype(list(columns), align=True)))


def _ids(requests: list[Request]) -> Integers:
    return np.array([r.id for r in requests], np.int64)


def _requests(s: Simulation) -> NDArray[np.void]:
    """Requests as they are known before the first event."""
    columns = [*_OF_THE_TRACE, *((name, kind) for name, kind, _ in REQUEST_COLUMNS)]
    requests, workload = np.zeros(len(s.requests), _record(*columns)), s.workload
    for name, _, value in REQUEST_COLUMNS:
        requests[name] = value(s.requests[0])  # nothing has happened to any request
    requests["input_tokens"] = workload.input_tokens
    requests["session"] = -1
    _set_columns(requests, workload)
    return requests


def _set_columns(requests: NDArray[np.void], workload: Workload) -> None:
    for name, column in (("session", workload.session_id), ("turn", workload.turn), ("priority", workload.priority)):
        if column is not None:
            requests[name] = column
    for name, texts in (("slo_class", workload.slo_class), ("tenant", workload.tenant)):
        if texts is not None:
            requests[name] = np.unique(texts, return_inverse=True)[1]
