"""When requests arrive: as the trace recorded them, or as fast as a fixed number of clients lets them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from framework.validate import require_count


class Load(ABC):
    """Who sends requests."""

    @property
    @abstractmethod
    def clients(self) -> int | None:
        """How many clients send one request at a time each; None: as many as it takes."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What results call it."""


@dataclass(frozen=True)
class Open(Load):
    """Requests arrive when the trace says; a later turn of a session after the turn before has ended."""

    @property
    def clients(self) -> None:
        return None

    @property
    def name(self) -> str:
        return "open"


@dataclass(frozen=True)
class Closed(Load):
    """`concurrency` clients, each with one request under way: what serving benchmarks call a maximum concurrency.

    All clients start at time 0. Each takes the next session of the trace (a request without a session is one of its
    own) as soon as its last one has ended; recorded arrival times count for nothing.
    """

    concurrency: int

    def __post_init__(self) -> None:
        require_count("load.concurrency", self.concurrency)

    @property
    def clients(self) -> int:
        return self.concurrency

    @property
    def name(self) -> str:
        return f"closed, concurrency {self.concurrency}"
