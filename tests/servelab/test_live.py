"""A run that is fed while it runs equals the run of a trace with the same requests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from framework.engine.setup.open_ended import FAR_S
from framework.replay.live import LiveEngine, Names, Sent
from framework.result import Result
from framework.simulate import replay
from framework.workload import Workload, consecutive
from servelab.serve.cluster import Simulated, simulated
from servelab.settings import experiment_of
from tests.helpers import quick

TIMES = ("start_s", "prefill_end_s", "first_token_s", "end_s")
COUNT = 120


def requests(pause_s: float) -> Workload:
    """Requests that share prefixes; half of them come after a pause."""
    random = np.random.default_rng(7)
    arrival_s = np.cumsum(random.exponential(0.05, COUNT)) + pause_s * (np.arange(COUNT) >= COUNT // 2)
    inputs, outputs = random.integers(100, 3000, COUNT), random.integers(1, 200, COUNT)
    names = [np.arange(n // 16, dtype=np.int32) + 1000 * (k % 5) for k, n in enumerate(inputs)]
    spans = consecutive([len(one) for one in names])
    return Workload(arrival_s, inputs, outputs, hash_ids=np.concatenate(names), hash_spans=spans, hash_block_tokens=16)


def fed(cluster: Simulated, workload: Workload) -> LiveEngine:
    """The engine after these requests; it learns of each at its time, when all before that has happened."""
    engine = cluster.engine
    for k, sent_s in enumerate(workload.arrival_s.tolist()):
        while engine.next_s <= sent_s:
            engine.run_to(engine.next_s)
            engine.news()
        cluster.natural_tokens[k] = workload.output_tokens[k]
        lengths = int(workload.input_tokens[k]), int(workload.output_tokens[k])
        assert engine.send(Sent(*lengths, workload.hash_ids_of(k).astype(np.int32)), sent_s) == k
    while engine.next_s < FAR_S:
        engine.run_to(engine.next_s)
        engine.news()
    return engine


@pytest.mark.parametrize("policy", quick.one_in(6, ["ares", "chunked", "dynamo", "vllm_v1", "llumnix", "mooncake"]))
def test_a_run_that_is_fed_equals_that_of_its_trace(policy: str) -> None:
    experiment = experiment_of(
        {"policy": policy, "trace": "azure_conv", "limit": 100, "cluster__instances": 4, "rate": 4}
    )
    workload = requests(pause_s=300.0)
    cluster = simulated(experiment, 1000, "auto")
    live = fed(cluster, workload).memory.requests[:COUNT]
    own, predictor = experiment.renew()
    offline: Result = replay(replace(cluster.setting, workload=workload, cluster=experiment.cluster), own, predictor)
    for name in TIMES:
        np.testing.assert_allclose(live[name], offline.requests[name], rtol=1e-9)
    for name in ("cached_tokens", "prefill_instance", "decode_instance", "emitted"):
        np.testing.assert_array_equal(live[name], offline.requests[name])
    assert offline.requests["cached_tokens"].sum() > 1000


def test_news_tell_each_token_when_it_is_emitted_and_each_end_once() -> None:
    experiment = experiment_of({"policy": "chunked", "trace": "azure_conv", "limit": 10, "cluster__instances": 1})
    engine = simulated(experiment, 100, False).engine
    for k in range(3):
        engine.send(Sent(100, 5 + k, np.zeros(0, np.int32)), 0.01 * k)
    told: dict[int, list[int]] = {}
    while engine.next_s < FAR_S:
        engine.run_to(engine.next_s)
        news = engine.news()
        for r, emitted in zip(news.ids.tolist(), news.emitted.tolist(), strict=True):
            told.setdefault(r, []).append(emitted)
    assert told == {k: list(range(1, 6 + k)) for k in range(3)}


def test_a_cancelled_request_frees_what_it_held() -> None:
    experiment = experiment_of({"policy": "chunked", "trace": "azure_conv", "limit": 10, "cluster__instances": 1})
    engine = simulated(experiment, 100, False).engine
    instance = engine.inspection.instances[0]
    free = int(instance["free_blocks"])
    for _ in range(2):
        engine.send(Sent(5000, 100_000, np.zeros(0, np.int32)), 0.0)
    assert not engine.cancel(0, "left")  # it has not arrived yet
    engine.run_to(5.0)
    assert instance["running"] == 2
    assert engine.cancel(0, "left")
    engine.run_to(5.1)
    assert instance["running"] == 1
    assert engine.cancel(1, "left")
    engine.run_to(5.2)
    assert (instance["running"], instance["free_blocks"]) == (0, free)
    assert [engine.reasons[k] for k in engine.memory.requests["reason"][:2]] == ["left", "left"]


def test_names_of_ended_requests_are_used_again_after_a_while() -> None:
    names = Names(64)
    first = names.take(20, 0.0)
    names.give_back(first, 20, 1.0)
    assert names.take(17, 2.0) != first  # a step under way may still read them
    assert names.take(30, 100.0) == first
