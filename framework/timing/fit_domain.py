"""The loads that a calibration was fitted to, and how another load relates to them.

A fit holds for its measurements, and some way beyond. Fitted to the less, or the more, loaded half of the closed loops
of `make fidelity`, or to the shorter or the longer prompts, it predicted the other half better than no fit
(docs/silicon.md). It does not hold for another kind of work. A fit to closed loops without caching predicted open loops
worse than no fit if their prompts were cached except for a block, since almost no prompt tokens are computed there. So
the kind of requests counts, and not their number: step times that depended on their number would make a search for the
largest load compare two servers. Nor does a fit of experts to clients that wait for answers hold if all requests are
offered at once. In few tokens a step reads experts, and servers differ from the tables in how they do that; in
thousands it computes with them, as the tables have it (docs/given_rows.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.checks import require_at_least
from framework.compiler.decorators import compiled
from framework.errors import InputError
from framework.load import Closed, Load
from framework.workload import Workload, dense, rate_rps

Range = tuple[float, float]
_SHARE_BEYOND = 0.5  # share of cached prompt tokens beyond the fit's range from which on the fit does not count
_FACTOR_BEYOND = 8.0  # factor beyond the longest, or below the shortest, prompts of a fit: as far as it was tried
_AT_ONCE_RPS = 100.0  # requests/s an instance, more than one answers
_WITHIN = 1.05  # factor by which a mean may leave a range and still count as inside


@dataclass(frozen=True)
class Place:
    """What the requests of a run are like, as it is known before the run.

    `prompt_tokens` and `output_tokens` are means, and `cached_share` is the share of all prompt tokens that an
    unlimited prefix cache would hold. For each instance, clients keep `in_flight` requests under way, or `rate_rps`
    requests arrive a second; the other one is None.
    """

    prompt_tokens: float
    output_tokens: float
    cached_share: float = 0.0
    in_flight: float | None = None
    rate_rps: float | None = None

    @classmethod
    def of(cls, workload: Workload, load: Load, instances: int, *, prefix_cache: bool) -> Place:
        """The place of a workload on `instances` instances that take prompts."""
        closed = load.concurrency / instances if isinstance(load, Closed) else None
        return cls(
            prompt_tokens=float(workload.input_tokens.mean()),
            output_tokens=float(workload.output_tokens.mean()),
            cached_share=cached_share(workload) if prefix_cache else 0.0,
            in_flight=closed,
            rate_rps=None if closed is not None else rate_rps(workload) / instances,
        )

    def __str__(self) -> str:
        amount = f"{self.in_flight:.3g} in flight" if self.in_flight is not None else f"{self.rate_rps:.3g} requests/s"
        amount = "all offered at once" if self.is_at_once else f"{amount} an instance"
        return (
            f"prompts of {self.prompt_tokens:,.0f} tokens on average, {_share(self.cached_share)} cached, outputs of"
            f" {self.output_tokens:,.0f}, {amount}"
        )

    @property
    def is_at_once(self) -> bool:
        return self.rate_rps is not None and math.isinf(self.rate_rps)


@dataclass(frozen=True)
class Domain:
    """The range of each quantity of `Place` over the requests of a fit; None: it saw no such load.

    Raises InputError for an invalid range.
    """

    prompt_tokens: Range
    output_tokens: Range
    cached_share: Range = (0.0, 0.0)
    in_flight: Range | None = None
    rate_rps: Range | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            found = getattr(self, one.name)
            if found is None and one.name in ("in_flight", "rate_rps"):
                continue
            if not isinstance(found, list | tuple) or len(found) != 2:
                raise InputError(f"calibration: domain: {one.name} must be the least and the most, got {found!r}")
            for value in found:
                require_at_least(f"calibration: domain: {one.name}", value, 0)
            object.__setattr__(self, one.name, (float(found[0]), float(found[1])))

    @classmethod
    def around(cls, places: Iterable[Place]) -> Domain:
        """The domain that holds these places, at least one."""
        known = list(places)
        return cls._of({one.name: [getattr(place, one.name) for place in known] for one in fields(cls)})

    def __or__(self, other: Domain) -> Domain:
        """The domain that holds both."""
        return self._of(
            {one.name: [*(getattr(self, one.name) or ()), *(getattr(other, one.name) or ())] for one in fields(self)}
        )

    @classmethod
    def _of(cls, values: Mapping[str, Sequence[float | None]]) -> Domain:
        ranges: dict[str, Any] = {name: _range(of) for name, of in values.items()}
        return cls(**ranges)

    def excludes(self, place: Place) -> str:
        """Why a fit to these loads does not count at that place, as text; empty if it counts."""
        beyond = place.cached_share - self.cached_share[1]
        if beyond > _SHARE_BEYOND:
            most = _share(self.cached_share[1])
            return f"{_share(place.cached_share)} of prompt tokens may be cached, but it was fitted to {most}"
        factor, relation = _factor(place.prompt_tokens, self.prompt_tokens)
        return f"prompts are {factor:.2g} times {relation} than any it was fitted to" if factor > _FACTOR_BEYOND else ""

    @property
    def is_at_once(self) -> bool:
        """Whether requests of the fit were offered at once, or about so."""
        return self.rate_rps is not None and self.rate_rps[1] >= _AT_ONCE_RPS

    def distance(self, place: Place) -> str:
        """How far that place lies outside, as text; empty if it lies inside."""
        found = []
        for name, of in (("prompts", "prompt_tokens"), ("outputs", "output_tokens")):
            factor, relation = _factor(getattr(place, of), getattr(self, of))
            found += [f"{name} {factor:.2g} times {relation}"] if factor > _WITHIN else []
        low, high = self.cached_share
        away = max(place.cached_share - high, low - place.cached_share)
        found += [f"{_share(away)} {'more' if place.cached_share > high else 'less'} cached"] if away > 0.01 else []
        return ", ".join(found + self._load(place))

    def _load(self, place: Place) -> list[str]:
        if place.is_at_once:
            return ["no load of requests at once fitted"]
        for name, loop in (("in_flight", "closed"), ("rate_rps", "open")):
            amount, known = getattr(place, name), getattr(self, name)
            if amount is not None and known is None:
                return [f"no {loop} loop fitted"]
            if amount is not None:
                factor = max(amount / known[1] if known[1] else 1.0, known[0] / amount if amount else 1.0)
                return [f"load {factor:.2g} times {'larger' if amount > known[1] else 'smaller'}"] * (factor > _WITHIN)
        return []

    def __str__(self) -> str:
        parts = [
            f"prompts of {_span(self.prompt_tokens)} tokens",
            f"{_shares(self.cached_share)} cached",
            f"outputs of {_span(self.output_tokens)}",
        ]
        if self.in_flight is not None:
            parts.append(f"{_span(self.in_flight)} in flight")
        if self.rate_rps is not None:
            parts.append(f"{_span(self.rate_rps)} requests/s an instance")
        return ", ".join(parts)


def cached_share(workload: Workload) -> float:
    """The share of prompt tokens whose blocks an earlier request of the trace has had."""
    if not workload.has_prefixes or workload.hash_spans is None:
        return 0.0
    names = dense(workload.hash_ids)
    hits = np.zeros(len(workload), np.int64)
    _count_hits(names, workload.hash_spans, np.zeros(int(names.max()) + 1, bool), hits)
    tokens = np.minimum(hits * workload.hash_block_tokens, workload.input_tokens - 1)
    return float(tokens.sum() / workload.input_tokens.sum())


@compiled
def _count_hits(
    names: NDArray[np.integer[Any]], spans: NDArray[np.int64], seen: NDArray[np.bool_], hits: NDArray[np.int64]
) -> None:
    """Count the blocks of each request that came before."""
    for r in range(len(hits)):
        for at in range(spans[r, 0], spans[r, 1]):
            hits[r] += seen[names[at]]
            seen[names[at]] = True


def _range(values: Iterable[float | None]) -> Range | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def _factor(value: float, known: Range) -> tuple[float, str]:
    """The factor by which a value lies beyond a range, and on which side."""
    above, below = value / max(known[1], 1.0), known[0] / max(value, 1.0)
    return (above, "longer") if above >= below else (below, "shorter")


def _span(known: Range) -> str:
    low, high = (f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in known)
    return low if low == high else f"{low} to {high}"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %" if share else "none"


def _shares(known: Range) -> str:
    low, high = known
    return _share(high) if low == high else f"{100 * low:.0f} to {100 * high:.0f} %"
