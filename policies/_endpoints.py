"""Filters, scorers and pickers of an endpoint picker, by the names of llm-d and of the Gateway API Inference Extension.

A filter keeps some of the endpoints that could serve a request, a scorer gives each a score from 0 to 1, a picker takes
one by the sums of weighted scores. Names, parameters, defaults and formulas are those of llm-d-router
(pkg/epp/framework/plugins/scheduling), and for the filters `low-queue`, `least-queue` and `least-kv-cache` those of
gateway-api-inference-extension (pkg/epp/scheduling/framework/plugins/filter).

Simplified: what a prompt finds in an endpoint's cache is known as the policy's view has it, in tokens; llm-d estimates
it, or follows events of blocks, in blocks. Requests in flight are counted in the view, where llm-d counts what it has
sent. Tokens in flight are those that lack their prefill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from framework.checks import Check, between
from framework.policy import Cluster, Request
from framework.policy.view import Floats, Instances

Integers = NDArray[np.int64]
Kept = NDArray[np.bool_]
_FROM_0_TO_1: Check = between(0.0, 1.0)
Ratio = Annotated[float, _FROM_0_TO_1]


@dataclass(frozen=True)
class Choice:
    """Where a request may go: all endpoints of a pool, and the positions in it of those that are left."""

    request: Request
    cluster: Cluster
    pool: Instances
    left: Integers

    def __len__(self) -> int:
        return len(self.left)

    @property
    def waiting(self) -> Integers:
        return self.pool.queued[self.left]

    @property
    def running(self) -> Integers:
        return (self.pool.running + self.pool.prefilling)[self.left]

    @property
    def in_flight(self) -> Integers:
        return self.waiting + self.running + self.pool.incoming[self.left]

    @property
    def kv_used(self) -> Floats:
        """The share of KV blocks in use; those that only a cache holds are free."""
        used = self.pool.total_blocks - self.pool.free_blocks - self.pool.evictable_blocks
        return (used / self.pool.total_blocks)[self.left]

    @property
    def cached_tokens(self) -> Integers:
        return self.pool.cached_tokens(self.request)[self.left]

    @property
    def cached(self) -> Floats:
        """The share of the prompt that each has cached."""
        return self.cached_tokens / self.request.input_tokens


def low_is_good(values: NDArray[Any]) -> Floats:
    """1 for the least, 0 for the most; 1 for all if they are equal."""
    least, most = values.min(), values.max()
    return np.ones(len(values)) if least == most else (most - values) / (most - least)


class Plugin:
    """One entry of `plugins`; its fields are its parameters."""

    ignored: ClassVar[tuple[str, ...]] = ()  # parameters of the real one that mean nothing here

    def sent(self, choice: Choice, instance: int) -> None:
        """A request has been sent to an endpoint."""


class Filter(Plugin):
    """Leaves some out."""

    def keep(self, choice: Choice) -> Kept:
        """Which of the endpoints that are left stay; shape (len(choice),)."""
        raise NotImplementedError


class Scorer(Plugin):
    """Says how good each is."""

    def score(self, choice: Choice) -> Floats:
        """From 0 to 1, larger is better; shape (len(choice),)."""
        raise NotImplementedError


class Picker(Plugin):
    """Takes one."""

    ignored = ("maxNumOfEndpoints",)

    def pick(self, scores: Floats, generator: np.random.Generator) -> int:
        """The position of the one that is taken."""
        raise NotImplementedError
