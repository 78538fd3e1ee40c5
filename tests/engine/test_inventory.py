"""The inventory of an instance: after `drop_marked` nothing that it held or expected is left, whenever that happens."""

from __future__ import annotations

from tests.helpers.interpreted import printed_interpreted

# In plain Python, for the functions of the engine have no machine code of their own.
DROPS = """
from dataclasses import replace
import numpy as np
from framework.codes import ROLES
from framework.engine.setup.allocate import allocate
from framework.engine.memory.attach import attach, handed
from framework.engine.setup.binding import Binding
from framework.engine.setup.config import Setting
from framework.engine.setup.inspect import MemoryInspection
from framework.engine.roles.lost_steps import lose_step
from framework.engine.roles.inventory import drop_marked, is_drained
from framework.engine.loop import run
from framework.policy import lay_out
from framework.policy.predictor import Predictions
from framework.policy.view import Cluster
from framework.load import Open
from framework.system.faults import Crash, FaultSchedule
from policies.ares import Ares
from policies.chunked import Chunked
from predictors.oracle import Oracle
from servelab.testing.worlds import CLUSTERS, MODEL, SCENARIOS, TIMING

COUNTS = ("queued", "queued_tokens", "prefilling", "running", "joining", "reserved", "swapped", "incoming")


def stopped(scenario, cluster, policy, events):
    spec = lay_out(policy, CLUSTERS[cluster])
    never = replace(scenario.engine, faults=FaultSchedule(crashes=[Crash(1e9, 0, 1.0)]))  # for room
    memory = allocate(Setting(scenario.workload, spec, MODEL, TIMING, never))
    inspection = MemoryInspection(memory)
    oracle = Oracle()
    oracle.prepare(scenario.workload, 0)
    predictions = Predictions(oracle, scenario.workload, lambda: inspection.finished)
    binding = Binding(policy, Cluster(inspection, spec, predictions), memory)
    run(handed(memory, binding.view, binding.params, binding.numbers), events)
    return memory


held = 0
for name, scenario in sorted(SCENARIOS.items()):
    for cluster, policy in (("mixed", Chunked), ("disaggregated", Ares)):
        for events in (5, 90):
            memory = stopped(scenario, cluster, policy(), events)
            s, instances = attach(memory, 0), memory.instances
            held += int(instances["kv_tokens"].sum()) + int(instances["incoming"].sum())
            for i in range(len(instances)):
                instances["marked"] = np.arange(len(instances)) == i
                lose_step(s, i)
                drop_marked(s)
                assert is_drained(s, i, ROLES["mixed"], True), (name, cluster, events, i)
            where = (name, cluster, events)
            for field in COUNTS + ("kv_tokens", "incoming_kv_tokens", "decode_kv"):
                assert not instances[field].any(), (*where, field, instances[field])
            free = instances["free_blocks"] + instances["evictable_blocks"]
            assert (free == instances["total_blocks"]).all(), where
            assert memory.sim["heap_size"][0] == 0, where
print(held > 0)
"""


def test_nothing_is_left_of_what_an_instance_held() -> None:
    assert printed_interpreted(DROPS) == "True\n"
