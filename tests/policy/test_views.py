"""Views of a running cluster: what they show, that they cannot be written, and how a hook's errors are reported."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from framework.engine.memory.records import INSTANCE, REQUEST
from framework.engine.memory.state import ACTION
from framework.errors import InputError, PolicyError
from framework.metrics.invariants import check_result
from framework.policy import (
    Action,
    Aggregated,
    Cancel,
    Disaggregated,
    Migrate,
    Plan,
    Policy,
    Preempt,
    Requeue,
    Resume,
    SetDrafts,
    SetMaxBatch,
    SetRole,
    SetTokenBudget,
    decision,
)
from framework.policy.action_rows import ActionRow
from framework.policy.reports import Views
from framework.policy.view import Cluster, Instances, Request, Requests
from framework.result import STATES, Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec
from framework.system.parallelism import Parallelism
from policies.ares import Ares
from servelab.testing.recording import LearnedMean, digest
from servelab.testing.worlds import CLUSTERS, MODEL, SCENARIOS, TIMING
from tests.engine.test_pins import Call, Keeps, both, named, played

INSTANCE_COLUMNS = sorted(Instances.__annotations__)
REQUEST_COLUMNS = sorted(Requests.__annotations__)
SECRETS = ("output", "next_finish", "finish", "target", "length", "arena", "total_tokens")


def play(policy: Policy, cluster: str = "mixed", scenario: str = "roomy") -> Result:
    """A run of a small scenario; its cluster is for policies of either kind unless named."""
    spec: ClusterSpec = CLUSTERS[cluster]
    chosen = SCENARIOS[scenario]
    result = simulate(chosen.workload, spec, MODEL, TIMING, chosen.engine, policy, LearnedMean())
    check_result(result)
    return result


def watching(look: Callable[[Cluster], Any], tick_s: float = 0.5) -> Policy:
    """A policy that looks at the cluster now and then and leaves it alone."""

    class Watching(Policy):
        def on_tick(self, cluster: Cluster) -> tuple[()]:
            look(cluster)
            return ()

    policy = Watching()
    policy.tick_s = tick_s
    return policy


# --- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_pools_are_told_apart_by_what_they_can_do(cluster: str) -> None:
    spec = CLUSTERS[cluster]
    roles = np.array([spec.pools[pool].role for pool in spec.pool_of_instance])
    seen: list[list[int]] = []

    def look(view: Cluster) -> None:
        seen.append([*view.prefill.ids])
        assert [*view.instances.ids] == [*range(spec.instances)]
        assert [*view.prefill.ids] == [*np.flatnonzero(roles != "decode")]
        assert [*view.decode.ids] == [*np.flatnonzero(roles != "prefill")]
        for k, pool in enumerate(spec.pools):
            assert [*view.pool(pool.name).ids] == [*np.flatnonzero(spec.pool_of_instance == k)]
        assert len(view.decode) == len(view.decode.kv_tokens)

    play(watching(look), cluster)
    assert len(seen) > 10


def test_argmin_gives_the_number_in_the_cluster() -> None:
    """Also where a pool's instances do not follow each other: here they are 0, 1 and 3 of 4."""
    answers = []

    def look(view: Cluster) -> None:
        assert [*view.decode.ids] == [0, 1, 3]
        assert view.decode.argmin(np.array([3, 2, 1])) == 3
        assert view.decode.argmin(np.array([3, 1, 1])) == 1
        assert view.prefill.argmin(np.array([5])) == 2
        assert [*view.decode.running] == [*view.instances.running[[0, 1, 3]]]
        answers.append(view.now_s)

    play(watching(look), "decode first")
    assert answers == [0.5 * (k + 1) for k in range(len(answers))]


