"""The senders of requests, their times, and the resulting window of goodput."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from framework.checks import Count, NotNegative, Positive, check_fields, up_to
from framework.errors import InputError
from framework.workload import Workload

Floats = NDArray[np.float64]
_MOST_RETRIES = 1000


@dataclass(frozen=True)
class Window:
    """Seconds of a run, on the clients' clock, that trace and load fix for every policy.

    `name`: what they are. `clients`: how many clients send in them; they send more if they are answered sooner. None:
    the requests sent are fixed, too.
    """

    start_s: float
    end_s: float
    name: str
    clients: int | None = None

    @property
    def offer_is_fixed(self) -> bool:
        """Whether trace and load fix the requests sent in it."""
        return self.clients is None

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Patience:
    """How long a client waits for its prompt to be computed, and how often it sends a request again.

    After `wait_s` it gives up: the request is cancelled. It sends it again up to `retries` times, `retry_backoff_s`
    later and twice as much later each further time. The request keeps its first arrival, and its answer is late by all
    of that. None: a client waits as long as it takes.
    """

    wait_s: Positive | None = None
    retries: Annotated[int, up_to(_MOST_RETRIES, least=0)] = 0
    retry_backoff_s: Positive = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "load.patience.")
        if self.retries > 0 and self.wait_s is None:
            raise InputError(
                f"load.patience.retries={self.retries} needs a load.patience.wait_s after which to give up"
            )


class Load(ABC):
    """The senders of requests."""

    patience: Patience

    @property
    @abstractmethod
    def clients(self) -> int | None:
        """The number of clients, each with one request at a time; None: no limit."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The load's name in results."""

    @property
    def duration_s(self) -> float | None:
        """Nothing is sent from this time on; None: the whole trace is sent."""
        return None

    @property
    def backoff_s(self) -> float:
        """Seconds that a client waits after a rejection."""
        return 0.0

    @abstractmethod
    def window(self, workload: Workload) -> Window | None:
        """The seconds whose requests count; None if the end of the run decides. Raises InputError for an empty
        window.
        """

    def counted(self, workload: Workload, sent_s: Floats) -> NDArray[np.bool_]:
        """Which requests belong to the window, (N,): those sent in it; of a program, all if its first call was.

        `sent_s` (N,): when each was sent.
        """
        window = self.window(workload)
        if window is None:
            return np.ones(len(workload), np.bool_)
        opened_s = self._opened_s(workload, sent_s)
        counted: NDArray[np.bool_] = (opened_s >= window.start_s) & (opened_s <= window.end_s)
        return counted if workload.previous is None else counted[workload.openers]

    def _opened_s(self, workload: Workload, sent_s: Floats) -> Floats:
        """When each request that opens a session was sent, (N,)."""
        return sent_s


@dataclass(frozen=True)
class Open(Load):
    """Requests arrive when the trace says; a later turn of a session after the end of the previous turn.

    The window lasts from the first arrival of the trace to the last one (for sessions, of their first turns), less
    `warmup_s` at its start and `cooldown_s` at its end: requests of these seconds are served, but not counted.
    """

    warmup_s: NotNegative = 0.0
    cooldown_s: NotNegative = 0.0
    patience: Patience = Patience()

    def __post_init__(self) -> None:
        check_fields(self, "load.")

    @property
    def clients(self) -> None:
        return None

    @property
    def name(self) -> str:
        return "open"

    def window(self, workload: Workload) -> Window | None:
        opening_s = workload.arrival_s
        if workload.previous is not None:
            opening_s = opening_s[workload.openers == np.arange(len(workload))]
        first_s, last_s = float(opening_s[0]), float(opening_s[-1])
        name = "first to last arrival" if workload.previous is None else "first to last opening of a session"
        found = Window(first_s + self.warmup_s, last_s - self.cooldown_s, name)
        if self.warmup_s + self.cooldown_s > 0:
            counted = (opening_s >= found.start_s) & (opening_s <= found.end_s)
            if found.length_s <= 0 or not counted.any():
                raise InputError(
                    f"load.warmup_s={self.warmup_s:g} and load.cooldown_s={self.cooldown_s:g} leave no request of"
                    f" the {last_s - first_s:.6g} s in which the trace's arrive; set less"
                )
        return found

    def _opened_s(self, workload: Workload, sent_s: Floats) -> Floats:
        return workload.arrival_s


@dataclass(frozen=True)
class Closed(Load):
    """`concurrency` clients, each with one request under way: the maximum concurrency of serving benchmarks.

    All clients start at time 0. Each takes the next session of the trace (a request without a session is one of its
    own) as soon as all of its last one has ended; recorded arrival times have no effect, except that several first
    calls of one program are as far apart as recorded. From `duration_s` seconds on nothing is sent: that is the window,
    less `warmup_s` at its start. Without a duration the whole trace is sent. A client whose request was rejected
    returns after `backoff_s` seconds: with the same request if the policy refused it on arrival and the duration is not
    over, else with its next one.
    """

    concurrency: Count
    duration_s: Positive | None = None
    backoff_s: NotNegative = 0.0
    warmup_s: NotNegative = 0.0
    patience: Patience = Patience()

    def __post_init__(self) -> None:
        check_fields(self, "load.")
        if self.warmup_s > 0 and (self.duration_s is None or self.duration_s <= self.warmup_s):
            raise InputError(f"load.warmup_s={self.warmup_s:g} needs a load.duration_s that is longer")
        if self.duration_s is not None and self.backoff_s == 0:
            raise InputError(
                "load.duration_s needs load.backoff_s > 0: a refused client would return at once, again and again"
            )

    @property
    def clients(self) -> int:
        return self.concurrency

    @property
    def name(self) -> str:
        return f"closed, concurrency {self.concurrency}"

    def window(self, workload: Workload) -> Window | None:
        if self.duration_s is None:
            return None
        return Window(self.warmup_s, self.duration_s, "duration of the load", self.concurrency)
