"""That random runs reach what can happen, and that mechanisms meet in them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import pytest

from framework.system.faults import RECOVERIES
from tests.helpers.agreement import disagreement, drawn
from tests.helpers.differences import outline
from tests.helpers.kept_counts import RUNS, KeptCounts
from tests.reach import MECHANISMS, at_work, counted, is_excluded, reached, seeds_of, together

FLOOR, _THOROUGH_FLOOR = 1, 20
_THOROUGH = 1000  # runs
EVENTS = (
    *("admission that waits for others", "admitted again", "admitted again with a prefix"),
    *("came while a step ran", "room that came free a step late", "step that waits for its host"),
    *("admitted with a cached prefix", "arrived together", "attentions that overlap", "chunk by a schedule"),
    *("chunks and decodes in one step", "copied", "copied without what is cached there"),
    *(
        "copies between the same two instances",
        "copy withdrawn with a prefix there",
        "not copied, for all is cached there",
    ),
    "prefix referenced there that nobody used",
    *("copies that a fabric limits", "copies that share a link", "copies that share a receiver"),
    *("copies that share a sender", "copy ahead called back", "copy that another slows or speeds up"),
    *("copy that ends after its last byte", "copy that waits for its turn", "copy withdrawn"),
    *("copy withdrawn while it flows", "cut in its output", "cut in its prompt"),
    *(
        "decodes concurrent with a prefill step",
        "decodes in tiles",
        "fewer decodes than stages",
        "load longer than its step",
    ),
    *("loaded from a store", "loaded from a store before cached blocks", "loaded from two tiers"),
    *("migrated", "migration cancelled", "migration cancelled after its copy", "migration switched over"),
    *("migration without room", "migration without room for its tail", "more decodes than stages"),
    *("pipelined chunks concurrent with decodes", "preempted", "preempted and prefilled elsewhere"),
    *("preempted concurrent with a prefill step", "preempted for a chunk's blocks", "preempted in a pipeline"),
    *("preempted on a rank", "preempted where drafts take blocks", "preempted while its instance changes role"),
    *("preempted while migrating", "preempted while prefilling", "preempted with a cached prefix"),
    *("preempted with its chunk under way", "prefill step concurrent with decodes", "prefix evicted", "prefix fetched"),
    *("prefix fetched that its store cannot hold", "prefix fetched to one that prefills no more"),
    *("queue read by new keys", "queued elsewhere by a change of role", "role change in place of another"),
    *("role changed", "role changed in the midst of a prefill", "role changed with KV leaving"),
    *("role changed with KV on its way there", "role changed with a plan"),
    *("role changed with a prefix on its way there", "role changed with swapped requests", "run that stalls"),
    *("sent ahead, layer by layer", "several chunks in one step", "static batch", "step beyond what was measured"),
    *("step of a pipeline", "step of experts", "step that swaps", "step that verifies drafts"),
    *(
        "step where requests reserve",
        "step with ranks",
    ),
    *("swap-in barred by the watermark alone", "swapped in", "swapped out", "switched off"),
    *("switched off with cached prefixes", "switched on", "transfer that waits for room"),
    *("turned away after its prefill", "queued between two steps", "copy ended between two steps"),
    *("tick between two steps", "several schedule at one time", "hit what another has generated"),
    *("hit what it has generated itself", "hit a block that is yet to be computed", "block evicted"),
    *("known block enters next to another", "one of several blocks of a name evicted"),
    *("decode that waits for tokens", "decode preempted for a chunk", "tokens given to another are taken back"),
    *("admitted for its first chunk alone", "admitted below the watermark", "chunk as long as one may be"),
    *("prompt longer than what is left of the budget", "prefill ended before a decode"),
    *(
        "preempted and prefilled there",
        "preempted while it is computed again",
        "computed again concurrent with decodes",
    ),
    *("computed again in a pipeline", "computed again on a rank", "decodes where it was computed again, unasked"),
    *("transfer that waits for one preempted there", "kept in its queue by a change of role"),
    *("decodes there once it is computed again, before a role changes", "role changed with one that is computed again"),
    *("decodes that wait for chunks", "output to come bars an admission", "admitted with room for outputs to come"),
    *("admission that is closed", "admission opened again", "admission opened a step late", "reserve at its least"),
    *("preemption that tells of outputs", "idle instance that forgets what it knew of outputs"),
    "chunks alone keep admission closed",
    *("step of a group", "step that waits for another rank's", "rank without work with others"),
    *("group that finds nothing to do", "woken at an idle rank of a group in a step"),
    "turn of a rank whose group is in a step",
    *("sent without its token", "single token that comes from elsewhere", "preempted before its first token"),
    *("first token that comes with the KV", "KV that is pulled", "KV that waits for a seat"),
    *("KV of those that have ended while a step is formed", "one that has ended gives way"),
    *("block that is not known to be full yet", "KV given up in a circle"),
    *("one of fewer tokens preempted instead of the last",),
    *(
        "came while a prefill step ran concurrent with decodes",
        "prompt computed concurrent with a step that was formed before",
    ),
    *("room that came free since a prefill step began", "prefill step that ends with nothing to follow"),
    *("ended with a prefill step concurrent with decodes", "KV that is pulled where tokens are drafted"),
    *("suspended while it decodes", "suspended while it prefills", "suspended while it waits"),
    *("suspended while it migrates", "resumed", "resumed elsewhere"),
    *("suspended with its KV", "suspended with its KV in host memory", "suspended request that gives up KV"),
    *("resumed with its KV", "resumed from host memory"),
    *("cancelled while it decodes", "cancelled while it prefills"),
    *("cancelled while it waits", "cancelled before it joins"),
    *("cancelled before its copy", "cancelled during its copy"),
    *("cancelled while it is suspended", "decision that waited for a turn", "decision for a group"),
    *("decision concurrent with a prefill step", "resume after preempt", "preempt after cancel"),
    *("preemption by the policy that cannot be", "cancelled", "told of an end", "victim asked for"),
    "decode left out by the policy",
    *("requeued", "requeued where it cannot be", "requeued though it does not wait"),
    *("crashed", "crash of a group", "crash of an instance that is off", "back after a crash", "crashed in a step"),
    *("crashed in the midst of a prefill", "crashed with decodes", "crashed with requests that wait"),
    *("crashed with requests that came while a step ran", "crashed with cached prefixes", "crashed with KV leaving"),
    *("crashed with KV on its way there", "crashed with KV that waits to come", "crashed while it changes role"),
    *("crashed while a request migrates there", "crashed while a request migrates away", "dropped by a crash"),
    *(
        "dropped with tokens that it has emitted",
        "parked",
    ),
    *("restored from a backup", "restored behind a cached prefix", "restored but for its last token"),
    *(f"policy answers {recovery} for a dropped request" for recovery in RECOVERIES),
    *("restored up to its split", "dropped again before it was restored"),
    *("routed once each phase has an instance", "slowed down", "fast again", "slowed down in a step"),
    *("network parted with copies under way", "network limited with copies under way"),
    *(
        "network healed with copies that wait",
        "hung",
        "hung in a step of decodes",
        "crash that is noticed later",
    ),
    *("lost GPUs", "goes on with fewer GPUs", "GPUs repaired", "goes on with all GPUs again"),
    *("asked whether to reconfigure", "too few GPUs left for the model"),
    *("slowed down in a prefill step concurrent with decodes", "step of a slow instance"),
    *("sent again", "given up for good", "given up while it waits", "given up while it prefills"),
    *("patience that was rewarded", "patience that outlived its request"),
    *("reported", "reported in a step of decodes", "reported while an instance is down"),
    *("asked by a report", "asked before a report has come", "asked while a report is on its way"),
    *("scaled up", "scaled up with one that drains", "scaled down", "scaled down with one that starts"),
    *("scaled down with work on all", "scaled down where none may go"),
    *("look", "look after a turn", "look with several bands", "released at once"),
    *("released", "released by round_robin", "released by tokens", "released before another band", "shed", "expired"),
    "given up at the gateway",
    *("call that several wait for", "call that waits for another", "call that has waited for several"),
    *("further first call of a client's program", "client whose program goes on elsewhere"),
    "admitted with its states",
    *("asked what becomes of KV", "pin used", "pin that lasted its time", "pin broken", "pin broken for what waits"),
    *(
        "pin that ends where others wait",
        "pin broken with blocks that another pins",
        "evicted by rank before an older block",
    ),
    "time of a pin that ended before",
    *("prefetch due", "prefetched", "prefetch whose next call has come", "prefetch without room for all"),
    *("asked again by which instances", "step of several instances", "instances that pause their decodes for others"),
    "KV on several instances",
    *("fetched while it is computed", "waits no more for who would fetch it", "KV block loaded from a store"),
)


RARE_EVENTS = (  # that few runs do not reach
    *("lost GPUs that were back before", "GPUs repaired of an instance that is off"),
    *("given up before its copy", "given up during its copy"),
    *("given up while its prefix is fetched", "given up while it is parked"),
    *("look while a phase has no instance", "cancelled at the gateway", "refused at the gateway and sent again"),
    *("scaled up with one that is down", "scaled down with one that has crashed"),
    *("call that waited for one that was not served", "asked about KV that has been used", "pins ended by going off"),
    *("prefetched for one that waits", "prefetched to another instance", "load broken", "prefetched in a step"),
    *("to be computed again by several instances", "instances that another request has claimed"),
    *("crash in a step of several instances", "crash where KV of others is", "step of a span of one instance"),
    *("chunk loaded from a store", "loaded from a store that takes what is evicted"),
    "used too seldom to be written to a store",
    *("swap-in barred by the largest batch alone", "resumed without a seat"),
    *("prefilled where nobody decodes", "given up while it is suspended"),
    *("reported between two steps", "look after a turn or a report"),
    *("preempted request that waits behind others", "suspended while it is swapped out"),
)
MEET_SELDOM = frozenset(
    {"fewer GPUs", "gateway", "patience", "pins", "prefetches", "programs", "reports", "scaling", "spans", "states"}
)
Table = tuple[Counter[str], Counter[tuple[str, str]]]


@pytest.fixture(scope="module")
def table(kept_counts: KeptCounts) -> Table:
    return reached(seeds_of(RUNS), kept_counts.counts_of)


def rare(
    table: Table, floor: int, expected: Iterable[str] = EVENTS, seldom: frozenset[str] = frozenset()
) -> dict[object, int]:
    """How often what is expected happens or meets less than so often does; `seldom` need not meet others."""
    pairs = [pair for pair in itertools.combinations(MECHANISMS, 2) if not is_excluded(*pair) and not seldom & {*pair}]
    events = {event: table[0][event] for event in expected} | {pair: table[1][pair] for pair in pairs}
    return {name: count for name, count in events.items() if count < floor}


def test_what_can_happen_happens_and_mechanisms_meet(table: Table) -> None:
    assert rare(table, FLOOR, seldom=MEET_SELDOM) == {}


@pytest.mark.slow
def test_so_they_do_in_more_runs() -> None:
    assert rare(reached(seeds_of(_THOROUGH)), _THOROUGH_FLOOR, (*EVENTS, *RARE_EVENTS)) == {}


@pytest.mark.slow
def test_of_two_thousand_runs_a_hundred_reach_each_mechanism_and_twenty_each_pair_and_all_agree() -> None:
    runs: Counter[tuple[str, ...]] = Counter()
    for family, seed in together():
        counts: Counter[str] = Counter()
        scenario = drawn(family, seed)
        found = disagreement(scenario, 0.0, outline(*counted(scenario, counts)))
        assert not found, f"{family} {seed}: {found}"
        there = at_work(counts)
        runs.update((name,) for name in there)
        runs.update(itertools.combinations(there, 2))
    assert len(together()) == 2000
    assert {name: runs[name,] for name in MECHANISMS if runs[name,] < 100} == {}
    pairs = [pair for pair in itertools.combinations(MECHANISMS, 2) if not is_excluded(*pair)]
    assert {pair: runs[pair] for pair in pairs if runs[pair] < 20} == {}


def test_what_tells_of_a_mechanism_happens_often_too() -> None:
    assert set(MECHANISMS.values()) - {"cut"} <= set(EVENTS)