@pytest.mark.parametrize("cluster", ["mixed", "disaggregated"])
def test_columns_agree_with_each_other_at_any_time(cluster: str) -> None:
    most = {"running": 0, "queued": 0}

    def look(view: Cluster) -> None:
        there = view.instances
        ids, owners = view.decoding_on(there)
        assert [*np.bincount(owners, minlength=len(there))] == [*there.running]
        assert [r for i in range(len(there)) for r in view.decoding(i)] == [*ids]
        kv = np.bincount(owners, view.requests.kv_tokens(ids), len(there))
        assert np.all(kv <= there.kv_tokens)
        generated, prompts = view.requests.generated(ids), view.requests.input_tokens[ids]
        assert np.all(generated >= 1)
        assert np.all(view.requests.kv_tokens(ids) == prompts + generated - 1)
        for unknown in (-1, len(view.requests.arrival_s)):
            with pytest.raises(IndexError, match="no request has that number"):
                view.requests.generated(np.array([0, unknown]))
        assert np.all((there.step_s() > 0) == (there.running > 0))
        assert not view.migrating(ids).any()
        assert np.all(there.free_blocks + there.evictable_blocks <= there.total_blocks)
        for name in most:
            most[name] = max(most[name], int(getattr(there, name).max()))

    play(watching(look, 0.125), cluster, "small budgets")
    assert min(most.values()) > 0, "nothing ran or waited when it was looked at"


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_residents_are_those_that_decode_and_those_on_their_way(
    implementation: Literal["compiled", "reference"],
) -> None:
    moving = []

    def look(view: Cluster) -> None:
        decode, destination = view.decode, view.requests.destination
        ids, positions, stays = view.residents(decode)
        assert [*ids[stays]] == [r for r in view.decoding_on(decode)[0] if destination[r] < 0]
        assert np.all(decode.ids[positions[stays]] == view.requests.instance[ids[stays]])
        assert {*ids[~stays]} == {*np.flatnonzero(destination >= 0)}
        assert np.all(decode.ids[positions[~stays]] == destination[ids[~stays]])
        moving.append(np.count_nonzero(~stays))

    class Moving(Ares):
        def on_tick(self, cluster: Cluster) -> Any:
            look(cluster)
            return [Migrate(int(r), int(cluster.decode.ids[-1])) for r in cluster.decoding(int(cluster.decode.ids[0]))]

    chosen = SCENARIOS["small budgets"]
    engine = replace(chosen.engine, implementation=implementation)
    policy = Moving(period_s=0.25)
    check_result(simulate(chosen.workload, CLUSTERS["disaggregated"], MODEL, TIMING, engine, policy, LearnedMean()))
    assert max(moving) > 1


class Watched(Keeps):
    """Notes states and ages at each tick; takes the first off at 1.5 s, and lets it come back at 3.75 s."""

    tick_s = 0.75

    def __init__(self) -> None:
        super().__init__({})
        self.seen: dict[float, tuple[list[str], list[float]]] = {}
        self.asked_about: list[tuple[int, str, float]] = []

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        self.asked_about.append((request.id, request.state, request.age_s))
        return 0

    def on_finish(self, request: Request, cluster: Cluster) -> tuple[()]:
        self.asked_about.append((request.id, request.state, request.age_s))
        return ()

    def on_tick(self, cluster: Cluster) -> list[Action]:
        ids = np.arange(4)
        self.seen[cluster.now_s] = [*cluster.requests.states(ids)], cluster.requests.age_s(ids).tolist()
        with pytest.raises(IndexError):
            cluster.requests.states(np.array([0, 4]))
        with pytest.raises(IndexError, match="no request has that number"):
            cluster.requests.states(np.array([-1]))
        actions: dict[float, list[Action]] = {1.5: [Preempt(0)], 3.75: [Resume(0)]}
        return actions.get(cluster.now_s, [])


