"""What a policy sees of requests: columns of all of them, one of them, and those that have finished."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.policy.inspection import Inspection

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
State = Literal["to_come", "queued", "prefilling", "decoding", "suspended", "between", "ended"]

_REQUEST_COLUMNS = (
    *("arrival_s", "input_tokens", "priority", "slo_class", "tenant", "session", "turn", "instance"),
    *("destination", "prefill_instance", "decode_instance", "preemptions", "migrations", "first_token_s"),
)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A contiguous read-only view of the memory, which also refuses `setflags(write=True)`."""
    return np.frombuffer(array.view(np.uint8).data.toreadonly(), array.dtype)


class Limits(NamedTuple):
    """What the SLO allows to TTFT and TPOT, in seconds, of each request (N,); inf: any time."""

    ttft_s: Floats
    tpot_s: Floats


class RequestLimits(NamedTuple):
    """The same of one request."""

    ttft_s: float
    tpot_s: float


class Requests:
    """All requests as columns of shape (N,), indexed by `ids`. `arrival_s` is NaN for those yet to arrive.

    `slo_class` and `tenant` are numbers in the order of their names, 0 if the trace has none. `limits` are those of the
    run's SLO for each request's class.
    """

    arrival_s: Floats
    input_tokens: Integers
    priority: Integers
    slo_class: Integers
    tenant: Integers
    session: Integers
    turn: Integers
    instance: Integers
    destination: Integers
    prefill_instance: Integers
    decode_instance: Integers
    preemptions: Integers
    migrations: Integers
    first_token_s: Floats

    def __init__(self, engine: Inspection, limits: Callable[[], Limits] | None = None) -> None:
        self._engine = engine
        self._limits = limits
        rows = read_only(engine.requests)
        for name in _REQUEST_COLUMNS:
            setattr(self, name, rows[name])
        self._end_s = rows["end_s"]

    @cached_property
    def limits(self) -> Limits:
        """By class; inf where the run has no SLO."""
        if self._limits is None:
            none = np.full(len(self.input_tokens), np.inf)
            return Limits(read_only(none), read_only(none))
        return Limits(*map(read_only, self._limits()))

    def age_s(self, ids: Integers) -> Floats:
        """Seconds since each was sent, also if it has ended; NaN for those yet to arrive."""
        return self._engine.now_s - self.arrival_s[np.asarray(ids, np.int64)]

    def states(self, ids: Integers) -> list[State]:
        """Where each is: `queued`, `prefilling` or `decoding` if it is in that list of an instance, `suspended` by the
        policy, `to_come` or `ended`.

        `between`: in none of these. It is asked about, its KV is on its way or in host memory, or it waits at the
        gateway, for an instance, or for its client. Raises IndexError for an unknown number, and ValueError where the
        hook sees reports, which hold no lists.
        """
        ids, engine = np.asarray(ids, np.int64), self._engine
        if np.any(ids < 0):
            raise IndexError("no request has that number")
        have_ended = ~np.isnan(self._end_s[ids])
        homes = np.unique(self.instance[ids])
        listed: dict[int, State] = {}
        for i in homes[homes >= 0].tolist():
            listed |= dict.fromkeys(engine.queued(i).tolist(), "queued")
            listed |= dict.fromkeys(engine.prefilling(i).tolist(), "prefilling")
            listed |= dict.fromkeys(engine.decoding(i).tolist(), "decoding")
        listed |= dict.fromkeys(engine.suspended.tolist(), "suspended")
        return [
            "ended" if ended else "to_come" if to_come else listed.get(r, "between")
            for r, ended, to_come in zip(ids.tolist(), have_ended, np.isnan(self.arrival_s[ids]), strict=True)
        ]

    def generated(self, ids: Integers) -> Integers:
        """Tokens emitted so far."""
        return self._engine.generated(np.asarray(ids, np.int64))

    def kv_tokens(self, ids: Integers) -> Integers:
        """KV tokens of decoding requests. Raises ValueError for another request, whose KV grows by no rule."""
        return self._engine.kv_tokens(np.asarray(ids, np.int64))


@dataclass(frozen=True)
class Finished:
    """Requests that have finished, as columns in the order of their ends. `tpot_s` is NaN for a single token."""

    ids: Integers
    input_tokens: Integers
    output_tokens: Integers
    ttft_s: Floats
    tpot_s: Floats


class Request:
    """One request, as it is known at the present event; a hook gets it. Nothing tells its true output length.

    Attributes:
        id: Its number, the index of its row in `cluster.requests` and in the request table.

    Raises:
        AttributeError: For anything else.

    Example:
        >>> class Chats(servelab.Aggregated):  # long prompts have the last instance for themselves
        ...     def route_prefill(self, request: servelab.Request, cluster):
        ...         last = len(cluster.instances) - 1
        ...         return last if request.input_tokens > 2000 else request.id % last
        >>> chats = servelab.run(Chats(), "synthetic", limit=60, rate=20)
        >>> int(chats.requests.filter(chats.requests["prefill_instance"] == 4)["input_tokens"].min()) > 2000
        True
    """

    __slots__ = ("_requests", "id")

    def __init__(self, id: int, requests: Requests) -> None:
        self.id = id
        self._requests = requests

    @property
    def arrival_s(self) -> float:
        """When it was sent, in seconds of the run."""
        return float(self._requests.arrival_s[self.id])

    @property
    def age_s(self) -> float:
        """Seconds since it was sent."""
        return float(self._requests.age_s(np.asarray([self.id]))[0])

    @property
    def state(self) -> State:
        """Where it is, as `cluster.requests.states` tells it: `between` while a hook is asked where it goes."""
        return self._requests.states(np.asarray([self.id]))[0]

    @property
    def input_tokens(self) -> int:
        """Tokens of its prompt."""
        return int(self._requests.input_tokens[self.id])

    @property
    def generated(self) -> int:
        """Tokens emitted so far."""
        return int(self._requests.generated(np.asarray([self.id]))[0])

    @property
    def priority(self) -> int:
        """The priority that the trace gives it, larger first; 0 if it gives none."""
        return int(self._requests.priority[self.id])

    @property
    def slo_class(self) -> int:
        """The number of its class, in the order of their names; 0 if the trace has none."""
        return int(self._requests.slo_class[self.id])

    @property
    def limits(self) -> RequestLimits:
        """What the run's SLO allows to a request of its class, `ttft_s` and `tpot_s`; inf if any time will do."""
        limits = self._requests.limits
        return RequestLimits(float(limits.ttft_s[self.id]), float(limits.tpot_s[self.id]))

    @property
    def tenant(self) -> int:
        """The number of its tenant, in the order of their names."""
        return int(self._requests.tenant[self.id])

    @property
    def session(self) -> int:
        """The id of its session, or -1."""
        return int(self._requests.session[self.id])

    @property
    def turn(self) -> int:
        """Its place in its session, from 0."""
        return int(self._requests.turn[self.id])

    @property
    def prefill_instance(self) -> int:
        """The instance that it was routed to for its prefill, or -1."""
        return int(self._requests.prefill_instance[self.id])

    @property
    def preemptions(self) -> int:
        """How often it was preempted."""
        return int(self._requests.preemptions[self.id])
