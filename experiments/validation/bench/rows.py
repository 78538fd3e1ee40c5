"""The rows of the benchmark: what is replayed on which cluster, and the rivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hydra.utils import instantiate
from omegaconf import OmegaConf

from experiments.validation.bench.one_run import SHORT, Short
from framework.cli.conf import CONF
from framework.engine.durations.speculation import Speculation
from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig
from framework.policy import Aggregated, Policy
from framework.policy.predictor import Predictor
from framework.policy.view import Cluster, Request
from framework.system.cluster import ClusterSpec, disaggregated, mixed
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.timing.affine import Affine
from framework.timing.measured import Measured
from framework.timing.table import Timing
from framework.workload import Workload
from policies.ares import Ares
from policies.chunked import Chunked
from policies.distserve import DistServe
from policies.mooncake import Mooncake
from policies.nexus import Nexus
from predictors.lognormal import LogNormal
from traces.load import load

TIMING = Affine(
    base_s=6.4e-3,
    per_prefill_token_s=1.7e-5,
    prefill_quadratic_s=4.6e-10,
    per_sequence_s=1.2e-5,
    per_context_token_s=4.3e-8,
)
TOKEN_BUDGET = 2048
LINK_LATENCY_S = 1e-4


class LeastQueuedInPython(Aggregated):
    """Prefill where the fewest prompt tokens wait: a routing hook of plain Python over the cluster's arrays."""

    def route_prefill(self, request: Request, cluster: Cluster) -> int:
        return cluster.prefill.argmin(cluster.prefill.queued_tokens)


@dataclass(frozen=True)
class Row:
    """One line of the table.

    `instances` is (mixed,) or (prefill, decode). `routing` is the policy's choice of a prefill instance, by a name that
    the bare loop also knows. `timing`: of steps; fixed coefficients unless table lookups are measured. `no_peer`,
    `no_bare`: why that rival does not run this row. `target_rps`: requests per CPU-second to reach. A slow row is
    repeated at most `most_repeats` times. `short`: requests that are made instead of read from a trace.
    `compared_with`: the row whose CPU time this one may exceed by at most `most_times`.
    """

    name: str
    title: str
    trace: Mapping[str, Any]
    instances: tuple[int, ...]
    policy: Callable[[], Policy]
    engine: Mapping[str, Any] = field(default_factory=dict)
    predictor: Callable[[], Predictor] | None = None
    routing: str = "round_robin"
    timing: Timing = TIMING
    no_peer: str = ""
    no_bare: str = ""
    target_rps: float | None = None
    most_repeats: int = 99
    short: Short | None = None
    compared_with: str = ""
    most_times: float = 1.0

    def workload(self, limit: int | None = None) -> Workload:
        """The requests of this row; with `limit` at most that many, of a trace that is neither tiled nor whole."""
        if self.short is not None:
            return Workload(**{key: column[:limit] for key, column in self.short.arrays().items()})
        if limit is None:
            return load(**self.trace)
        trace = {key: value for key, value in self.trace.items() if key not in ("tile", "limit", "requests")}
        return load(**trace, limit=limit)

    def engine_config(self) -> EngineConfig:
        """The engine's options of this row."""
        return EngineConfig(token_budget=TOKEN_BUDGET, **self.engine)

    def cluster(self) -> ClusterSpec:
        """H100 instances of one GPU each."""
        gpu = _configured("gpu/h100", Gpu)
        if len(self.instances) == 1:
            return mixed(self.instances[0], gpu, link_latency_s=LINK_LATENCY_S)
        return disaggregated(self.instances[0], self.instances[1], gpu, link_latency_s=LINK_LATENCY_S)


def model() -> Model:
    """Llama-3.1-8B."""
    return _configured("model/llama3_8b", Model)


def _configured(name: str, kind: type[Any]) -> Any:
    part = instantiate(OmegaConf.load(CONF / f"{name}.yaml"), _convert_="all")
    assert isinstance(part, kind)
    return part


def _round_robin() -> Policy:
    return Chunked(routing="round_robin")


def _in_turn() -> Policy:
    return DistServe(routing="round_robin", placement="round_robin")


def _short(name: str, title: str, **more: Any) -> Row:
    """One of SHORT: the growth of a run's time with the number of instances."""
    short = SHORT[name]
    apart = "it is not asked how it grows with the number of instances"
    return Row(
        name,
        title,
        {},
        (short.instances,),
        lambda: Chunked(routing=short.routing),
        engine={"log": "reduced"},
        no_peer=apart,
        no_bare=apart,
        short=short,
        **more,
    )


