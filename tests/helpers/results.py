"""Results made by hand, for tests of what is reported of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from framework.engine.memory.records import STEP_LOG, TOKEN_LOG
from framework.engine.setup.config import EngineConfig
from framework.load import Window
from framework.result import OUTCOME, Gaps, Result
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.workload import Workload

PENDING, FINISHED, REJECTED, FAILED = range(4)
Fields = dict[str, tuple[str, Any]]
_DEFAULTS = {"prefill_instance": -1, "decode_instance": -1, "arrival_s": 0.0}
REQUEST_FIELDS: Fields = {
    name: (OUTCOME[name].str, _DEFAULTS.get(name, np.nan if OUTCOME[name].kind == "f" else 0))
    for name in OUTCOME.names or ()
}
INSTANCE_FIELDS: Fields = {
    "pool": ("i4", 0),
    "total_blocks": ("i8", 1000),
    "busy_s": ("f8", 0.0),
    "bubble_s": ("f8", 0.0),
    "off_s": ("f8", 0.0),
    "starts": ("i8", 0),
    "stops": ("i8", 0),
    "reversals": ("i8", 0),
    "expert_reads": ("f8", 0.0),
    "extrapolated_s": ("f8", 0.0),
    "extrapolation": ("f8", 0.0),
    "steps": ("i8", 0),
    "weight_passes": ("i8", 0),
    "decode_steps": ("i8", 0),
    "prefill_tokens": ("i8", 0),
    "decode_tokens": ("i8", 0),
    "drafted_tokens": ("i8", 0),
    "accepted_tokens": ("i8", 0),
    "context_tokens": ("f8", 0.0),
    "decode_pairs": ("f8", 0.0),
    "prefill_square": ("f8", 0.0),
    "kv_block_s": ("f8", 0.0),
    "kv_token_s": ("f8", 0.0),
    "batch_s": ("f8", 0.0),
    "transferred_bytes": ("f8", 0.0),
}
GPU = Gpu(
    name="H100",
    peak_flops={"bf16": 989e12},
    memory_bytes=80e9,
    bandwidth_bytes_s=3.35e12,
    link_bytes_s=450e9,
    pcie_bytes_s=64e9,
    nic_bytes_s=50e9,
    tdp_w=700.0,
    idle_w=100.0,
    usd_per_hour=3.0,
)
MODEL = Model(
    name="8B",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab=128256,
    max_context=131072,
)


@dataclass(frozen=True)
class HandMade(Result):
    """A Result that nothing was simulated for."""

    gaps: Gaps | None = None


def records(fields: Fields, rows: list[dict[str, Any]]) -> np.ndarray:
    """A structured array of `rows`; what a row leaves out has the field's default."""
    made = np.zeros(len(rows), [(name, kind) for name, (kind, _) in fields.items()])
    for name, (_, default) in fields.items():
        made[name] = [row.get(name, default) for row in rows]
    return made


def small_result(**changes: Any) -> HandMade:
    """Five requests on one prefill instance and one decode instance of two GPUs, from 0.5 s to 3 s.

    0: finished, 3 tokens, gaps 0.25 and 0.25 s; 1: finished, one token; 2: rejected; 3: failed after its first token;
    4: finished, 4 tokens, gaps of 0.5 s. Decode steps end at 1.75 s (request 0), 2.0 (0 and 4), 2.5 (4) and 3.0 (4).
    """
    early = {"state": FINISHED, "arrival_s": 0.5, "start_s": 1.0, "prefill_end_s": 1.5, "first_token_s": 1.5}
    early |= {"decode_instance": 1, "prefill_instance": 0}
    late = {"start_s": 2.0, "prefill_end_s": 2.5, "first_token_s": 2.5, "end_s": 2.5, "prefill_instance": 0}
    once = {"start_s": 1.5, "prefill_end_s": 2.0, "first_token_s": 2.0, "end_s": 2.0, "prefill_instance": 0}
    requests = [
        early
        | {"end_s": 2.0, "emitted": 3, "transfer_end_s": 1.625, "cached_tokens": 64, "migrations": 1}
        | {"predicted_tokens": 2.5},
        once | {"state": FINISHED, "arrival_s": 1.0, "emitted": 1},
        {"state": REJECTED, "reason": 2, "arrival_s": 1.0, "end_s": 1.0},
        late | {"state": FAILED, "reason": 2, "arrival_s": 2.0, "emitted": 1},
        early | {"end_s": 3.0, "emitted": 4, "transfer_end_s": 1.75, "preemptions": 2},
    ]
    instances = [
        {"busy_s": 1.5, "steps": 3, "prefill_tokens": 400, "prefill_square": 60000.0, "kv_block_s": 500.0},
        {"pool": 1, "busy_s": 1.25, "steps": 4, "decode_steps": 4, "decode_tokens": 5, "context_tokens": 600.0}
        | {"decode_pairs": 600.0, "kv_block_s": 1000.0, "batch_s": 1.5},
    ]
    leaps = [  # start_s, first_s, increment_s, step0, context, instance, steps, batch, prefill_tokens, depth, stream
        (1.0, 0.5, 0.0, 0, 0, 0, 1, 0, 300, 0, 0),
        (1.5, 0.5, 0.0, 0, 0, 0, 1, 0, 50, 0, 0),
        (1.625, 0.125, 0.0, 0, 101, 1, 1, 1, 0, 0, 0),
        (1.75, 0.25, 0.0, 1, 303, 1, 1, 2, 0, 0, 0),
        (2.0, 0.5, 0.0, 0, 0, 0, 1, 0, 50, 0, 0),
        (2.0, 0.5, 0.0, 2, 202, 1, 2, 1, 0, 0, 0),
    ]
    memberships = [(0, 2, 1.5, 0, 1, 0), (1, 4, 1.5, 4, 1, 0)]
    workload = Workload(
        arrival_s=np.array([0.5, 0.5, 1.0, 1.0, 2.0]),
        input_tokens=np.array([100, 50, 5000, 50, 200]),
        output_tokens=np.array([3, 1, 10, 5, 4]),
        name="mooncake",
        source="twin",
        sha256="ab" * 32,
    )
    pools = (PoolSpec("prefill", "prefill", 1, GPU), PoolSpec("decode", "decode", 1, GPU, Parallelism(2)))
    made: dict[str, Any] = {
        "workload": workload,
        "cluster": ClusterSpec(pools, LinkSpec(50e9)),
        "model": MODEL,
        "engine": EngineConfig(),
        "policy": "distserve",
        "predictor": "none",
        "timing_source": "affine",
        "load": "open",
        "seed": 0,
        "window": Window(0.5, 2.0, "first to last arrival"),
        "reasons": ("", "context", "kv"),
        "events": 20,
        "steps": 7,
        "requests": records(REQUEST_FIELDS, requests),
        "instances": records(INSTANCE_FIELDS, instances),
        "step_log": np.array(leaps, STEP_LOG),
        "token_log": np.array(memberships, TOKEN_LOG),
    }
    return HandMade(**(made | changes))


def reduced_result(gaps: Gaps) -> HandMade:
    """The same run with its step log reduced as it was made."""
    none: dict[str, Any] = {"step_log": np.zeros(0, STEP_LOG), "token_log": np.zeros(0, TOKEN_LOG)}
    return small_result(gaps=gaps, engine=EngineConfig(log="reduced"), **none)
