"""What the load of a study asks for, as the start of its search (`start` of conf/space/NAME.yaml)."""

from __future__ import annotations

from dataclasses import replace

from experiments.tune.base import Configuration
from experiments.tune.space import PREFILL_GPUS, Space
from framework.run.compose import compose


def with_demand(space: Space, base: Configuration) -> Space:
    """`space` with the numbers that its starts need of the load.

    `load_prefill_gpus`: those of `gpus` GPUs that prefill where `cluster.prefill=auto` divides them into instances of
    one. Raises what `compose` raises.
    """
    if not any(PREFILL_GPUS in value.names for start in space.starts for value in start.values()):
        return space
    pools = ("cluster.prefill=auto", "cluster.decode=null", f"cluster.instances={space.fixed['gpus']}")
    cluster = compose(base.with_overrides((*pools, "cluster.prefill_tp=1", "cluster.decode_tp=1")).config).cluster
    prefill = next(pool.instances for pool in cluster.pools if pool.name == "prefill")
    return replace(space, asked={PREFILL_GPUS: prefill})
