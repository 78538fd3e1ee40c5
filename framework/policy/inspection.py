"""What a policy's view asks of an engine, which each engine answers from its own memory."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from framework.timing.table import StepTables

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


def require_decoding(ids: Integers, decodes: NDArray[np.bool_]) -> None:
    """Raise ValueError unless all decode: no rule gives the KV tokens of other requests between two events."""
    if not decodes.all():
        raise ValueError(f"request {int(ids[~decodes][0])} does not decode now: its KV tokens are not known")


class View(NamedTuple):
    """What a compiled rule receives, N requests and M instances. Rules read it; only the engine writes.

    Attributes:
        options: (1,) options of the whole run, such as `block_tokens`.
        sim: (1,) the clock, `now_s` in seconds, and counters.
        requests: (N,) records with the columns of `Requests`.
        instances: (M,) records with the columns of `Instances`.
        engine: The address of the engine, for the functions of `framework.replay.lookups`.

    Raises:
        PolicyError: By the run, for a rule that reads a column that there is not.

    Example:
        >>> @servelab.decision(observes=True)
        ... def least_held(request: int, view: servelab.View, params, state) -> int:
        ...     best = 0
        ...     for i in range(len(view.instances)):
        ...         if view.instances[i].kv_tokens < view.instances[best].kv_tokens:
        ...             best = i
        ...     return best
        >>> class LeastHeld(servelab.Aggregated):
        ...     route_prefill = least_held
        >>> servelab.run(LeastHeld(), "synthetic", limit=60, rate=20).summary["completed"]
        60
    """

    options: NDArray[np.void]
    sim: NDArray[np.void]
    requests: NDArray[np.void]
    instances: NDArray[np.void]
    engine: Any = np.zeros(0, np.int64)


class Inspection(Protocol):
    """One run in an engine, as of the present event. `r` is a request, `i` an instance, `ids` several.

    `requests` (N,) and `instances` (M,) are structured arrays that the engine updates in place, with at least the
    columns that `framework.policy.view` lists. `tables`: the step times of each pool.
    """

    @property
    def requests(self) -> NDArray[np.void]: ...

    @property
    def instances(self) -> NDArray[np.void]: ...

    @property
    def view(self) -> View:
        """What compiled rules receive."""
        ...

    @property
    def tables(self) -> StepTables: ...

    @property
    def block_tokens(self) -> int:
        """Tokens of an engine block."""
        ...

    @property
    def copy_bytes_per_token(self) -> float:
        """Bytes of a token of KV on a link between instances."""
        ...

    @property
    def now_s(self) -> float:
        """Time of the present event, seconds."""
        ...

    @property
    def role_changes(self) -> int:
        """How often any instance's role has changed."""
        ...

    @property
    def finished(self) -> Integers:
        """Requests that have finished, in the order of their ends."""
        ...

    def decoding(self, i: int) -> Integers:
        """Requests that decode on an instance, in running order."""
        ...

    def prefilling(self, i: int) -> Integers:
        """Requests that prefill on an instance, in prefilling order."""
        ...

    def queued(self, i: int) -> Integers:
        """Requests that wait on an instance, in the order of its queue, then those of its inbox."""
        ...

    @property
    def suspended(self) -> Integers:
        """Requests that the policy has preempted and not resumed, by number."""
        ...

    def decoding_on(self, ids: Integers) -> tuple[Integers, Integers]:
        """Requests that decode on these instances, and the position of each one's instance among them."""
        ...

    def residents(self, ids: Integers) -> tuple[Integers, Integers, NDArray[np.bool_]]:
        """Requests that decode on these instances or whose KV is on its way to them, except those on their way to
        others: their numbers, the position among `ids` of the instance where each is or is going, and which stay.

        Those that decode come first, in the order of `decoding_on`, then the others by number.
        """
        ...

    def migrating(self, ids: Integers) -> NDArray[np.bool_]:
        """Which of these requests are being migrated."""
        ...

    def generated(self, ids: Integers) -> Integers:
        """Tokens that these requests have emitted. Raises IndexError for an unknown number."""
        ...

    def kv_tokens(self, ids: Integers) -> Integers:
        """KV tokens of these decoding requests."""
        ...

    def cached_tokens(self, ids: Integers, r: int) -> Integers:
        """Tokens of r's prompt in the prefix cache, or a tier below, of each of these instances."""
        ...

    def prefill_times_s(self, ids: Integers, r: int, cached: Integers, most: int) -> Floats:
        """Seconds to prefill the rest of r on each of these instances, alone, if `cached` tokens are there.

        It is prefilled in steps of at most `most` tokens.
        """
        ...

    def step_times_s(self, ids: Integers) -> Floats:
        """Seconds of each instance's next decode step; 0 if nothing decodes."""
        ...

    def stream_times_s(self, i: int) -> tuple[Floats, Floats]:
        """Seconds of i's next prefill step and decode step by the percent of the SMs that each has, shape (101,)."""
        ...
