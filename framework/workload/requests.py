"""The requests of one run as arrays: the form of a trace that is simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.checks import require_count, require_positive
from framework.errors import InputError
from framework.workload.programs import check_calls, kept_links, openers

_ROWS = (
    *("arrival_s", "input_tokens", "output_tokens", "previous", "think_s"),
    *("session_id", "turn", "trigger", "slo_class", "priority", "tenant"),
)
_MOST_NAME = np.iinfo(np.int32).max
_TEXTS = ("slo_class", "tenant")
_NUMBERS = tuple(name for name in _ROWS if name not in _TEXTS)


@dataclass(frozen=True)
class Workload:
    """N requests in trace order, each array of shape (N,) unless stated otherwise.

    A request with `previous >= 0` (a later call of a program, such as a later turn of a session) arrives `think_s`
    after request `previous`, and all others that `joins` gives it, have ended. Arrays are read-only, so workloads may
    share them.

    Attributes:
        arrival_s: Recorded times of arrival, seconds, non-decreasing.
        input_tokens: Tokens of each prompt, at least 1.
        output_tokens: Tokens of each answer, at least 1.
        name: Of the trace, in results.
        source: "real", "twin" (drawn from a fitted trace) or "synthetic".
        sha256: Of the file.
        hash_ids: (K,) Ids of the blocks of prompts, kept as int32. They are chained: the same id means the same prefix
            up to and including that block.
        hash_spans: (N, 2) The blocks of request r's prompt are `hash_ids[begin:end]` with begin and end =
            `hash_spans[r]`; spans may overlap. None: no prefix information. See `consecutive`.
        hash_block_tokens: Tokens of each such block.
        previous: The call that it waits for, whose context it may continue; -1: none.
        joins: (J, 2) A call, and a further one of its session that it waits for.
        think_s: Seconds from the end of those to its arrival.
        session_id: Of its session, -1: none.
        turn: Its place in its session, from 0.
        trigger: What `think_s` is: an index of `framework.workload.programs.TRIGGERS`.
        slo_class: N names of classes.
        priority: Larger first.
        tenant: N names of senders: a user, a customer.
        notes: Notes for readers of the results (jitter, rescaling, a fitted trace).
        caveat: A warning that must appear next to the results.

    Raises:
        InputError: For columns of unequal length, no requests, and values out of range.

    Example:
        >>> import numpy as np
        >>> three = servelab.Workload(np.array([0.0, 0.1, 0.2]), np.array([900, 50, 400]), np.array([20, 80, 5]))
        >>> len(three), servelab.run("chunked", three).summary["total_output_tokens"]
        (3, 105)
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    name: str = "workload"
    source: str = "synthetic"
    sha256: str = ""
    hash_ids: NDArray[np.integer[Any]] = field(default_factory=lambda: np.zeros(0, np.int32))
    hash_spans: NDArray[np.int64] | None = None
    hash_block_tokens: int = 0
    previous: NDArray[np.int64] | None = None
    joins: NDArray[np.int64] | None = None
    think_s: NDArray[np.float64] | None = None
    session_id: NDArray[np.int64] | None = None
    turn: NDArray[np.int64] | None = None
    trigger: NDArray[np.int8] | None = None
    slo_class: tuple[str, ...] | None = None
    priority: NDArray[np.int64] | None = None
    tenant: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    caveat: str = ""

    def __post_init__(self) -> None:
        count = len(self.arrival_s)
        for name in _ROWS:
            column = getattr(self, name)
            if column is not None and len(column) != count:
                raise InputError(f"workload: {name} has {len(column)} rows, arrival_s has {count}")
        if count == 0:
            raise InputError("workload: no requests")
        if not np.all(np.isfinite(self.arrival_s)) or np.any(np.diff(self.arrival_s) < 0) or self.arrival_s[0] < 0:
            raise InputError("workload: arrival_s must be finite, non-negative and non-decreasing")
        if self.input_tokens.min() < 1 or self.output_tokens.min() < 1:
            raise InputError("workload: input_tokens and output_tokens must be at least 1")
        if self.joins is not None:
            check_calls(self.previous, self.joins, self.session_id)
        object.__setattr__(self, "hash_ids", small(self.hash_ids))
        if self.hash_spans is not None:
            _check_spans(self.hash_spans, count, len(self.hash_ids))
            if self.hash_block_tokens < 1:
                raise InputError("workload: hash_spans needs hash_block_tokens >= 1")
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                object.__setattr__(self, name, read_only(column))

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def openers(self) -> NDArray[np.int64]:
        """The first call of each request's program, (N,)."""
        return openers(self.previous, self.session_id, len(self))

    @property
    def overlaps(self) -> bool:
        """Whether calls of one program may be under way at the same time."""
        if self.previous is None:
            return False
        later = self.previous[self.previous >= 0]
        firsts = np.flatnonzero(self.previous < 0)
        return len(np.unique(later)) < len(later) or bool(np.any(self.openers[firsts] < firsts))

    @property
    def has_prefixes(self) -> bool:
        """Whether prompts have ids of blocks."""
        return self.hash_spans is not None and len(self.hash_ids) > 0

    @property
    def hash_counts(self) -> NDArray[np.int64]:
        """The number of each prompt's blocks that have an id, (N,)."""
        if self.hash_spans is None:
            return np.zeros(len(self), np.int64)
        counts: NDArray[np.int64] = self.hash_spans[:, 1] - self.hash_spans[:, 0]
        return counts

    def hash_ids_of(self, request: int) -> NDArray[np.integer[Any]]:
        """The ids of the blocks of a request's prompt, from its beginning."""
        return self.hash_ids[:0] if self.hash_spans is None else self.hash_ids[slice(*self.hash_spans[request])]


