"""Copies that share links, against timelines worked out by hand, and what must hold of any rates.

A step lasts 1 s; bandwidths are given in tokens of KV a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from framework.engine.durations.speculation import Speculation
from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.metrics.invariants import check_result
from framework.policy import Migrate, Policy
from framework.policy.view import Cluster, Request
from framework.reference import loop
from framework.reference.copies import links
from framework.reference.copies.under_way import Channel, Copy
from framework.reference.simulation import Simulation
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, disaggregated
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.agreement import drawn
from tests.helpers.bounds import server
from tests.helpers.families import BROAD
from tests.helpers.rulers import RuledHooks, Ruler
from tests.helpers.scenarios import MODEL as TINY
from tests.helpers.scenarios import RowTiming

MODEL = replace(TINY, max_context=2000)
TOKEN_BYTES = MODEL.kv_bytes_per_token
ENGINE = EngineConfig(block_tokens=1, watermark=0.0, kv_tokens=1000, token_budget=1000)
TIMING = RowTiming({"gpu": StepRow(base_s=1.0)})
NEAR = 1e-8  # seconds: what copies take is rounded to a nanosecond


class Routed(Policy):
    """From one given instance to another; before that, each instance that sends anything prefills a prompt alone."""

    def __init__(self, routes: Sequence[tuple[int, int]]) -> None:
        self.first = sorted({source for source, _ in routes})
        self.routes = [(source, -1) for source in self.first] + list(routes)

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return self.routes[request.id][0]

    def route_decode(self, request: Request, cluster: Cluster) -> int:
        return self.routes[request.id][1]


def pools(prefill: Sequence[float], decode: Sequence[float]) -> tuple[PoolSpec, ...]:
    """Instances one by one, by their bandwidths."""
    roles = [("prefill", speed) for speed in prefill] + [("decode", speed) for speed in decode]
    return tuple(
        PoolSpec(f"{role}{k}", role, 1, server("gpu", 2000), link_bytes_s=speed * TOKEN_BYTES)  # type: ignore[arg-type]
        for k, (role, speed) in enumerate(roles)
    )


def play(
    prompts: Sequence[int], routes: Sequence[tuple[int, int]], cluster: Sequence[PoolSpec], **options: Any
) -> Result:
    """Prompts of one step of each instance, from 1 s to 2 s: they come while the one before runs."""
    lead = len({source for source, _ in routes})
    arrival_s = np.array([0.0] * lead + [0.5] * len(prompts))
    outputs = np.array([1] * lead + options.pop("outputs", [2] * len(prompts)))
    workload = Workload(arrival_s, np.array([1] * lead + list(prompts)), outputs)
    engine = replace(ENGINE, layerwise_tokens=options.pop("layerwise_tokens", None))
    return played(workload, ClusterSpec(tuple(cluster), LinkSpec(1.0, **options)), lambda: Routed(routes), engine)


def played(workload: Workload, cluster: ClusterSpec, policy: Callable[[], Policy], engine: EngineConfig) -> Result:
    """The run, which is the same in both engines."""
    plain, result = (
        simulate(workload, cluster, MODEL, TIMING, replace(engine, implementation=implementation), policy())
        for implementation in ("reference", "compiled")
    )
    check_result(result)
    for name in ("transfer_end_s", "end_s"):
        np.testing.assert_array_equal(plain.requests[name], result.requests[name])
    np.testing.assert_array_equal(plain.instances["transferred_bytes"], result.instances["transferred_bytes"])
    return result


def copied_s(result: Result) -> list[float]:
    """Seconds from the end of each prefill to the arrival of its KV, of prompts that come after the first ones."""
    rows = result.requests[result.requests["arrival_s"] > 0]
    assert set(rows["prefill_end_s"]) == {2.0}
    return list(rows["transfer_end_s"] - 2.0)


BUSY_RECEIVER = ([434, 10, 66], [(0, 2), (1, 2), (1, 3)], pools([10, 10], [10, 10]))


def test_a_busy_receiver_does_not_block_its_senders_other_copies() -> None:
    """A sends 434 tokens to X, B 10 tokens to X and 66 to Y, at once; a link has 10 tokens/s.

    Each copy of B has half of B, 5 tokens/s, and that of A the other half of X. After 2 s B's 10 tokens have come. The
    others have 10 tokens/s from then on: 434 - 10 of A until 44.4 s, and 66 - 10 of B until 7.6 s.
    """
    result = play(*BUSY_RECEIVER)
    assert copied_s(result) == pytest.approx([44.4, 2.0, 7.6], abs=NEAR)
    assert (result.instances["transferred_bytes"] / TOKEN_BYTES).tolist() == [434, 76, 0, 0]


def test_one_after_the_other_it_does() -> None:
    """The same: B waits until 43.4 s for X, and only then, until 44.4 s, sends to X, and then to Y."""
    assert copied_s(play(*BUSY_RECEIVER, sharing="fifo")) == pytest.approx([43.4, 44.4, 51.0])


def test_three_copies_with_bottlenecks_of_their_own() -> None:
    """A -> X, B -> X, A -> Y; A has 12 tokens/s, B 4, X 9, Y 2.

    Y is the tightest: 2 for the third copy, 10 of A are left. Then B: 4 for the second, 5 of X are left. Then X: 5 for
    the first. After 2 s B's 8 tokens have come: 9 of X for the first, less than 10 of A. After 5 s Y's 10 have come,
    which changes nothing for the first: 10 + 27 of its 55 tokens are there, and 18 more take 2 s.
    """
    result = play([55, 8, 10], [(0, 2), (1, 2), (0, 3)], pools([12, 4], [9, 2]))
    assert copied_s(result) == pytest.approx([7.0, 2.0, 5.0], abs=NEAR)


def test_a_fabric_limits_all_copies_together() -> None:
    """A -> X and B -> Y at 4 tokens/s, C -> Z at 1; the fabric has 6.

    C takes 1 and leaves 5 for two. After 2 s its 2 tokens have come: 3 for each of the others. After 4 s the 11 of A
    have, 5 at 2.5 and 6 at 3; of the 19 of B 8 are left, at 4 tokens/s.
    """
    cluster, routes = pools([4, 4, 1], [4, 4, 1]), [(0, 3), (1, 4), (2, 5)]
    assert copied_s(play([11, 19, 2], routes, cluster, fabric_bytes_s=6.0 * TOKEN_BYTES)) == [4.0, 6.0, 2.0]
    assert copied_s(play([11, 19, 2], routes, cluster, fabric_bytes_s=9.0 * TOKEN_BYTES)) == [11 / 4, 19 / 4, 2.0]


def test_latency_takes_no_bandwidth() -> None:
    """Of 4 and 8 tokens at 2 tokens/s the first have come after 4 s, with 4 of the second; these take 2 s more."""
    assert copied_s(play([4, 8], [(0, 1)] * 2, pools([2], [2]), latency_s=10.0)) == [14.0, 16.0]


def test_copies_between_two_instances_end_in_the_order_of_what_is_left() -> None:
    """Three of 2, 4 and 6 tokens at 3 tokens/s: 1 each for 2 s; then 1.5 each for 2 / 1.5 s; then 3."""
    result = play([6, 2, 4], [(0, 1)] * 3, pools([3], [3]))
    second_s = 2 + 2 / 1.5
    assert copied_s(result) == pytest.approx([second_s + 2 / 3, 2.0, second_s], abs=NEAR)


def test_a_copy_that_is_called_back_leaves_its_links() -> None:
    """Both are sent while they are prefilled, at 1 token/s each; the first has no second token.

    At the end of their step its copy is called back: 1 of its 6 tokens has been sent. Of the other's 6 five are left,
    at 2 tokens/s.
    """
    result = play([6, 6], [(0, 1)] * 2, pools([2], [2]), outputs=[1, 2], layerwise_tokens=2)
    assert copied_s(result)[1] == 5 / 2
    assert result.instances["transferred_bytes"].tolist() == [7 * TOKEN_BYTES, 0.0]


class Migrating(Policy):
    """Requests 0 and 1, prefilled on instances 0 and 2, begin to move to instance 1 at 2.5 s."""

    tick_s = 2.5

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return 2 * request.id

    def on_tick(self, cluster: Cluster) -> list[Migrate]:
        return [Migrate(0, 1), Migrate(1, 1)] if cluster.now_s < 3 else []


def test_migrations_and_their_tails_share_the_receiver() -> None:
    """At 2.5 s both have 11 KV tokens; a sender has 8 tokens/s, the receiver 11: 5.5 for each, until 4.5 s.

    At the boundary 5 both have 14: tails of 3 tokens at 5.5 tokens/s. Three of 8 tokens are left to decode.
    """
    cluster = tuple(
        PoolSpec(f"p{k}", "mixed", 1, server("gpu", 2000), link_bytes_s=speed * TOKEN_BYTES)
        for k, speed in enumerate((8, 11, 8))
    )
    workload = Workload(np.zeros(2), np.array([10, 10]), np.array([8, 8]))
    result = played(workload, ClusterSpec(cluster, LinkSpec(1.0)), Migrating, ENGINE)
    assert result.requests["migrations"].tolist() == [1, 1]
    assert result.requests["end_s"][0] == pytest.approx(5 + 3 / 5.5 + 3, abs=NEAR)
    assert (result.instances["transferred_bytes"] / TOKEN_BYTES).tolist() == [14, 0, 14]


class MigratingTwo(Policy):
    """Requests 1 and 2 of instance 0 begin to move to instance 1 at 2.5 s."""

    tick_s = 2.5

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return 0

    def on_tick(self, cluster: Cluster) -> list[Migrate]:
        return [Migrate(1, 1), Migrate(2, 1)] if cluster.now_s < 3 else []


def test_a_decode_that_waits_for_tokens_is_copied_meanwhile() -> None:
    """A step has 3 tokens, a decode takes 2 with its draft, so that the third of three decodes waits.

    At 2.5 s it has 1 token, which has come at 4.5 s; the second one has 2, which have come at 5.5 s, over a link of 1
    token/s. The third moves at 5 s, and emits its last 7 tokens from 6 s on. The second moves at 6 s with 6 tokens:
    four more take until 10 s, and two are left to decode.
    """
    cluster = tuple(
        PoolSpec(f"p{k}", "mixed", 1, server("gpu", 2000), link_bytes_s=1.0 * TOKEN_BYTES) for k in range(2)
    )
    drafts = Speculation(depth=1, draft_cost=0.0)
    engine = replace(ENGINE, token_budget=3, batching="unified", step_order="admission", speculation=drafts)
    workload = Workload(np.zeros(3), np.ones(3, int), np.full(3, 8))
    result = played(workload, ClusterSpec(cluster, LinkSpec(1.0)), MigratingTwo, engine)
    assert result.requests["migrations"].tolist() == [0, 1, 1]
    assert result.requests["end_s"].tolist() == pytest.approx([8, 12, 12], abs=NEAR)


def test_a_fabric_needs_copies_that_share_it() -> None:
    gpu = server("gpu", 2000)
    with pytest.raises(InputError, match=r"choose cluster\.link_sharing=fair"):
        disaggregated(1, 1, gpu, link_sharing="fifo", fabric_bandwidth_bytes_s=1e9)
    with pytest.raises(InputError, match=r"cluster\.link_sharing must be one of"):
        disaggregated(1, 1, gpu, link_sharing="even")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"cluster\.fabric_bandwidth_bytes_s must be a finite number above 0"):
        disaggregated(1, 1, gpu, fabric_bandwidth_bytes_s=0.0)
    assert disaggregated(1, 1, gpu, fabric_bandwidth_bytes_s=5e9).link.fabric_bytes_s == 5e9


# --- what must hold of any rates --------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What the reference engine's copies were promised and sent, and what was wrong with their rates."""

    promised: dict[Copy, float] = field(default_factory=dict)
    sent: dict[Copy, float] = field(default_factory=lambda: defaultdict(float))
    ended: set[Copy] = field(default_factory=set)
    rates: dict[Copy, float] = field(default_factory=dict)
    since_s: float = 0.0
    most_at_once: int = 0
    sharings: int = 0

    def count(self, now_s: float) -> None:
        """Add what each copy has been sent since the last change, each by itself."""
        for copy, rate in self.rates.items():
            self.sent[copy] += rate * (now_s - self.since_s)
        self.since_s = now_s

    def check_rates(self, s: Simulation, rates: dict[Channel, float]) -> None:
        """No link carries more than its bandwidth, and each copy has a full link on which no other copy has more."""
        carried: dict[int, float] = defaultdict(float)
        most: dict[int, float] = {}
        for channel, rate in rates.items():
            for link in s.links_of(channel):
                carried[link] += rate * len(channel.copies)
                most[link] = max(most.get(link, 0.0), rate)
        for link, used in carried.items():
            assert used <= s.link_bytes_s(link) * (1 + 1e-12), link
        for channel, rate in rates.items():
            full = [k for k in s.links_of(channel) if carried[k] >= s.link_bytes_s(k) * (1 - 1e-12)]
            assert any(rate >= most[link] * (1 - 1e-12) for link in full), "a copy that could have more"


