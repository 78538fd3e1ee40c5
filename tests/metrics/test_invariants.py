"""A result in which something is wrong is not let through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from framework.engine.memory.state import TIER
from framework.engine.setup.config import EngineConfig
from framework.errors import InvariantError
from framework.metrics.invariants import check_result
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, mixed
from framework.system.gpu import Gpu
from framework.system.parallelism import Parallelism
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.scenarios import MODEL, RowTiming

GPU = Gpu("g", {"bf16": 1e12}, 1e9, 1e12, 1e9, 1e9, 1e9, 100.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def result() -> Result:
    """20 requests on two instances, each with leaps of several steps."""
    workload = Workload(np.linspace(0.0, 14.25, 20), np.full(20, 8), np.arange(20) % 7 + 4)
    row = StepRow(base_s=0.25, per_context_token_s=2.0**-10)
    result = simulate(workload, mixed(2, GPU), MODEL, RowTiming({"g": row}), EngineConfig(kv_tokens=4096))
    check_result(result)
    return result


def early(result: Result) -> Result:
    """The third leap of instance 1 starts within the second."""
    rows = np.flatnonzero(result.step_log["instance"] == 1)
    leaps = result.step_log.copy()
    leaps["start_s"][rows[2]] = leaps["start_s"][rows[1]] + 1e-3
    return replace(result, step_log=leaps)


def longer(result: Result) -> Result:
    """A leap of several steps takes twice as long."""
    row = int(np.flatnonzero((result.step_log["steps"] > 1) & (result.step_log["instance"] == 0))[0])
    leaps = result.step_log.copy()
    leaps["increment_s"][row] += 1.0
    return replace(result, step_log=leaps)


def uncounted(result: Result) -> Result:
    return replace(result, step_log=result.step_log[:-1])


def lost(result: Result) -> Result:
    return replace(result, token_log=result.token_log[1:])


def backwards(result: Result) -> Result:
    requests = result.requests.copy()
    requests["end_s"][3] = requests["first_token_s"][3] - 1.0
    return replace(result, requests=requests)


def held(result: Result) -> Result:
    instances = result.instances.copy()
    instances["free_blocks"][1] -= 1
    return replace(result, instances=instances)


def of_requests(name: str, row: int, value: float) -> Callable[[Result], Result]:
    def changed(result: Result) -> Result:
        requests = result.requests.copy()
        requests[name][row] = value
        return replace(result, requests=requests)

    return changed


def of_instances(name: str, row: int, value: float) -> Callable[[Result], Result]:
    def changed(result: Result) -> Result:
        instances = result.instances.copy()
        instances[name][row] = value
        return replace(result, instances=instances)

    return changed


def crowded(result: Result) -> Result:
    """Decode steps of one sequence less than decoded in them."""
    leaps = result.step_log.copy()
    leaps["batch"] -= leaps["batch"] > 0
    return replace(result, step_log=leaps)


_KV = ("kv_tokens", "decode_kv", "incoming_kv_tokens")
_SWITCHES = ("starts", "stops")
_LISTS = ("queued", "queued_tokens", "running", "prefilling", "joining", "reserved", "swapped", "incoming")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (early, "step that starts before the last one ended .first at"),
        (longer, "step that starts before the last one ended"),
        (uncounted, "the engine counted"),
        (lost, "request whose tokens do not add up"),
        (backwards, "request whose end_s precedes its first_token_s .first at 3, 1 in all"),
        (held, "instance whose blocks are not all freed .first at 1"),
        (crowded, "more tokens than decode steps had room for"),
        (of_requests("state", 4, 0), "request without an end .first at 4, 1 in all"),
        (of_requests("state", 4, 5), "request without an end .first at 4, 1 in all"),
        (of_requests("state", 4, 2), "request that did not finish, without a reason .first at 4"),
        (of_requests("emitted", 4, 1), "finished request with lost tokens .first at 4"),
        (of_requests("start_s", 4, np.nan), "finished request that never started .first at 4"),
        (of_requests("start_s", 4, -1.0), "request whose start_s precedes its arrival_s .first at 4"),
        (of_requests("prefill_end_s", 4, -1.0), "request whose prefill_end_s precedes its start_s .first at 4"),
        (of_requests("first_token_s", 4, -1.0), "request whose first_token_s precedes its prefill_end_s .first at 4"),
        *((of_instances(name, 1, 1), f"instance whose {name} is not 0 at the end .first at 1") for name in _LISTS),
        *((of_instances(name, 0, 1), f"instance whose {name} is not 0 at the end .first at 0") for name in _KV),
        *(
            (of_instances(name, 1, 1), "instance whose starts and stops do not add up .first at 1")
            for name in _SWITCHES
        ),
        (of_instances("bubble_s", 1, 1e-6), "stages or ranks that waited longer than they were busy .first at 1"),
        (of_instances("bubble_s", 1, -1e-6), "stages or ranks that waited longer than they were busy .first at 1"),
    ],
)
def test_what_is_wrong_is_named(result: Result, change: Callable[[Result], Result], reason: str) -> None:
    with pytest.raises(InvariantError, match=reason):
        check_result(change(result))


def test_requests_that_were_not_served_need_no_times_and_all_their_tokens_are_not_asked_for(result: Result) -> None:
    requests = result.requests.copy()
    for name, value in {"state": 2, "reason": 1, "emitted": 0, "first_token_s": np.nan, "end_s": np.nan}.items():
        requests[name][4] = value
    check_result(replace(result, requests=requests))
    requests["emitted"][4] = 99
    with pytest.raises(InvariantError, match=r"request with more tokens than it has .first at 4, 1 in all"):
        check_result(replace(result, requests=requests))


def test_more_blocks_in_use_than_there_are(result: Result) -> None:
    instances = result.instances.copy()
    instances["free_blocks"][1] = -1
    instances["evictable_blocks"][1] = instances["total_blocks"][1] + 1
    with pytest.raises(InvariantError, match=r"more blocks in use than it has .first at 1"):
        check_result(replace(result, instances=instances))


def test_a_store_may_be_full_and_no_fuller(result: Result) -> None:
    tiers = np.zeros(2, TIER)
    tiers["capacity"], tiers["count"] = 8, [3, 8]
    check_result(replace(result, tiers=tiers))
    tiers["count"][1] = 9
    with pytest.raises(InvariantError, match=r"store with more blocks than it has room for .first at 1"):
        check_result(replace(result, tiers=tiers))


def test_each_stage_beyond_the_first_may_wait_as_long_as_the_instance_is_busy() -> None:
    """Three stages, two of which wait for the third."""
    workload = Workload(np.zeros(2), np.full(2, 8), np.full(2, 4))
    cluster = ClusterSpec((PoolSpec("all", "mixed", 1, GPU, Parallelism(pp=3)),), LinkSpec(1.0))
    found = simulate(workload, cluster, MODEL, RowTiming({"g": StepRow(base_s=0.25)}), EngineConfig(kv_tokens=4096))
    busy_s = float(found.instances["busy_s"][0])
    check_result(of_instances("bubble_s", 0, 2 * busy_s)(found))
    with pytest.raises(InvariantError, match="stages or ranks that waited longer"):
        check_result(of_instances("bubble_s", 0, 2.001 * busy_s)(found))


def test_a_step_may_start_as_the_last_one_ends_but_for_rounding(result: Result) -> None:
    rows = np.flatnonzero(result.step_log["instance"] == 1)
    leap = result.step_log[rows[-2]]
    end_s = leap["start_s"] + sum(leap["first_s"] + j * leap["increment_s"] for j in range(leap["steps"]))
    for share, is_early in ((0.5e-9, False), (2e-9, True)):
        leaps = result.step_log.copy()
        leaps["start_s"][rows[-1]] = end_s * (1 - share)
        changed = replace(result, step_log=leaps)
        if is_early:
            with pytest.raises(InvariantError, match="step that starts before"):
                check_result(changed)
        else:
            check_result(changed)


def test_a_reduced_log_is_not_looked_at(result: Result) -> None:
    check_result(replace(result, engine=replace(result.engine, log="reduced"), step_log=result.step_log[:-1]))
