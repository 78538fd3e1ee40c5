"""One random run in both engines, and where they differ.

Runs of dyadic numbers agree to the bit: rows, totals, steps, token times, and every question to the policy in its order
with all that it saw. General floats agree within 1e-9 relative; runs with two events closer than that are set aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from framework.codes import ARRIVAL, TICK
from framework.metrics.invariants import check_result
from framework.reference.loop import run
from framework.reference.simulation import Simulation
from framework.reference.state import INSTANCE_TOTALS, UNSENT
from framework.result import MARK, Result
from framework.simulate import simulate
from tests.helpers.recovery import step_times, token_times
from tests.helpers.rulers import Note, RuledHooks, RuledPredictor, Ruler, ruled_policy
from tests.helpers.scenarios import Scenario

ROW_FIELDS = (
    *("state", "prefill_instance", "decode_instance", "arrival_s", "start_s", "prefill_end_s", "first_token_s"),
    *("transfer_end_s", "end_s", "cached_tokens", "preemptions", "migrations"),
)
COMPARED_TOTALS = tuple(name for name in INSTANCE_TOTALS if name != "extrapolated_s")  # a leap counts as a whole
NEAR = 1e-9


def run_reference(scenario: Scenario) -> tuple[Simulation, list[Note]]:
    """The run in the reference engine, and all that the policy was asked."""
    ruler = Ruler(scenario.rules)
    hooks = RuledHooks(ruler)
    return run(scenario.simulation(hooks)), ruler.notes


def run_engine(scenario: Scenario) -> tuple[Result, list[Note]]:
    """The same in the compiled engine."""
    ruler = Ruler(scenario.rules)
    result = simulate(
        scenario.workload,
        scenario.cluster,
        scenario.model,
        scenario.timing,
        scenario.engine,
        ruled_policy(ruler),
        RuledPredictor(scenario.rules) if scenario.rules.predicts else None,
        load=scenario.load,
        seed=scenario.seed,
    )
    check_result(result)
    return result, ruler.notes


def outline(simulation: Simulation, notes: list[Note]) -> dict[str, Any]:
    """All that is compared, of the reference."""
    sent = [r for r in simulation.requests if r.state != UNSENT]
    rows = [{name: getattr(r, name) for name in ROW_FIELDS} for r in sent]
    for row in rows:
        row["arrival_s"] -= simulation.options.request_s  # results tell when the client sent it
    numbers = {r.id: k for k, r in enumerate(sent)}
    return {
        "crashes": simulation.crash_log,
        "drops": [(crash, numbers[r], *rest) for crash, r, *rest in simulation.drops],
        "reasons": [r.reason for r in sent],
        "rows": rows,
        "gated_s": [r.gated_s for r in sent if simulation.gate is not None],
        "emitted": [r.emitted for r in sent],
        "tokens": [r.token_s for r in sent],
        "steps": [i.steps for i in simulation.instances],
        "instances": [{name: i.totals[name] for name in COMPARED_TOTALS} for i in simulation.instances],
        "extrapolation": [i.extrapolation for i in simulation.instances],
        "off_s": [i.off_s_at(simulation.now_s) for i in simulation.instances],
        "starts": [(i.starts, i.stops, i.reversals) for i in simulation.instances],
        "pins_broken": [i.pins_broken for i in simulation.instances],
        "restored_tokens": [i.restored_tokens for i in simulation.instances],
        "marks": [[{name: row[name] for name in MARK.names or ()} for row in mark] for mark in simulation.marks],
        "hit_tokens": [tokens for i in simulation.instances for tokens in i.hit_tokens],
        "loaded_bytes": [size for i in simulation.instances for size in i.loaded_bytes],
        "notes": [(note.hook, note.subject, note.now_s, note.seen) for note in notes],
    }


def outline_of_result(result: Result, notes: list[Note]) -> dict[str, Any]:
    """The same of the compiled engine."""
    steps = step_times(result)
    return {
        "crashes": result.crashes.tolist(),
        "drops": result.drops.tolist(),
        "reasons": [result.reasons[reason] for reason in result.requests["reason"].tolist()],
        "rows": _rows(result.requests, ROW_FIELDS),
        "gated_s": result.gated_s.tolist(),
        "emitted": result.requests["emitted"].tolist(),
        "tokens": token_times(result, steps),
        "steps": [steps[i] for i in range(len(result.instances))],
        "instances": _rows(result.instances, COMPARED_TOTALS),
        "extrapolation": result.instances["extrapolation"].tolist(),
        "off_s": result.instances["off_s"].tolist(),
        "starts": result.instances[["starts", "stops", "reversals"]].tolist(),
        "pins_broken": result.instances["pins_broken"].tolist(),
        "restored_tokens": result.instances["restored_tokens"].tolist(),
        "marks": [_rows(mark, MARK.names or ()) for mark in result.marks],
        "hit_tokens": result.tiers["hit_tokens"].tolist(),
        "loaded_bytes": result.tiers["loaded_bytes"].tolist(),
        "notes": [(note.hook, note.subject, note.now_s, note.seen) for note in notes],
    }


def _rows(table: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """These fields of each row, as plain numbers."""
    columns = (table[name].tolist() for name in names)
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def differences(ours: Any, theirs: Any, tolerance: float, path: str = "") -> list[str]:
    """Where two nested structures differ; floats by more than `tolerance` times (1 + their size)."""
    if ours == theirs:  # most are, and this shows a hundred times as fast
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


_SUMS = ("kv_block_s", "kv_token_s", "expert_reads")  # of the same terms in another order, or of what no float holds


def expected(scenario: Scenario) -> dict[str, Any]:
    """All that is compared, of the reference engine."""
    return outline(*run_reference(scenario))


def unlike(scenario: Scenario, reference: dict[str, Any], tolerance: float) -> list[str]:
    """Where the compiled engine differs by more than `tolerance` from what the reference engine left, `expected`."""
    ours, theirs = dict(reference), outline_of_result(*run_engine(scenario))
    sums = [[{name: row[name] for name in _SUMS} for row in side["instances"]] for side in (ours, theirs)]
    for side in (ours, theirs):
        side["instances"] = [{k: v for k, v in row.items() if k not in _SUMS} for row in side["instances"]]
    marks = [side.pop("marks") for side in (ours, theirs)]  # of sums over the same terms, too
    found = differences(ours, theirs, tolerance) + differences(sums[0], sums[1], NEAR, ".instances")
    return found + differences(marks[0], marks[1], NEAR, ".marks")


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
