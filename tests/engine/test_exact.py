"""The compiled engine against the plain reference, over random whole runs.

Dyadic scenarios agree to the bit: rows, totals, steps, token times, and every question to the policy in its order with
all that it saw. General floats agree within 1e-9 relative; runs with two events closer than that are set aside.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framework.codes import ARRIVAL, TICK
from framework.engine.reference.loop import run
from framework.engine.reference.simulation import Simulation
from framework.engine.reference.state import INSTANCE_TOTALS
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from tests.helpers.pressed import moving, pressed, staged
from tests.helpers.recovery import step_times, token_times
from tests.helpers.rulers import Note, RuledHooks, Ruler, ruled_policy
from tests.helpers.scenarios import Scenario, crowded, scenarios, severed, shared, sharing

ROW_FIELDS = (
    *("state", "prefill_instance", "decode_instance", "arrival_s", "start_s", "prefill_end_s", "first_token_s"),
    *("transfer_end_s", "end_s", "cached_tokens", "preemptions", "migrations"),
)
COMPARED_TOTALS = tuple(name for name in INSTANCE_TOTALS if name != "extrapolated_s")  # a leap counts as a whole
NEAR = 1e-9

quick = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
thorough = settings(quick, max_examples=4000)


def run_reference(scenario: Scenario) -> tuple[Simulation, list[Note]]:
    ruler = Ruler(scenario.rules)
    hooks = RuledHooks(ruler)
    return run(scenario.simulation(hooks)), ruler.notes


def run_engine(scenario: Scenario) -> tuple[Result, list[Note]]:
    ruler = Ruler(scenario.rules)
    result = simulate(
        scenario.workload,
        scenario.cluster,
        scenario.model,
        scenario.timing,
        scenario.engine,
        ruled_policy(ruler),
        load=scenario.load,
        seed=scenario.seed,
    )
    check_result(result)
    return result, ruler.notes


def outline(simulation: Simulation, notes: list[Note]) -> dict[str, Any]:
    """All that is compared, of the reference."""
    rows = [{name: getattr(r, name) for name in ROW_FIELDS} for r in simulation.requests]
    for row in rows:
        row["arrival_s"] -= simulation.options.request_s  # results tell when the client sent it
    return {
        "reasons": [r.reason for r in simulation.requests],
        "rows": rows,
        "emitted": [r.emitted for r in simulation.requests],
        "tokens": [r.token_s for r in simulation.requests],
        "steps": [i.steps for i in simulation.instances],
        "instances": [{name: i.totals[name] for name in COMPARED_TOTALS} for i in simulation.instances],
        "off_s": [i.off_s_at(simulation.now_s) for i in simulation.instances],
        "hit_tokens": [tokens for i in simulation.instances for tokens in i.hit_tokens],
        "loaded_bytes": [size for i in simulation.instances for size in i.loaded_bytes],
        "notes": [(note.hook, note.subject, note.now_s, note.seen) for note in notes],
    }


def outline_of_result(result: Result, notes: list[Note]) -> dict[str, Any]:
    """The same of the compiled engine."""
    steps = step_times(result)
    return {
        "reasons": [result.reasons[row["reason"]] for row in result.requests],
        "rows": [{name: row[name].item() for name in ROW_FIELDS} for row in result.requests],
        "emitted": result.requests["emitted"].tolist(),
        "tokens": token_times(result),
        "steps": [steps[i] for i in range(len(result.instances))],
        "instances": [{name: row[name].item() for name in COMPARED_TOTALS} for row in result.instances],
        "off_s": result.instances["off_s"].tolist(),
        "hit_tokens": result.tiers["hit_tokens"].tolist(),
        "loaded_bytes": result.tiers["loaded_bytes"].tolist(),
        "notes": [(note.hook, note.subject, note.now_s, note.seen) for note in notes],
    }


def differences(ours: Any, theirs: Any, tolerance: float, path: str = "") -> list[str]:
    """Where two nested structures differ; floats by more than `tolerance` times (1 + their size)."""
    if ours == theirs:  # most are, and are told so a hundred times as fast
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [line for key in ours for line in differences(ours[key], theirs.get(key), tolerance, f"{path}.{key}")]
    if all(isinstance(side, Sequence) and not isinstance(side, str) for side in (ours, theirs)):
        lines = [] if len(ours) == len(theirs) else [f"{path}: {len(ours)} entries, engine {len(theirs)}"]
        pairs = enumerate(zip(ours, theirs, strict=False))
        return lines + [line for k, (a, b) in pairs for line in differences(a, b, tolerance, f"{path}[{k}]")]
    if (isinstance(ours, float) and isinstance(theirs, int | float)) or (
        isinstance(theirs, float) and isinstance(ours, int)
    ):
        same = abs(ours - theirs) <= tolerance * (1 + abs(ours)) or (ours != ours and theirs != theirs)
    else:
        same = False
    return [] if same else [f"{path}: {ours!r}, engine {theirs!r}"]


def test_unlike_things_differ() -> None:
    pairs: list[tuple[Any, Any]] = [
        ([1, 2], 3),
        (3, [1]),
        ("a", 1.0),
        (None, 0.5),
        ({"a": 1}, [1]),
        ({"a": 1}, {}),
        (1.0, 2),
    ]
    for ours, theirs in pairs:
        assert len(differences(ours, theirs, 0.0)) == 1, (ours, theirs)
    assert differences([1.0, math.nan, "a"], [1, math.nan, "a"], 0.0) == []


def compare(scenario: Scenario, tolerance: float) -> None:
    reference = outline(*run_reference(scenario))
    result, notes = run_engine(scenario)
    engine = outline_of_result(result, notes)
    for name in ("kv_block_s", "kv_token_s"):  # sums of the same terms in another order
        for k, (ours, theirs) in enumerate(zip(reference["instances"], engine["instances"], strict=True)):
            used, engine_used = ours.pop(name), theirs.pop(name)
            slack = 1e-9 * (1 + abs(used))
            assert abs(used - engine_used) <= slack, f"instance {k}: {name} {used}, engine {engine_used}"
    found = differences(reference, engine, tolerance)
    assert not found, "\n".join([f"{len(found)} differences", *found[:12]])


def has_near_tie(simulation: Simulation) -> bool:
    """Whether two events whose times are sums come within NEAR of each other or of any other event."""
    first_turns, options = simulation.workload.previous, simulation.options
    opens = options.clients is None
    given_time = [
        kind == TICK
        or (kind == ARRIVAL and (time == options.request_s or (opens and (first_turns is None or first_turns[id] < 0))))
        for time, kind, id in simulation.order
    ]
    for k in range(1, len(simulation.order)):
        before, now = simulation.order[k - 1][0], simulation.order[k][0]
        if now - before <= NEAR * (1 + now) and not (given_time[k - 1] and given_time[k]):
            return True
    return False


@quick
@given(scenarios(exact=True))
def test_exact(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@settings(quick, max_examples=150)
@given(crowded())
def test_exact_where_prompts_crowd(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@settings(quick, max_examples=150)
@given(severed())
def test_exact_where_requests_are_cut(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@settings(quick, max_examples=150)
@given(sharing())
def test_exact_where_prefixes_are_stored(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@pytest.mark.slow
@thorough
@given(severed())
def test_exact_where_requests_are_cut_thoroughly(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@pytest.mark.slow
@thorough
@given(sharing())
def test_exact_where_prefixes_are_stored_thoroughly(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@settings(quick, max_examples=100)
@given(pressed())
def test_exact_where_memory_is_tight(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@settings(quick, max_examples=60)
@given(staged())
def test_exact_in_pipelines(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@settings(quick, max_examples=60)
@given(moving())
def test_exact_where_roles_change_on_the_way(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@settings(quick, max_examples=150)
@given(shared())
def test_exact_where_phases_share_a_gpu(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


@pytest.mark.slow
@thorough
@given(scenarios(exact=True))
def test_exact_thoroughly(scenario: Scenario) -> None:
    compare(scenario, tolerance=0.0)


def check_floats(examples: settings, scenarios: st.SearchStrategy[Scenario]) -> None:
    compared = set_aside = 0

    @examples
    @given(scenarios)
    def check(scenario: Scenario) -> None:
        nonlocal compared, set_aside
        if has_near_tie(run_reference(scenario)[0]):
            set_aside += 1
        else:
            compared += 1
            compare(scenario, tolerance=NEAR)

    check()
    assert compared > set_aside, f"{set_aside} of {compared + set_aside} runs were set aside"


def test_floats() -> None:
    check_floats(settings(quick, max_examples=300), scenarios(exact=False))


def test_floats_where_phases_share_a_gpu() -> None:
    check_floats(settings(quick, max_examples=200), shared(exact=False))


@pytest.mark.slow
def test_floats_thoroughly() -> None:
    check_floats(thorough, scenarios(exact=False))


@settings(quick, max_examples=100)
@given(scenarios(exact=True))
def test_reference_keeps_its_books(scenario: Scenario) -> None:
    simulation, _ = run_reference(scenario)
    for r in simulation.requests:
        assert r.state != 0
        assert len(r.token_s) == r.emitted
        assert r.state != 1 or r.emitted == r.output_tokens
        assert r.token_s == sorted(r.token_s)
        assert all(math.ldexp(t, 40).is_integer() for t in r.token_s), "a time is not dyadic"
    stalled = any(r.reason == "stalled" for r in simulation.requests)
    for i in simulation.instances:
        for stream in ([step for step in i.steps if step[2]], [step for step in i.steps if not step[2]]):
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(stream))
        assert stalled or (i.cache.used, i.seats, i.waiting, i.incoming, i.swapped) == (0, 0, [], [], [])
        assert stalled or i.cache.available == i.cache.total
