"""Scorers of an endpoint picker; `policies._endpoints` says whose."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from framework.checks import Count, Whole
from framework.policy.view import Floats
from policies._endpoints import Choice, Ratio, Scorer, low_is_good


class QueueScorer(Scorer):
    """By the requests that wait."""

    def score(self, choice: Choice) -> Floats:
        return low_is_good(choice.waiting)


class RunningRequestsScorer(Scorer):
    """By the requests that run."""

    def score(self, choice: Choice) -> Floats:
        return low_is_good(choice.running)


class KvCacheUtilizationScorer(Scorer):
    """The share of KV blocks that is free."""

    def score(self, choice: Choice) -> Floats:
        return 1.0 - choice.kv_used


@dataclass
class PrefixCacheScorer(Scorer):
    """The share of the prompt that is cached, and by `prefix_length_weight` the square of the cached tokens' share of
    `max_model_len`.
    """

    prefix_length_weight: Ratio = 0.0
    max_model_len: Count = 131072
    ignored = (
        *("mode", "autoTune", "blockSize", "blockSizeTokens", "hashBlockSize", "maxPrefixBlocksToMatch"),
        *("maxPrefixTokensToMatch", "lruCapacityPerServer", "indexerConfig", "kvEventsConfig", "tokenProcessorConfig"),
        *("prefixMatchInfoProducerName", "kvCacheRedisAddr", "speculativeIndexing"),
    )

    def score(self, choice: Choice) -> Floats:
        length = np.minimum(1.0, choice.cached_tokens / self.max_model_len) ** 2
        return self.prefix_length_weight * length + (1.0 - self.prefix_length_weight) * choice.cached


@dataclass
class LoadAwareScorer(Scorer):
    """0.5 if no request waits, falling to 0 at `threshold` waiting ones."""

    threshold: Count = 128

    def score(self, choice: Choice) -> Floats:
        return 0.5 * (1.0 - np.minimum(choice.waiting, self.threshold) / self.threshold)


@dataclass
class ActiveRequestScorer(Scorer):
    """1 up to `idle_threshold` requests in flight; others from `max_busy_score` down to 0 at the most."""

    idle_threshold: Whole = 0
    max_busy_score: Ratio = 1.0
    ignored = ("requestTimeout", "inFlightLoadProducerName")

    def score(self, choice: Choice) -> Floats:
        count = choice.in_flight
        most = max(int(count.max()), 1)
        return np.where(count <= self.idle_threshold, 1.0, (most - count) / most * self.max_busy_score)


@dataclass
class TokenLoadScorer(Scorer):
    """1 if no token waits for its prefill, falling to 0 at the threshold; the request's uncached tokens count."""

    queue_threshold_tokens: Count = 4194304
    ignored = ("inFlightLoadProducerName",)

    def score(self, choice: Choice) -> Floats:
        new = choice.request.input_tokens - choice.cached_tokens
        tokens = choice.pool.queued_tokens[choice.left] + new
        return 1.0 - np.minimum(tokens, self.queue_threshold_tokens) / self.queue_threshold_tokens


class LMetricScorer(Scorer):
    """By the product of the request's uncached tokens and the requests in flight, itself included."""

    ignored = ("prefixMatchInfoProducerName", "inFlightLoadProducerName")

    def score(self, choice: Choice) -> Floats:
        return low_is_good((choice.request.input_tokens - choice.cached_tokens) * (choice.in_flight + 1))


@dataclass
class SessionAffinityScorer(Scorer):
    """1 for the endpoint of the session's last request, 0 for others."""

    home: dict[int, int] = field(default_factory=dict, init=False)
    ignored = ("strategy", "profileName", "encodedEndpointHeaderConfig", "sessionIdConfig")

    def score(self, choice: Choice) -> Floats:
        return np.equal(choice.pool.ids[choice.left], self.home.get(choice.request.session, -1)).astype(np.float64)

    def sent(self, choice: Choice, instance: int) -> None:
        if choice.request.session >= 0:
            self.home[choice.request.session] = instance


@dataclass
class NoHitLruScorer(Scorer):
    """0.5 if any endpoint has cached a part; else from 1 down to 0 in the order in which they were last sent such a
    request, those that never were first.
    """

    order: list[int] = field(default_factory=list, init=False)  # of endpoints, the last one last
    cold: bool = field(default=False, init=False)
    ignored = ("prefixPluginType", "prefixPluginName", "lruSize", "prefixMatchInfoProducerName")

    def score(self, choice: Choice) -> Floats:
        self.cold = not choice.cached_tokens.any()
        if not self.cold or len(choice) == 1:
            return np.ones(len(choice)) if self.cold else np.full(len(choice), 0.5)
        used = [self.order.index(i) if i in self.order else -1 for i in choice.pool.ids[choice.left].tolist()]
        rank = np.empty(len(choice))
        rank[np.argsort(used, kind="stable")] = np.arange(len(choice))
        return 1.0 - rank / (len(choice) - 1)

    def sent(self, choice: Choice, instance: int) -> None:
        if self.cold:
            self.order = [i for i in self.order if i != instance] + [instance]
