"""Adaptive decode rescheduling (ARES, arXiv 2510.13668; revised as STAR, HPDC 2026).

Requests are placed once at the end of their prefill, but outputs diverge and decode instances drift apart. A periodic
rescheduler compares their present and predicted load. It moves requests from overloaded to underloaded instances while
they decode, if the move is worth its transfer. The papers' abstracts fix this mechanism; the formulas below
(horizon-weighted projected load, variance gain) and all parameters are a reconstruction consistent with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import numpy as np

from framework.checks import Count, NotNegative, Positive, Share, between, checked
from framework.policy import Action, Disaggregated, Migrate
from framework.policy.rules import DECODE_RULES, PREFILL_RULES, rule
from framework.policy.view import Cluster, Floats, Instances
from policies._rescheduling import (
    AMORTISATION,
    BYTES_PER_TOKEN,
    COOLDOWN_S,
    FULL,
    GRID_TOKENS,
    IMBALANCE,
    MOVES,
    OVERHEAD_S,
    SLOW_S,
    TRANSFER_WEIGHT,
    Residents,
    Run,
    rebalance,
)

_DISCOUNT_TOKENS = 256
Horizon = Annotated[int, between(0, 10_000_000)]  # tokens
AmortisedBy = Literal["saving", "decoding"]


class Ares(Disaggregated):
    """Every `period_s` (None: never), move at most `moves` requests off each overloaded decode instance.

    Load is W = sum over tau = 0, 64, ... `horizon_tokens` of `discount`^(tau / 256) times the KV tokens projected tau
    steps ahead; a horizon of 0 means the present load alone. Requests in transit count at their destination. An
    instance is overloaded above (1 + `imbalance`) times the mean, or when its projection comes within `headroom` of its
    KV memory; underloaded below (1 - `imbalance`) times the mean. A request moves only if it is expected to decode for
    `amortisation` times its transfer (bytes over the link plus `transfer_overhead_s`), lowers the variance of W by more
    than `transfer_weight` times that time, fits the target's projection, and has not been moved within `cooldown_s`.

    With `amortised_by` "decoding" there is no other condition. With "saving" a move must also be useful in one of two
    ways:

    1. The source is projected to hold more than `full` of its KV memory less the headroom.
    2. The step of the source takes at least `near` times `tpot_s` (None: any time), and the requests of both instances
       together save `amortisation` times the transfer, by measured step times, in the steps that the moved one has left
       within the horizon.

    The horizon is short because placement continues: new requests fill what an instance will lack later.
    """

    @checked("policy.")
    def __init__(
        self,
        routing: str = "least_queued",
        placement: str = "least_kv",
        period_s: Positive | None = 1.0,
        horizon_tokens: Horizon = 512,
        discount: Share = 0.9,
        imbalance: NotNegative = 0.1,
        headroom: NotNegative = 0.05,
        amortisation: NotNegative = 3.0,
        amortised_by: AmortisedBy = "saving",
        tpot_s: Positive | None = 0.05,
        near: NotNegative = 0.5,
        full: Share = 0.9,
        transfer_overhead_s: NotNegative = 0.01,
        transfer_weight: NotNegative = 0.0,
        moves: Count = 1,
        cooldown_s: NotNegative = 5.0,
    ) -> None:
        self.route_prefill = rule("policy.routing", routing, PREFILL_RULES)
        self.route_decode = rule("policy.placement", placement, DECODE_RULES)
        self.tick_s = period_s
        horizon = np.arange(0, horizon_tokens + 1, GRID_TOKENS, dtype=np.float64)
        self.weights = discount ** (horizon / _DISCOUNT_TOKENS)
        self.headroom = headroom
        self.settings = {
            IMBALANCE: imbalance,
            COOLDOWN_S: cooldown_s,
            OVERHEAD_S: transfer_overhead_s,
            AMORTISATION: amortisation,
            TRANSFER_WEIGHT: transfer_weight,
            MOVES: moves,
            FULL: full if amortised_by == "saving" else -1.0,
            SLOW_S: 0.0 if tpot_s is None else near * tpot_s,
        }

    def prepare(self, cluster: Cluster) -> None:
        pool, settings = cluster.decode, self.settings | {BYTES_PER_TOKEN: cluster.kv_bytes_per_token}
        self.run = Run(
            input_tokens=cluster.requests.input_tokens,
            moved_at_s=np.full(len(cluster.requests.arrival_s), -np.inf),
            limit=self._limit(pool, cluster),
            bandwidth_bytes_s=_bandwidth_bytes_s(pool),
            settings=np.array([settings[number] for number in range(len(settings))], np.float64),
            weights=self.weights,
        )
        self.ids = pool.ids.tolist()
        self.found = np.empty((len(pool) * int(self.settings[MOVES]), 2), np.int64)

    def _limit(self, pool: Instances, cluster: Cluster) -> Floats:
        """KV tokens for which each instance of the pool has room, less the headroom."""
        return np.asarray((1.0 - self.headroom) * pool.total_blocks * cluster.block_tokens, np.float64)

    def on_tick(self, cluster: Cluster) -> Iterable[Action]:
        pool = cluster.decode
        if pool.ids.tolist() != self.ids:  # an instance has crashed, or is back
            self.ids = pool.ids.tolist()
            self.run = self.run._replace(limit=self._limit(pool, cluster), bandwidth_bytes_s=_bandwidth_bytes_s(pool))
        ids, owners, settled = cluster.residents(pool)
        if np.count_nonzero(settled) == 0:
            return ()
        generated = cluster.requests.generated(ids)
        remaining = cluster.predictions.remaining(ids, generated)
        residents = Residents(ids, owners, settled, generated, remaining)
        count = rebalance(residents, pool.step_times, pool.step_s(), cluster.now_s, self.run, self.found)
        return [Migrate(request, pool.ids[target]) for request, target in self.found[:count].tolist()]


def _bandwidth_bytes_s(pool: Instances) -> Floats:
    """A copy: the layout of what is shown depends on how many instances there are, and rules are compiled for each."""
    return np.array(pool.bandwidth_bytes_s)