@both
def test_the_state_and_the_age_of_a_request(engine: Literal["compiled", "reference"]) -> None:
    """The second has no room beside the first, which decodes from 1 s until the policy takes it off. Its step goes on
    to 2 s. The second is computed from then to 3 s. The first comes back at 3.75 s, and the third waits for its end.
    """
    calls = [
        Call(at_s, named(1 + k, 6), out) for k, (at_s, out) in enumerate([(0.0, 4), (0.25, 1), (4.0, 1), (9.0, 1)])
    ]
    policy = Watched()
    result = played(calls, policy, engine, 10)
    seen = {now_s: states for now_s, (states, _) in policy.seen.items()}
    assert seen[0.75] == ["prefilling", "queued", "to_come", "to_come"]
    assert seen[1.5] == ["decoding", "queued", "to_come", "to_come"]
    assert seen[2.25] == ["suspended", "prefilling", "to_come", "to_come"]
    assert seen[3.0] == ["suspended", "ended", "to_come", "to_come"]
    assert seen[4.5] == ["prefilling", "ended", "queued", "to_come"]
    assert seen[5.25] == ["decoding", "ended", "queued", "to_come"]
    np.testing.assert_array_equal(policy.seen[4.5][1], [4.5, 4.25, 0.5, np.nan])
    assert result.requests["end_s"].tolist() == [5.75, 3.0, 6.75, 10.0]
    first, second, third, fourth = ((k, "ended", age_s) for k, age_s in enumerate((5.75, 2.75, 2.75, 1.0)))
    routed = [(k, "between", 0.0) for k in range(4)]
    assert policy.asked_about == [*routed[:2], second, routed[2], first, third, routed[3], fourth]


def test_the_state_of_a_request_is_in_no_report() -> None:
    """Who sees reports of instances alone does not know who waits there."""

    class Asks(Aggregated):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            assert request.age_s == 0.0
            return len(cluster.requests.states(np.array([0]))) - 1

    chosen = SCENARIOS["roomy"]
    engine = replace(chosen.engine, views=Views(every_s=0.5))
    with pytest.raises(ValueError, match="no report holds the requests that wait on an instance"):
        simulate(chosen.workload, CLUSTERS["mixed"], MODEL, TIMING, engine, Asks())


def test_estimates_of_a_request() -> None:
    """The time to prefill is the timing's for what the cache lacks; the cache is that of earlier requests."""
    hits = []

    class Estimating(Aggregated):
        def route_prefill(self, request: Request, cluster: Cluster) -> int:
            cached, prefill_s = cluster.prefill.cached_tokens(request), cluster.prefill.prefill_s(request)
            lacking = request.input_tokens - cached
            assert np.all((cached % 32 == 0) & (lacking > 0))
            row = TIMING.row(MODEL, None, Parallelism())  # type: ignore[arg-type]
            square = request.input_tokens**2 - cached**2
            expected_s = row.base_s + row.per_prefill_token_s * lacking + row.prefill_quadratic_s * square
            np.testing.assert_allclose(prefill_s, expected_s, rtol=1e-12)
            hits.append(int(cached.max()))
            return cluster.prefill.argmin(prefill_s)

    result = play(Estimating(), scenario="prefix cache")
    assert max(hits) >= 64
    assert result.requests["cached_tokens"].sum() > 0


def test_a_request_says_what_is_known_of_it() -> None:
    scenario = SCENARIOS["sessions"]
    workload = scenario.workload
    assert workload.priority is not None
    assert workload.session_id is not None
    assert workload.turn is not None
    assert workload.tenant is not None
    tenants = np.unique(workload.tenant, return_inverse=True)[1]
    seen = []

    class Reading(Aggregated):
        def admit(self, request: Request, cluster: Cluster) -> bool:
            known = (request.input_tokens, request.priority, request.tenant, request.session, request.turn)
            columns = (workload.input_tokens, workload.priority, tenants, workload.session_id, workload.turn)
            assert known == tuple(column[request.id] for column in columns)  # type: ignore[index]
            assert (request.arrival_s, request.generated, request.preemptions) == (cluster.now_s, 0, 0)
            seen.append(request.id)
            return True

    play(Reading(), scenario="sessions")
    assert sorted(seen) == list(range(len(workload)))


