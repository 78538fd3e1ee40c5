"""Clusters: pools, links, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec, disaggregated, mixed
from framework.system.gpu import Gpu
from framework.system.node_pools import node_pools
from tests.helpers.composing import configured as composed

GPU = Gpu("g", {"bf16": 1e12}, 80e9, 2e12, 3e11, 3e10, 5e10, 400.0, 50.0, 2.0)
SLOW_NIC = Gpu("s", {"bf16": 1e12}, 80e9, 2e12, 3e11, 3e10, 1e10, 400.0, 50.0, 2.0)


def configuration(*overrides: str) -> DictConfig:
    """The shipped configuration without a policy, which would choose a cluster of its own."""
    return composed("~policy", "~predictor", "~trace", *overrides)


def configured(*overrides: str) -> Any:
    return instantiate(configuration(*overrides).cluster, _convert_="all")


def test_mixed_has_one_pool_and_the_network_of_its_gpus() -> None:
    cluster = mixed(3, GPU, tp=2)
    assert [(pool.role, pool.instances, pool.parallelism.tp) for pool in cluster.pools] == [("mixed", 3, 2)]
    assert (cluster.instances, cluster.gpus) == (3, 6)
    assert cluster.link_bytes_s.tolist() == [1e11] * 3
    assert cluster.link == LinkSpec(1e11, 0.0)
    assert cluster.pools[0].host_bytes_s == 6e10


def test_disaggregated_numbers_instances_pool_after_pool() -> None:
    cluster = disaggregated(2, 3, GPU, decode_gpu=SLOW_NIC, tp=1, decode_tp=2, link_latency_s=0.5)
    assert [(pool.role, pool.gpu.name, pool.parallelism.tp) for pool in cluster.pools] == [
        ("prefill", "g", 1),
        ("decode", "s", 2),
    ]
    assert cluster.pool_of_instance.tolist() == [0, 0, 1, 1, 1]
    assert cluster.link_bytes_s.tolist() == [5e10, 5e10, 2e10, 2e10, 2e10]
    assert cluster.link == LinkSpec(2e10, 0.5)


def test_given_bandwidth_holds_for_every_instance() -> None:
    cluster = disaggregated(1, 2, GPU, decode_tp=4, link_bandwidth_bytes_s=7e9)
    assert cluster.link_bytes_s.tolist() == [7e9] * 3


def test_node_pools_are_configured_by_name() -> None:
    """One pool at a price and with a time of its own, one of another GPU."""
    cluster = configured(
        *("cluster=node_pools", "cluster.pools.reserved.usd_per_hour=1.5", "cluster.pools.reserved.provisioning_s=0"),
        "+gpu@cluster.pools.on_demand.gpu=a100",
    )
    found = [(pool.name, pool.gpu.name, pool.gpu.usd_per_hour, pool.provisioning_s) for pool in cluster.pools]
    assert found == [("reserved", "h100", 1.5, 0), ("on_demand", "a100", 1.79, None)]
    assert [(pool.instances, pool.begins_on) for pool in cluster.pools] == [(2, 2), (4, 0)]
    assert cluster.link_bytes_s.tolist() == [
        pool.gpu.nic_bytes_s for pool in cluster.pools for _ in range(pool.instances)
    ]


def test_a_node_pool_has_its_own_parallelism_or_is_dropped() -> None:
    spec = node_pools({"small": {"instances": 2}, "gone": None, "large": {"instances": 1, "tp": 4}}, GPU, tp=2)
    assert [(pool.name, pool.parallelism.tp) for pool in spec.pools] == [("small", 2), ("large", 4)]


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({"spot": None}, "cluster.pools must map names to pools, got"),
        (3, "cluster.pools must map names to pools, got 3"),
        ({}, "cluster.pools must map names to pools, got {}"),
        ({"spot": {"usd_per_hour": 1.2}}, r"cluster\.pools\.spot: a pool is written \{instances: 2"),
        (
            {"spot": {"instances": 2, "usd": 1.2}},
            r"cluster\.pools\.spot: .* may have role, on_at_start, provisioning_s, gpu, tp;",
        ),
        ({"spot": {"instances": 2, "usd_per_hour": -1}}, r"cluster\.pools\.spot\.usd_per_hour must be a finite number"),
        (
            {"spot": {"instances": 1, "role": "off"}},
            r"cluster\.pools\.spot\.role must be one of mixed, prefill, decode",
        ),
    ],
)
def test_node_pools_that_are_none_are_refused(pools: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        node_pools(pools, GPU)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "four", None, float("nan")])
def test_instances_must_be_counts(value: Any) -> None:
    with pytest.raises(InputError) as caught:
        mixed(value, GPU)
    assert str(caught.value) == f"cluster.instances must be a whole number of at least 1, got {value!r}"
    if value is not None:
        with pytest.raises(InputError, match=r"^cluster.decode must be"):
            disaggregated(1, value, GPU)


@pytest.mark.parametrize(
    ("given", "counts", "is_auto"),
    [
        ({}, (3, 2), True),
        ({"instances": 2}, (1, 1), True),
        ({"prefill": 3, "decode": 5}, (3, 5), False),
        ({"prefill": 3, "decode": 5, "instances": 8}, (3, 5), False),
        ({"prefill": 4}, (4, 1), False),
        ({"prefill": 4, "instances": 9}, (4, 5), False),
        ({"decode": 4}, (1, 4), False),
        ({"decode": 4, "instances": 9}, (5, 4), False),
    ],
)
def test_what_is_not_given_is_what_the_rest_leaves(
    given: dict[str, int], counts: tuple[int, int], is_auto: bool
) -> None:
    cluster = configured("cluster=disaggregated", *(f"cluster.{name}={count}" for name, count in given.items()))
    assert tuple(pool.instances for pool in cluster.pools) == counts
    assert cluster.auto == is_auto
    assert cluster.split is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"prefill": 3, "decode": 2, "instances": 8},
            "cluster.prefill=3 and cluster.decode=2 are 5 instances, not cluster.instances=8; leave one out",
        ),
        ({"instances": 1}, "cluster.instances=1: one instance cannot prefill for another; set 2 or more"),
        ({"prefill": 5}, "cluster.prefill=5 leaves none of 5 instances; raise cluster.instances"),
        ({"decode": 8, "instances": 8}, "cluster.decode=8 leaves none of 8 instances; raise cluster.instances"),
        ({"prefill": "most"}, "cluster.prefill must be auto or a whole number of at least 1, got 'most'"),
        ({"prefill": 0}, "cluster.prefill must be a whole number of at least 1, got 0"),
    ],
)
def test_numbers_of_instances_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        disaggregated(**{"prefill": "auto", "decode": None} | given, gpu=GPU)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 0}, "cluster.tp must be a whole number of at least 1, got 0"),
        ({"link_bandwidth_bytes_s": 0}, "cluster.link_bandwidth_bytes_s must be a finite number above 0, got 0"),
        ({"link_latency_s": -1.0}, "cluster.link_latency_s must be a finite number of at least 0, got -1.0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        mixed(1, GPU, **options)
    assert str(caught.value) == message


def test_cluster_must_be_able_to_serve() -> None:
    link = LinkSpec(1e9)
    with pytest.raises(InputError, match="no pool can decode"):
        ClusterSpec((PoolSpec("p", "prefill", 1, GPU),), link)
    with pytest.raises(InputError, match="no pool can prefill"):
        ClusterSpec((PoolSpec("d", "decode", 1, GPU),), link)
    with pytest.raises(InputError, match="pool names must differ, got m, m"):
        ClusterSpec((PoolSpec("m", "mixed", 1, GPU),) * 2, link)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"role": "both"}, "pool p: role must be one of mixed, prefill, decode, off; got 'both'"),
        ({"token_budget": 0}, "pool p: token_budget must be a whole number of at least 1, got 0"),
        ({"max_batch": -2}, "pool p: max_batch must be a whole number of at least 1, got -2"),
        (
            {"batching": "x"},
            (
                "pool p: batching must be one of decode_first, prefill_first, mixed, static, unified, concurrent,"
                " chunks_first; got 'x'"
            ),
        ),
        ({"link_bytes_s": 0.0}, "pool p: link_bytes_s must be a finite number above 0, got 0.0"),
    ],
)
def test_impossible_pools_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        PoolSpec(**{"name": "p", "role": "mixed", "instances": 1, "gpu": GPU, **options})
    assert str(caught.value) == message


def test_configuration_builds_both_clusters() -> None:
    cluster = configured("cluster=mixed", "cluster.instances=8", "gpu=a100", "cluster.tp=2")
    assert (cluster.instances, cluster.gpus, cluster.pools[0].gpu.name) == (8, 16, "a100")
    cluster = configured("cluster=disaggregated", "cluster.prefill=3", "cluster.decode=5", "cluster.decode_tp=2")
    assert [(pool.instances, pool.parallelism.tp) for pool in cluster.pools] == [(3, 1), (5, 2)]


def test_configuration_mixes_gpus() -> None:
    cluster = configured("cluster=disaggregated", "gpu=h100", "+gpu@cluster.decode_gpu=a100")
    assert [pool.gpu.name for pool in cluster.pools] == ["h100", "a100"]


def test_bad_configuration_is_an_input_error() -> None:
    with pytest.raises(InstantiationException) as caught:
        configured("cluster=mixed", "cluster.instances=0")
    assert isinstance(caught.value.__cause__, InputError)


def test_configured_engine_has_the_defaults() -> None:
    config = configuration()
    of_the_server = replace(EngineConfig(), asynchronous=True, first_token="recomputed", transfers="pulled")  # vllm_v1
    assert instantiate(config.engine) == replace(of_the_server, prefix_cache="auto")
    assert set(config.engine) - {"_target_"} == set(EngineConfig.__dataclass_fields__) - {"gateway"}  # conf/gateway


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_budget": 0}, "engine.token_budget must be a whole number of at least 1, got 0"),
        ({"max_batch": 1.5}, "engine.max_batch must be a whole number of at least 1, got 1.5"),
        ({"block_tokens": "x"}, "engine.block_tokens must be a whole number of at least 1, got 'x'"),
        ({"kv_tokens": 0}, "engine.kv_tokens must be a whole number of at least 1, got 0"),
        ({"preemption": "drop"}, "engine.preemption must be one of recompute, swap; got 'drop'"),
        ({"prefix_cache": "yes"}, "engine.prefix_cache must be true, false or auto, got 'yes'"),
        ({"watermark": 1.0}, "engine.watermark must be below 1, got 1.0"),
        ({"watermark": -0.1}, "engine.watermark must be a finite number of at least 0, got -0.1"),
        ({"kv_fraction": 0}, "engine.kv_fraction must be above 0 and at most 1, got 0"),
        (
            {"batching": "x"},
            (
                "engine.batching must be one of decode_first, prefill_first, mixed, static, unified, concurrent,"
                " chunks_first; got 'x'"
            ),
        ),
        ({"first_token": "x"}, "engine.first_token must be one of prefill, join, decode, recomputed; got 'x'"),
        ({"log": "x"}, "engine.log must be one of full, reduced; got 'x'"),
    ],
)
def test_impossible_engine_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        EngineConfig(**options)
    assert str(caught.value) == message
