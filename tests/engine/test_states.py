"""Linear attention: a request keeps states of a constant size beside the KV of its tokens, followed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.setup.config import EngineConfig
from framework.errors import InputError
from framework.system.cluster import PoolSpec
from framework.system.model import LatentAttention, LinearAttention, Model, SparseAttention
from framework.timing.table import StepRow
from framework.workload import Workload
from tests.helpers.differences import run_engine
from tests.helpers.parts import load
from tests.helpers.scenarios import MODEL, at_once, prefixes

# Two of four layers: 8 bytes of KV a token remain, and each request has states of 2 x 4 x 4 x 2 = 64 bytes, 8 tokens.
STATEFUL = replace(MODEL, linear=LinearAttention(2, 1, 1, 4, 4, kernel=1))
SECOND = StepRow(base_s=1.0)


def start_s(model: Model, kv_tokens: int, **options: object) -> list[float]:
    spec = PoolSpec("mixed", "mixed", 1, load("gpu", "h100"))
    scenario = at_once([(10, 2), (10, 2)], spec, SECOND, model, kv_tokens=kv_tokens, **options)
    return [float(start) for start in run_engine(scenario)[0].requests["start_s"]]


def test_states_take_blocks_beside_those_of_tokens() -> None:
    assert (STATEFUL.kv_bytes_per_token, STATEFUL.state_bytes, STATEFUL.state_tokens(1)) == (8.0, 64.0, 8.0)
    assert start_s(STATEFUL, 38) == [0.0, 0.0]  # 2 x (11 + 8)
    assert start_s(STATEFUL, 35) == [0.0, 2.0]  # 2 x (10 + 8) do not fit at once
    assert start_s(STATEFUL, 35, block_tokens=5) == [0.0, 2.0]  # 3 blocks and 2 of states each, of 7
    assert start_s(MODEL, 35) == [0.0, 0.0]


def test_a_request_that_would_fit_without_its_states_is_refused() -> None:
    spec = PoolSpec("mixed", "mixed", 1, load("gpu", "h100"))
    refused = [
        run_engine(at_once([(prompt, 1)], spec, SECOND, STATEFUL, kv_tokens=20))[0].requests["start_s"][0]
        for prompt in (12, 13)
    ]
    assert refused[0] == 0.0
    assert refused[1] != refused[1]


def test_gpus_share_states_as_they_share_value_heads() -> None:
    four = replace(STATEFUL, heads=4, kv_heads=1, linear=LinearAttention(2, 4, 4, 4, 4, kernel=1))
    assert [four.state_tokens(tp) for tp in (1, 2, 4)] == [32.0, 16.0, 8.0]  # each GPU has a copy of the KV head
    with pytest.raises(InputError, match="tp = 8 does not divide the 4 value heads of tiny"):
        four.state_tokens(8)


def test_convolutions_keep_their_last_inputs() -> None:
    linear = LinearAttention(2, 1, 2, 4, 3, kernel=4, state_dtype="fp32")
    assert linear.convolved == 2 * 4 + 2 * 3
    assert linear.state_bytes == 2 * (2 * 4 * 3 * 4 + 3 * 14 * 2)


def test_prefixes_are_not_shared_where_states_would_be_needed() -> None:
    shared = Workload(np.zeros(2), np.full(2, 4), np.ones(2, np.int64), **prefixes([[1], [1]], 4))
    assert EngineConfig(prefix_cache="auto").on(shared, MODEL).prefix_cache is True
    assert EngineConfig(prefix_cache="auto").on(shared, STATEFUL).prefix_cache is False
    with pytest.raises(InputError, match=r"engine.prefix_cache=true: tiny has linear attention, whose states"):
        EngineConfig(prefix_cache=True).on(shared, STATEFUL)


LATENT = LatentAttention(4, 4, 2, 2, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparse": SparseAttention(1, 1, 8)}, "model.sparse needs model.latent"),
        ({"latent": LATENT, "linear": STATEFUL.linear}, "model.linear beside model.latent"),
        ({"linear": LinearAttention(4, 1, 1, 1, 1)}, "model.linear.layers = 4 of 4 layers: at least one must"),
        ({"linear": LATENT}, "model.linear must be a LinearAttention"),
    ],
)
def test_models_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(MODEL, **changes)


def test_heads_of_values_share_heads_of_keys_evenly() -> None:
    with pytest.raises(InputError, match=r"model.linear.value_heads = 3 is not a multiple of model.linear.key_heads"):
        LinearAttention(1, 2, 3, 1, 1)


def test_an_indexer_keeps_a_key_in_fp8_and_its_scale() -> None:
    dense = replace(MODEL, latent=LATENT)
    sparse = replace(dense, sparse=SparseAttention(2, 16, 8))
    assert sparse.kv_bytes_per_token - dense.kv_bytes_per_token == 4 * (16 + 4)
    assert sparse.attention_flops_per_pair == 2 * 4 * 2 * 16