def test_when_a_request_will_arrive_is_not_known_before_it_has() -> None:
    seen = []

    def look(cluster: Cluster) -> None:
        arrived = ~np.isnan(cluster.requests.arrival_s)
        assert np.all(cluster.requests.arrival_s[arrived] <= cluster.now_s)
        assert np.array_equal(SCENARIOS["roomy"].workload.arrival_s <= cluster.now_s, arrived)
        seen.append(arrived.mean())

    play(watching(look, tick_s=0.37))
    assert min(seen) < 1 == max(seen)


def test_a_predictor_is_heard_and_its_absence_is_nan() -> None:
    expected: list[float] = []

    def look(view: Cluster) -> None:
        ids, _ = view.decoding_on(view.decode)
        expected.extend(view.remaining_tokens(ids))

    play(watching(look))
    assert expected
    assert min(expected) >= 1
    with_predictor = len(expected)
    scenario = SCENARIOS["roomy"]
    simulate(scenario.workload, CLUSTERS["mixed"], MODEL, TIMING, scenario.engine, watching(look))
    assert len(expected) > with_predictor
    assert np.all(np.isnan(expected[with_predictor:]))


# --- what is not shown, and what cannot be done -----------------------------------------------------------------------


def test_no_column_holds_an_undisclosed_length() -> None:
    for name in [*INSTANCE_COLUMNS, *REQUEST_COLUMNS, *(name for name in dir(Request) if not name.startswith("_"))]:
        assert not any(secret in name for secret in SECRETS), name
    with pytest.raises(AttributeError, match="no column 'next_finish'; there are: pool, role"):
        play(watching(lambda view: view.decode.next_finish))


@pytest.mark.parametrize("column", INSTANCE_COLUMNS)
def test_instance_columns_cannot_be_written(column: str) -> None:
    def look(view: Cluster) -> None:
        getattr(view.instances, column)[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        play(watching(look))


@pytest.mark.parametrize("column", REQUEST_COLUMNS)
def test_request_columns_cannot_be_written(column: str) -> None:
    def look(view: Cluster) -> None:
        getattr(view.requests, column)[:] = 0

    with pytest.raises(ValueError, match="read-only"):
        play(watching(look))


def test_no_column_can_be_made_writable() -> None:
    def look(view: Cluster) -> None:
        columns = [view.instances.ids, view.instances.step_times.data, view.requests.priority]
        columns += [getattr(pool, name) for pool in (view.instances, view.prefill) for name in ("queued", "kv_tokens")]
        for column in columns:
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                column.setflags(write=True)
            with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                column[1:].flags.writeable = True

    play(watching(look))


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (lambda view: view.decoding(3), "there is no instance 3; they are 0 to 2"),
        (lambda view: view.queued(-1), "there is no instance -1; they are 0 to 2"),
        (lambda view: view.prefilling(2**80), "there is no instance 1208"),
        (lambda view: view.streams_s(3), "there is no instance 3"),
        (lambda view: view.group(3), "there is no instance 3"),
        (lambda view: view.pool("none"), "there is no pool none; there are all"),
        (lambda view: view.remaining_tokens([60]), "no request has that number"),
        (lambda view: view.predictions.remaining([-1], [0]), "no request has that number"),
        (lambda view: view.predictions.remaining([0, 1], [0]), "one number for each"),
        (lambda view: view.requests.kv_tokens([59]), "request 59 does not decode now: its KV tokens are not known"),
        (lambda view: view.instances.prefill_s(Request(0, view.requests), [0]), r"cached_tokens has shape \(1,\)"),
        (lambda view: view.instances.prefill_s(Request(0, view.requests), chunk_tokens=0), "1 token or more"),
    ],
)
@pytest.mark.parametrize("implementation", ["compiled", "reference"])
def test_what_cannot_be_told_is_said(ask: Callable[[Cluster], Any], line: str, implementation: Any) -> None:
    asked = []

    def look(view: Cluster) -> None:
        with pytest.raises((LookupError, ValueError), match=line):
            ask(view)
        asked.append(view.now_s)

    scenario = SCENARIOS["roomy"]
    engine = replace(scenario.engine, implementation=implementation)
    simulate(scenario.workload, CLUSTERS["mixed"], MODEL, TIMING, engine, watching(look, 1.0), LearnedMean())
    assert asked


