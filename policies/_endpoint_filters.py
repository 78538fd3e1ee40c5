"""Filters and pickers of an endpoint picker; `policies._endpoints` says whose."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from framework.checks import Count, NotNegative, Positive, Whole
from framework.policy.view import Floats
from policies._endpoint_scorers import SessionAffinityScorer
from policies._endpoints import Choice, Filter, Kept, Picker, Ratio


@dataclass
class LowQueueFilter(Filter):
    """Those where at most `threshold` requests wait."""

    threshold: Whole = 128

    def keep(self, choice: Choice) -> Kept:
        return np.asarray(choice.waiting <= self.threshold)


class LeastQueueFilter(Filter):
    """Those in the first of as many equal ranges of waiting requests as there are endpoints."""

    def keep(self, choice: Choice) -> Kept:
        waiting = choice.waiting
        return np.asarray(waiting <= waiting.min() + (waiting.max() - waiting.min()) // len(choice))


class LeastKvCacheFilter(Filter):
    """Those in the first of as many equal ranges of used KV as there are endpoints."""

    def keep(self, choice: Choice) -> Kept:
        used = choice.kv_used
        return np.asarray(used <= used.min() + (used.max() - used.min()) / len(choice))


@dataclass
class ActiveRequestFilter(Filter):
    """Those with at most `max_requests` in flight; all if there are none and `fallback_on_empty` is set."""

    max_requests: Count
    fallback_on_empty: bool = False
    ignored = ("inFlightLoadProducerName",)

    def keep(self, choice: Choice) -> Kept:
        kept = np.asarray(choice.in_flight <= self.max_requests)
        return kept | (self.fallback_on_empty and not kept.any())


@dataclass
class PrefixCacheAffinityFilter(Filter):
    """Those that have cached at least `affinity_threshold` of the prompt, if there are any, unless the tokens that wait
    there take `max_ttft_penalty_ms` longer than elsewhere; 0: always.
    """

    affinity_threshold: Ratio = 0.8
    max_ttft_penalty_ms: NotNegative = 18000.0
    peak_prefill_throughput: Positive = 15928.0
    ignored = ("ttftSource", "prefillCalibrationFile", "prefillCalibrationFingerprint", "prefillCalibrationRequired")

    def keep(self, choice: Choice) -> Kept:
        sticky = np.asarray(choice.cached >= self.affinity_threshold)
        if not sticky.any() or sticky.all():
            return np.ones(len(choice), np.bool_)
        ttft_ms = choice.pool.queued_tokens[choice.left] / self.peak_prefill_throughput * 1000.0
        late = ttft_ms[sticky].min() - ttft_ms[~sticky].min() > self.max_ttft_penalty_ms > 0
        return sticky | late


class SessionAffinityFilter(Filter):
    """The endpoint of the session's last request, if it is left."""

    ignored = SessionAffinityScorer.ignored

    def __init__(self) -> None:
        self._affinity = SessionAffinityScorer()

    def keep(self, choice: Choice) -> Kept:
        home = self._affinity.score(choice) > 0
        return home if home.any() else np.ones(len(choice), np.bool_)

    def sent(self, choice: Choice, instance: int) -> None:
        self._affinity.sent(choice, instance)


@dataclass
class MaxScorePicker(Picker):
    """The largest score; equal ones in turn."""

    turn: int = field(default=0, init=False)

    def pick(self, scores: Floats, generator: np.random.Generator) -> int:
        best = np.flatnonzero(scores == scores.max())
        if len(best) > 1:
            self.turn += 1
        return int(best[(self.turn - 1) % len(best)]) if len(best) > 1 else int(best[0])


class RandomPicker(Picker):
    """Any, with equal probability."""

    def pick(self, scores: Floats, generator: np.random.Generator) -> int:
        return int(generator.integers(len(scores)))


class WeightedRandomPicker(Picker):
    """Any, with a probability proportional to its score; with equal ones if all are 0."""

    def pick(self, scores: Floats, generator: np.random.Generator) -> int:
        total = scores.sum()
        return int(generator.choice(len(scores), p=scores / total if total > 0 else None))