_AZURE, _MOONCAKE = {"name": "azure_conv"}, {"name": "mooncake"}
_TIERS = {
    "prefix_cache": True,
    "prefix_stores": PrefixStores(
        {"dram": Tier(capacity_tokens=1_000_000), "ssd": Tier(capacity_tokens=4_000_000, bandwidth_bytes_s=6e9)}
    ),
}
_ROWS = (
    Row("azure-1", "Azure conv, 1 instance", _AZURE, (1,), _round_robin),
    Row("azure-4", "Azure conv, 4 instances", _AZURE, (4,), _round_robin),
    Row(
        "azure-4-measured",
        "Azure conv, 4, measured step times",
        _AZURE,
        (4,),
        _round_robin,
        timing=Measured(calibrated=False),
        no_bare="it knows affine step times only",
    ),
    Row("azure-2p2d", "Azure conv, 2P + 2D", _AZURE, (2, 2), _in_turn),
    Row("mooncake-8", "Mooncake, 8 instances", _MOONCAKE, (8,), _round_robin, target_rps=200_000),
    Row(
        "mooncake-8-cache",
        "Mooncake, 8, prefix cache",
        _MOONCAKE,
        (8,),
        _round_robin,
        engine={"prefix_cache": True},
        no_bare="it has no prefix cache",
        target_rps=100_000,
    ),
    Row(
        "mooncake-8-python",
        "Mooncake, 8, Python routing",
        _MOONCAKE,
        (8,),
        LeastQueuedInPython,
        routing="least_queued",
        no_peer="it takes no routing hook",
        target_rps=100_000,
    ),
    Row(
        "azure-4-drafts",
        "Azure conv, 4, 3 drafts a step",
        _AZURE,
        (4,),
        _round_robin,
        engine={"speculation": Speculation(depth=3, acceptance=0.8, draft_cost=0.1)},
        no_peer="its drafts are accepted by rules of its own",
        no_bare="it does not draft",
    ),
    Row(
        "mooncake-4p4d-tiers",
        "Mooncake's policy, 4P + 4D, prefixes in DRAM and SSD",
        _MOONCAKE,
        (4, 4),
        Mooncake,
        engine=_TIERS,
        no_peer="it copies no prefixes between workers",
        no_bare="it has no prefix cache",
        most_repeats=3,
    ),
    Row(
        "mooncake-4p4d-tiers-fixed",
        "DistServe's policy on the same",
        _MOONCAKE,
        (4, 4),
        _in_turn,
        engine=_TIERS,
        no_peer="it copies no prefixes between workers",
        no_bare="it has no prefix cache",
        most_repeats=3,
    ),
    Row(
        "mooncake-8-nexus",
        "Nexus on Mooncake, 8 instances",
        _MOONCAKE,
        (8,),
        Nexus,
        engine={"sharing": Sharing()},
        no_peer="it does not divide a GPU",
        no_bare="it does not divide a GPU",
        most_repeats=3,
    ),
    Row(
        "mooncake-8-static",
        "Shares of Nexus, fixed, on Mooncake, 8 instances",
        _MOONCAKE,
        (8,),
        lambda: Nexus(split="static", queue="fcfs"),
        engine={"sharing": Sharing()},
        no_peer="it does not divide a GPU",
        no_bare="it does not divide a GPU",
        most_repeats=3,
    ),
    Row(
        "million-64",
        "Mooncake tiled, 8 × rate, 64 instances",
        {**_MOONCAKE, "tile": 84, "limit": 1_000_000, "rate_scale": 8.0},
        (64,),
        _round_robin,
        engine={"log": "reduced"},
        no_peer="it keeps about 50 KB a request, which makes 50 GB here",
        target_rps=1_000_000 / 15,
        most_repeats=3,
    ),
    Row(
        "ares-8p24d",
        "ARES, reasoning at 60/s, 8P + 24D",
        {"name": "reasoning", "requests": 100_000, "rate": 60.0},
        (8, 24),
        partial(Ares, amortised_by="decoding"),
        predictor=LogNormal,
        no_peer="it does not migrate requests that decode",
        no_bare="it does not migrate requests that decode",
        most_repeats=3,
    ),
    Row(
        "static-8p24d",
        "DistServe's policy, reasoning at 60/s, 8P + 24D",
        {"name": "reasoning", "requests": 100_000, "rate": 60.0},
        (8, 24),
        DistServe,
        no_peer="it is there to compare the row above with",
        no_bare="it is there to compare the row above with",
        most_repeats=3,
    ),
    _short("round-robin-8", "Short requests, round robin, 8"),
    _short(
        "round-robin-4096",
        "Short requests, round robin, 4,096",
        most_repeats=3,
        compared_with="round-robin-8",
        most_times=3.0,
    ),
    _short("least-loaded-8", "Short requests, least loaded, 8"),
    _short(
        "least-loaded-4096",
        "Short requests, least loaded, 4,096",
        most_repeats=3,
        compared_with="least-loaded-8",
        most_times=6.0,
    ),
)
ROWS: Mapping[str, Row] = {row.name: row for row in _ROWS}