def test_a_request_cannot_be_written() -> None:
    class Shortening(Aggregated):
        def admit(self, request: Request, cluster: Cluster) -> bool:
            request.input_tokens = 1  # type: ignore[misc]
            return True

    with pytest.raises(AttributeError):
        play(Shortening())


def test_copies_may_be_changed_and_change_nothing() -> None:
    def copies(view: Cluster) -> list[Any]:
        ids, owners = view.decoding_on(view.decode)
        listed = [view.decoding(i) for i in range(len(view.instances))]
        return [ids, owners, *listed, view.requests.generated(ids), view.remaining_tokens(ids)]

    def scrawl(view: Cluster) -> None:
        for copy in copies(view):
            copy[:] = 0

    assert digest(play(watching(copies))) == digest(play(watching(scrawl)))


# --- hooks that answer nonsense or raise ------------------------------------------------------------------------------


class Unshown:
    def __repr__(self) -> str:
        raise ValueError("no text")


NONSENSE: dict[str, tuple[type[Policy], str, str, Any, str]] = {
    "instance that does not exist": (Aggregated, "mixed", "route_prefill", 99, "99 for request 0"),
    "instance below zero": (Aggregated, "mixed", "route_prefill", -1, "-1 for request 0"),
    "decode instance for a prefill": (Disaggregated, "disaggregated", "route_prefill", 4, "a decode instance"),
    "prefill instance for a decode": (Disaggregated, "disaggregated", "route_decode", 0, "a prefill instance"),
    "decode instance that does not exist": (Disaggregated, "disaggregated", "route_decode", 5, "instances 0 to 4"),
    "an instance of more digits than a record has": (Aggregated, "mixed", "route_prefill", 2**80, "0 to 2"),
    "the same below zero": (Aggregated, "mixed", "route_prefill", -(2**80), "0 to 2"),
    "the largest number of numpy": (Aggregated, "mixed", "route_prefill", np.uint64(2**64 - 1), "0 to 2"),
    "an array of instances": (Aggregated, "mixed", "route_prefill", np.array([0]), "array([0])"),
    "NaN for an instance": (Aggregated, "mixed", "route_prefill", float("nan"), "nan"),
    "an instance that cannot be shown": (Aggregated, "mixed", "route_prefill", Unshown(), "a Unshown"),
    "a cut beyond all tokens": (Aggregated, "mixed", "split_at", 2**80, "return 0 or more"),
    "a cut before the first token": (Aggregated, "mixed", "split_at", -1, "return 0 or more"),
    "no instance at all": (Aggregated, "mixed", "route_prefill", None, "None"),
    "a fraction of an instance": (Aggregated, "mixed", "route_prefill", 1.5, "1.5"),
    "a word for an instance": (Disaggregated, "disaggregated", "route_prefill", "first", "'first'"),
    "an admission that is no answer": (Aggregated, "mixed", "admit", None, "None"),
    "a number for an admission": (Aggregated, "mixed", "admit", 1, "returned 1"),
    "a key that is no number": (Aggregated, "mixed", "prioritize", float("nan"), "NaN"),
    "a word for a key": (Aggregated, "mixed", "prioritize", "urgent", "'urgent'"),
    "a text that reads as a key": (Aggregated, "mixed", "prioritize", "1", "'1'"),
    "a key beyond all floats": (Aggregated, "mixed", "prioritize", 10**400, "return a number for each"),
    "the key of the preempted": (Aggregated, "mixed", "prioritize", float("-inf"), "-inf"),
    "more keys than requests": (Aggregated, "mixed", "prioritize", [1.0, 2.0], "[1.0, 2.0]"),
    "an empty reason": (Aggregated, "mixed", "admit", "", "''"),
    "a number of actions": (Aggregated, "mixed", "on_tick", 3, "3"),
    "no actions": (Aggregated, "mixed", "on_tick", None, "None; return a list of actions, () for none"),
    "a word for an action": (
        Aggregated,
        "mixed",
        "on_tick",
        ["wait"],
        "'wait', no usable action: it is a str; actions",
    ),
    "an action for request 1,000,000": (Aggregated, "mixed", "on_tick", [Migrate(10**6, 0)], "are 0 to"),
    "a role that there is not": (Aggregated, "mixed", "on_tick", [SetRole(0, "deocde")], "no role 'deocde'; roles are"),  # type: ignore[arg-type]
    "no layout": (Aggregated, "mixed", "layout", None, "None"),
    "a plan without tokens": (Aggregated, "mixed", "batching", Plan(0, "mixed"), "token_budget=0"),
    "a plan of an unknown kind": (Aggregated, "mixed", "batching", Plan(64, "eager"), "eager"),  # type: ignore[arg-type]
    "no plan": (Aggregated, "mixed", "batching", None, "None"),
    "an action for no request": (Aggregated, "mixed", "on_tick", [Migrate(-1, 0)], "Migrate(request=-1"),
    "half a request": (Aggregated, "mixed", "on_tick", [Migrate(0.5, 0)], "no request 0.5"),  # type: ignore[arg-type]
    "an action for no instance": (Aggregated, "mixed", "on_tick", [Migrate(0, 2**80)], "instances 0 to 2"),
    "an action for instance NaN": (Aggregated, "mixed", "on_tick", [SetTokenBudget(np.nan, 1)], "no instance nan"),  # type: ignore[arg-type]
    "a budget of too many tokens": (
        Aggregated,
        "mixed",
        "on_tick",
        [SetTokenBudget(0, 2**80)],
        "a whole number from 1",
    ),
    "a word for a budget": (Aggregated, "mixed", "on_tick", [SetTokenBudget(0, "8")], "a whole number from 1"),  # type: ignore[arg-type]
    "a plan of half a token": (Aggregated, "mixed", "batching", Plan(1.5, "mixed"), "token_budget=1.5"),  # type: ignore[arg-type]
    "a plan of a text": (Aggregated, "mixed", "batching", Plan("64", "mixed"), "token_budget='64'"),  # type: ignore[arg-type]
    "a plan of a list": (Aggregated, "mixed", "batching", Plan(64, ["mixed"]), "['mixed']"),  # type: ignore[arg-type]
    "a budget of nothing": (Aggregated, "mixed", "on_tick", [SetTokenBudget(0, 0)], "SetTokenBudget"),
    "nobody preempted": (Aggregated, "mixed", "decide", [Preempt(-1)], "there is no request -1, they are 0 to"),
    "nobody resumed": (Aggregated, "mixed", "decide", [Resume(10**6)], "there is no request 1000000"),
    "KV kept in part": (Aggregated, "mixed", "decide", [Preempt(0, "half")], "keep is one of drop, kv, swap"),  # type: ignore[arg-type]
    "seats that there are not": (Aggregated, "mixed", "decide", [SetMaxBatch(0, 10**6)], "seats, got 1000000"),
    "no seat": (Aggregated, "mixed", "decide", [SetMaxBatch(0, 0)], "seats, got 0"),
    "drafts that there are not": (Aggregated, "mixed", "decide", [SetDrafts(0, 1)], "drafts 0 to 0 tokens, got 1"),
    "queued nowhere": (Aggregated, "mixed", "decide", [Requeue(0, 7)], "there is no instance 7"),
    "cancelled for nothing": (Aggregated, "mixed", "decide", [Cancel(0, "")], "a reason is a text, got ''"),
    "no decisions": (Aggregated, "mixed", "decide", None, "None; return a list of actions, () for none"),
    "an unknown action": (Aggregated, "mixed", "on_tick", ["rest"], "'rest'"),
}


