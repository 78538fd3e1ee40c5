"""Figures of papers that are closed forms: the simulator has them to the digits that are quoted."""

from __future__ import annotations

import pytest

from framework.metrics.summary import evaluate
from framework.run.compose import compose
from framework.system.gpu import DTYPE_BYTES
from tests.helpers.composing import configured

GIB = 2**30
PAGE = (
    *("policy=distserve", "model=opt_175b", "model.max_context=4096", "gpu=a100", "timing=roofline"),
    *("cluster.prefill=1", "cluster.decode=1", "cluster.tp=8", "cluster.link_latency_s=0"),
    *("trace=synthetic", "trace.requests=1", "trace.input={law:fixed,mean:2048}", "trace.output={law:fixed,mean:8}"),
)


def test_kv_of_opt_175b_crosses_eight_pcie_links_in_less_than_a_decode_step() -> None:
    """2,048 tokens of 4.5 MiB over eight links of 64 GiB/s: 17.6 ms, less than a step (the page on DistServe of Hao AI
    Lab, "Throughput is Not All You Need", March 2024; a step is 30 to 50 ms there, on A100).
    """
    experiment = compose(configured(*PAGE, f"cluster.link_bandwidth_bytes_s={8 * 64 * GIB}"))
    model = experiment.model
    assert model.kv_bytes_per_token == 2 * 96 * 12288 * DTYPE_BYTES["bf16"] == 4.5 * 2**20
    requests = evaluate(experiment.run(), experiment.slo).requests
    assert 1e3 * requests["transfer_s"][0] == pytest.approx(17.578, abs=0.01)
    assert requests["transfer_s"][0] < requests["tpot_s"][0]