def consecutive(counts: NDArray[np.integer[Any]] | Sequence[int]) -> NDArray[np.int64]:
    """Spans (N, 2) of requests with these numbers of ids, each request's ids after those of the previous one."""
    ends = np.cumsum(counts, dtype=np.int64)
    return np.stack((ends - counts, ends), axis=1)


def _check_spans(spans: NDArray[np.int64], requests: int, ids: int) -> None:
    if spans.shape != (requests, 2):
        raise InputError(f"workload: hash_spans must have a begin and an end for each request, has shape {spans.shape}")
    if np.any(spans[:, 0] < 0) or np.any(spans[:, 1] < spans[:, 0]) or np.any(spans[:, 1] > ids):
        raise InputError(f"workload: hash_spans must lie within the {ids} hash_ids, begins before ends")


def small(names: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
    """The names as int32, renumbered if they do not fit."""
    if len(names) and (names.min() < -_MOST_NAME or names.max() > _MOST_NAME):
        names = np.unique(names, return_inverse=True)[1]
    return np.ascontiguousarray(names, np.int32)


def within_context(workload: Workload, max_context: int) -> Workload:
    """The workload with outputs that end with the model's context, as servers end them; prompts without room for a
    token stay.
    """
    room = max_context - workload.input_tokens
    cut = (room >= 1) & (workload.output_tokens > room)
    return replace(workload, output_tokens=np.where(cut, room, workload.output_tokens)) if cut.any() else workload


def longest_tokens(workload: Workload, max_context: int) -> int:
    """Prompt and output of the longest request that a model of this context serves; the context if it serves none."""
    tokens = workload.input_tokens + workload.output_tokens
    most = int(tokens.max())
    if most > max_context:  # of requests that do not fit, too
        fits = workload.input_tokens < max_context
        return min(int(tokens[fits].max()), max_context) if fits.any() else max_context
    return most


def rate_rps(workload: Workload) -> float:
    """Mean arrivals per second, N / period; infinite if all arrive at once."""
    period = period_s(workload)
    return len(workload) / period if period > 0 else math.inf


def period_s(workload: Workload) -> float:
    """The period of the workload: first arrival to one mean gap after the last, N / (N - 1) spans."""
    count = len(workload)
    span = float(workload.arrival_s[-1] - workload.arrival_s[0])
    return span * count / (count - 1) if count > 1 else 0.0


def at_rate(workload: Workload, rate: float) -> Workload:
    """The workload with arrival times stretched to a mean of `rate` requests/s: burstiness keeps its shape, think times
    stay.

    Raises InputError for a rate that is not positive and for requests that all arrive at once.
    """
    require_positive("rate", rate)
    if math.isinf(rate_rps(workload)):
        raise InputError(f"workload {workload.name}: all requests arrive at once, there is no rate to be stretched")
    factor = rate / rate_rps(workload)
    if factor == 1:
        return workload
    notes = (*workload.notes, f"arrival times divided by {factor:.6g}")
    return replace(workload, arrival_s=workload.arrival_s / factor, notes=notes)


def repeated(workload: Workload, times: int) -> Workload:
    """The workload `times` over, one period apart; hash blocks and sessions of each copy get new names.

    Raises InputError unless `times` is a whole number of at least 1.
    """
    require_count("times", times)
    if times == 1:
        return workload
    period, blocks = period_s(workload), len(workload.hash_ids)
    names = int(workload.hash_ids.max(initial=-1)) + 1  # the number of names of one copy
    spans, ids = workload.hash_spans, workload.session_id
    return replace(
        workload,
        arrival_s=(period * np.arange(times)[:, None] + workload.arrival_s).ravel(),
        input_tokens=np.tile(workload.input_tokens, times),
        output_tokens=np.tile(workload.output_tokens, times),
        hash_ids=_shifted(workload.hash_ids, names, times),
        hash_spans=None if spans is None else np.concatenate([spans + blocks * copy for copy in range(times)]),
        previous=None if workload.previous is None else _shifted(workload.previous, len(workload), times),
        joins=None if workload.joins is None else _copied(workload.joins, len(workload), times),
        think_s=None if workload.think_s is None else np.tile(workload.think_s, times),
        session_id=None if ids is None else _shifted(ids, int(ids.max()) + 1, times),
        turn=None if workload.turn is None else np.tile(workload.turn, times),
        trigger=None if workload.trigger is None else np.tile(workload.trigger, times),
        slo_class=None if workload.slo_class is None else workload.slo_class * times,
        priority=None if workload.priority is None else np.tile(workload.priority, times),
        tenant=None if workload.tenant is None else workload.tenant * times,
        notes=(*workload.notes, f"tiled {times} times, {period:.6g} s apart"),
    )


def first(workload: Workload, requests: int) -> Workload:
    """The first `requests` requests. Raises InputError unless that is a whole number of at least 1."""
    require_count("requests", requests)
    if requests >= len(workload):
        return workload
    columns = {
        name: column[:requests] for name, column in vars(workload).items() if name in _ROWS and column is not None
    }
    if workload.joins is not None:
        columns["joins"] = workload.joins[workload.joins[:, 0] < requests]
    if workload.hash_spans is not None:
        columns |= _named_by(workload, workload.hash_spans[:requests])
    return replace(workload, **columns)


def chosen(workload: Workload, kept: NDArray[np.bool_]) -> Workload:
    """The requests that `kept` (N,) selects, in order; a call that waits for none of them arrives as recorded."""
    if kept.all():
        return workload
    numbers = {name: getattr(workload, name) for name in _NUMBERS}
    columns: dict[str, Any] = {name: column[kept] for name, column in numbers.items() if column is not None}
    if workload.previous is not None:
        columns["previous"], columns["joins"] = kept_links(workload.previous, workload.joins, kept)
    for name in _TEXTS:
        texts = getattr(workload, name)
        if texts is not None:
            columns[name] = tuple(text for text, keeps in zip(texts, kept, strict=True) if keeps)
    if workload.hash_spans is not None:
        columns |= _named_by(workload, workload.hash_spans[kept])
    return replace(workload, **columns)


def _named_by(workload: Workload, spans: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """The ids that lie in `spans`, and the spans of the same requests in these."""
    held = np.zeros(len(workload.hash_ids) + 1, np.int64)
    np.add.at(held, spans[:, 0], 1)
    np.add.at(held, spans[:, 1], -1)
    kept = np.cumsum(held[:-1]) > 0
    return {"hash_ids": workload.hash_ids[kept], "hash_spans": np.concatenate(([0], np.cumsum(kept)))[spans]}


def _copied(joins: NDArray[np.int64], step: int, times: int) -> NDArray[np.int64]:
    copies: NDArray[np.int64] = joins + step * np.arange(times)[:, None, None]
    return copies.reshape(-1, 2)


def _shifted(names: NDArray[np.integer[Any]], step: int, times: int) -> NDArray[np.int64]:
    """`times` copies in a row, `step` apart; -1 means none and stays."""
    copies = names + step * np.arange(times)[:, None]
    copies[:, names < 0] = -1
    return copies.ravel()


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """The array itself if it is read-only, else a read-only view of it."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view