def answering(base: type[Policy], hook: str, answer: Any) -> Policy:
    def respond(self: Policy, *arguments: Any) -> Any:
        return answer

    return type("Odd", (base,), {hook: respond, "tick_s": 0.5})()


def test_actions_have_the_fields_of_their_record() -> None:
    assert ActionRow._fields == ACTION.names


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_names_policy_hook_and_value(kind: str) -> None:
    base, cluster, hook, answer, words = NONSENSE[kind]
    with pytest.raises(PolicyError) as refusal:
        play(answering(base, hook, answer), cluster)
    line = str(refusal.value)
    assert line.startswith(f"policy Odd: {hook} returned ")
    assert words in line
    assert "\n" not in line


def test_a_word_of_route_decode_is_a_reason() -> None:
    result = play(answering(Disaggregated, "route_decode", "no room"), "disaggregated")
    rejected = result.requests["state"] == STATES.index("rejected")
    assert {result.reasons[k] for k in result.requests["reason"][rejected]} == {"no room"}
    assert np.array_equal(rejected, result.workload.output_tokens > 1)


@pytest.mark.parametrize(
    "hook", ["admit", "route_prefill", "route_decode", "prioritize", "batching", "on_tick", "decide"]
)
def test_what_a_hook_raises_comes_out_as_it_is(hook: str) -> None:
    """A bug of a policy keeps its own error and traceback, and the next run is not touched by it."""

    class PolicyBugError(Exception):
        pass

    def respond(self: Policy, *arguments: Any) -> Any:
        raise PolicyBugError(hook)

    broken = type("Broken", (Disaggregated,), {hook: respond, "tick_s": 0.5})()
    before = digest(play(Disaggregated(), "disaggregated"))
    with pytest.raises(PolicyBugError, match=hook) as raised:
        play(broken, "disaggregated")
    assert "respond" in [entry.name for entry in raised.traceback]
    assert digest(play(Disaggregated(), "disaggregated")) == before


