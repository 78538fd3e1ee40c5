"""What may limit the goodput of a run: each cause by name, with the change of an experiment that removes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from framework.diagnosis import changes
from framework.diagnosis.changes import Change


@dataclass(frozen=True)
class Cause:
    """`title` names the limit of goodput, `without` what the run without it has; the best of `changes` counts.

    `breadth`: 0 for what a setting or a decision can fix; more for faster hardware, which also removes other causes.
    """

    title: str
    without: str
    changes: tuple[Change, ...]
    breadth: int = 0


# The order is that of the trials.
REMOVABLE: Mapping[str, Cause] = {
    "prefill": Cause("Prefill limits goodput", "prefills ten times as fast", (changes.prefill_is_fast,), breadth=2),
    "decode": Cause("Decode limits goodput", "decodes ten times as fast", (changes.decode_is_fast,), breadth=2),
    "context": Cause(
        "The reading of contexts by decodes limits goodput",
        "contexts read ten times as fast",
        (changes.contexts_are_fast,),
        breadth=1,
    ),
    "host": Cause("The host's work on steps limits goodput", "a host that takes no time", (changes.host_is_free,)),
    "eviction": Cause(
        "KV is evicted between the calls of programs",
        "evicted KV kept in endless host memory, read at once",
        (changes.evicted_kv_comes_back,),
    ),
    "memory": Cause("KV memory limits goodput", "endless KV memory", (changes.memory_is_endless,), breadth=1),
    "seats": Cause("The seats of batches limit goodput", "batches of any size", (changes.batch_is_endless,)),
    "network": Cause("The network limits goodput", "a free network", (changes.network_is_free,)),
    "interference": Cause(
        "Prefills concurrent with decodes limit goodput",
        "prefill and decode steps apart, each as fast as alone",
        (changes.phases_are_apart,),
    ),
    "drafting": Cause("Drafting limits goodput", "nothing drafted", (changes.drafts_are_off,)),
    "ranks": Cause("Uneven ranks limit goodput", "ranks with equal shares of the work", (changes.ranks_are_even,)),
    "routing": Cause(
        "Routing limits goodput",
        "prompts sent to the shortest queue, decodes to the least KV",
        (changes.routing_is_by_load,),
    ),
    "order": Cause(
        "The order of queues limits goodput", "queues in the order of deadlines", (changes.order_is_by_deadline,)
    ),
    "ticks": Cause(
        "The policy acts too rarely",
        "a policy that acts ten or a hundred times as often",
        (changes.ticks_are_frequent, partial(changes.ticks_are_frequent, often=changes.VERY_OFTEN)),
    ),
    "starts": Cause(
        "Instances start, or change their roles, too slowly",
        "instances that start and change roles at once",
        (changes.changes_take_no_time,),
    ),
    "failures": Cause("Failures of instances limit goodput", "instances that never fail", (changes.nothing_fails,)),
    "admission": Cause("Admission limits goodput", "every request admitted", (changes.all_are_admitted,)),
}