def watch(ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
    join, leave, fair_rates = links._join, links._leave, links.fair_rates

    def joins(s: Simulation, copy: Copy, *ends: Any) -> None:
        ledger.promised[copy] = ends[-1]
        join(s, copy, *ends)

    def leaves(s: Simulation, copy: Copy) -> None:
        ledger.count(s.now_s)
        ledger.rates.pop(copy, None)
        if s.requests[copy.request].copy is copy:  # it has ended; one that is withdrawn is forgotten first
            ledger.ended.add(copy)
        leave(s, copy)

    def rates_of(s: Simulation) -> dict[Channel, float]:
        rates = fair_rates(s)
        ledger.count(s.now_s)
        ledger.rates = {copy: rate for channel, rate in rates.items() for copy in channel.copies}
        ledger.most_at_once = max(ledger.most_at_once, len(ledger.rates))
        ledger.sharings += 1
        ledger.check_rates(s, rates)
        return rates

    patch.setattr(links, "_join", joins)
    patch.setattr(links, "_leave", leaves)
    patch.setattr(links, "fair_rates", rates_of)


@pytest.mark.parametrize(
    "exact", [pytest.param(True, id="dyadic"), pytest.param(False, id="floats", marks=pytest.mark.slow)]
)
def test_copies_are_sent_whole_and_links_are_used(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is sent is what was to be sent, at rates that are max-min fair: so no link is idle that could help."""
    ended = sharings = most_at_once = 0
    for number in range(60 if not exact else 36):
        ledger = Ledger()
        with monkeypatch.context() as patch:
            watch(ledger, patch)
            scenario = drawn(list(BROAD)[number % len(BROAD)] if exact else "scenarios", 1100 + number, exact)
            loop.run(scenario.simulation(RuledHooks(Ruler(scenario.rules))))
        for copy in ledger.ended:
            fastest = max(scenario.cluster.link_bytes_s)
            assert ledger.sent[copy] == pytest.approx(ledger.promised[copy], rel=1e-9, abs=fastest * 1e-9)
        ended += len(ledger.ended)
        sharings += ledger.sharings
        most_at_once = max(most_at_once, ledger.most_at_once)
    assert ended > 200
    assert sharings > 500
    assert most_at_once >= 4