@pytest.mark.parametrize("answer", [np.int64(1), np.int32(1), np.uint8(1), True])
def test_whole_numbers_of_any_type_name_an_instance(answer: Any) -> None:
    rows = play(answering(Aggregated, "route_prefill", answer)).requests
    assert set(rows["prefill_instance"]) == {1}


def test_a_hook_whose_name_is_misspelt_is_reported() -> None:
    class Misspelt(Aggregated):
        def prioritise(self, queue: Any, cluster: Cluster) -> float:
            return 0.0

    with pytest.raises(PolicyError, match="no hook is called prioritise; did you mean prioritize"):
        play(Misspelt())


def test_a_hook_in_other_letters_is_reported() -> None:
    class Camel(Aggregated):
        def onTick(self, cluster: Cluster) -> tuple[()]:  # noqa: N802
            return ()

    with pytest.raises(PolicyError, match="no hook is called onTick; did you mean on_tick"):
        play(Camel())


def test_a_hook_that_does_not_take_what_it_is_called_with_is_reported() -> None:
    class Few(Aggregated):
        def route_prefill(self, request: Any) -> int:
            return 0

    class Many(Aggregated):
        tick_s = 1.0

        def on_tick(self, cluster: Cluster, since_s: float) -> tuple[()]:  # type: ignore[override]
            return ()

    class Whatever(Aggregated):
        def admit(self, *arguments: Any, deeper: bool = False) -> bool:
            return True

    with pytest.raises(PolicyError, match=r"route_prefill takes .*; it is called as route_prefill\(request, cluster\)"):
        play(Few())
    with pytest.raises(PolicyError, match=r"on_tick takes .*; it is called as on_tick\(cluster\)"):
        play(Many())
    play(Whatever())


def test_a_run_knows_how_long_its_hooks_took() -> None:
    assert play(Aggregated()).hooks_s == 0.0
    watched = play(watching(lambda view: time.sleep(0.001), 0.25))
    assert 0.01 < watched.hooks_s < watched.replay_s


def test_a_tick_needs_a_period() -> None:
    class Ticking(Aggregated):
        def on_tick(self, cluster: Cluster) -> tuple[()]:
            return ()

    with pytest.raises(PolicyError, match="on_tick needs a period; set tick_s"):
        play(Ticking())
    never = Ticking()
    never.tick_s = None
    play(never)


@pytest.mark.parametrize("tick_s", [0.0, -1.0, float("nan")])
def test_a_period_that_is_none_is_refused(tick_s: float) -> None:
    policy = Aggregated()
    policy.tick_s = tick_s
    with pytest.raises(InputError, match="tick_s must"):
        play(policy)


def test_compiled_hooks_see_no_end_of_a_request() -> None:
    hidden = {"next_finish", "event_s", "finish", "output_tokens"}
    assert not hidden & set(INSTANCE.names or ())
    assert "output_tokens" not in (REQUEST.names or ())


def test_reasons_of_a_policy_are_kept() -> None:
    class Picky(Aggregated):
        def admit(self, request: Request, cluster: Cluster) -> bool | str:
            return "too long" if request.input_tokens > 300 else request.id % 2 == 0

    result = play(Picky())
    reasons = np.array(result.reasons)[result.requests["reason"]]
    long = result.workload.input_tokens > 300
    assert set(reasons[long]) == {"too long"}
    assert set(reasons[~long]) == {"", "policy"}
    assert np.all((reasons == "") == (result.requests["state"] == 1))


@pytest.mark.parametrize("cluster", ["disaggregated", "all roles"])
def test_a_cluster_of_the_wrong_roles_is_refused(cluster: str) -> None:
    with pytest.raises(InputError, match=r"policy Aggregated cannot use .*; choose cluster=mixed"):
        play(Aggregated(), cluster)


# --- compiled hooks ---------------------------------------------------------------------------------------------------


@decision(observes=False)
def _third(request: int, view: Any, params: Any, state: Any) -> int:
    """Every instance in turn, `params[0]` requests each."""
    state[3] += 1
    return int((state[3] - 1) // params[0]) % len(view.instances)


@decision(observes=False)
def _nowhere(request: int, view: Any, params: Any, state: Any) -> int:
    return 99


@decision(observes=False)
def _always_seven(request: int, view: Any, params: Any, state: Any) -> int:
    return 7


class InThrees(Aggregated):
    route_prefill = _third
    compiled_params = (3.0,)


class InThreesPlainly(Aggregated):
    def __init__(self) -> None:
        self.routed = 0

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        self.routed += 1
        return (self.routed - 1) // 3 % len(cluster.instances)


def test_a_compiled_hook_decides_as_a_plain_one() -> None:
    compiled, plain = play(InThrees()), play(InThreesPlainly())
    assert np.array_equal(compiled.requests["end_s"], plain.requests["end_s"])
    assert set(compiled.requests["prefill_instance"]) == {0, 1, 2}


def test_state_of_a_compiled_hook_starts_anew_each_run() -> None:
    assert digest(play(InThrees())) == digest(play(InThrees()))


def test_a_compiled_refusal_is_the_policys() -> None:
    class Full(Aggregated):
        admit: Any = _always_seven

    result = play(Full())
    assert {result.reasons[reason] for reason in result.requests["reason"]} == {"policy"}


def test_a_compiled_hook_that_names_no_instance_is_named() -> None:
    class Compiled(Aggregated):
        route_prefill = _nowhere

    with pytest.raises(PolicyError, match="policy Compiled: route_prefill returned instance 99 for request 0"):
        play(Compiled())
