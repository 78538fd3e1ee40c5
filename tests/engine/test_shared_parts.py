"""What the compiled engine, the reference engine and the drawn scenarios have in common, apart from all of them.

Step times, memory, slowdowns, formats of KV and draws: by hand, and against tests/helpers/definitions.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from framework.engine.kv.kv_compression import KvFormat
from framework.engine.kv.prefix_tiers import PrefixStores, Tier
from framework.engine.parallel.sm_sharing import Sharing
from framework.engine.setup.config import EngineConfig
from framework.policy import Disaggregated
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.gpu import Gpu
from framework.system.model import Experts, LatentAttention, Model, kv_capacity_tokens
from framework.system.parallelism import Parallelism
from framework.timing import table
from framework.timing.table import Curve, StepRow, Surface, stack
from framework.workload import Workload, consecutive
from tests.helpers import definitions
from tests.helpers.scenarios import RowTiming

DRAWS = 300
ROW = StepRow(
    base_s=0.5,
    per_prefill_token_s=0.25,
    prefill_step_s=8.0,
    per_sequence_s=0.125,
    per_sampled_s=0.0625,
    linear=Curve((1.0, 3.0, 11.0), (1.0, 2.0, 10.0)),  # slopes 1/2, 1
    logits=Curve((0.0, 4.0), (2.0, 3.0)),  # slope 1/4
    attention=Curve((1.0, 5.0, 9.0), (3.0, 3.0, 11.0)),  # slopes 0, 2
    prefill_quadratic_s=0.125,
    masked_s=0.5,
    waste=Curve((1.0, 5.0, 9.0, 17.0), (4.0, 2.0, 1.0, 1.0)),  # slopes -1/2, -1/4, 0
    per_context_token_s=2.0**-4,
    skew_s=2.0**-5,
    decode=Surface((1.0, 3.0, 5.0), (0.0, 32.0, 64.0), ((0.0, 1.0, 3.0), (2.0, 4.0, 6.0), (2.0, 6.0, 14.0))),
    tokens_limit=8.0,
    sampled_limit=4.0,
    length_limit=16.0,
    decode_limits=Curve((1.0, 5.0), (64.0, 128.0)),  # slope 16
)
TABLES = stack([StepRow(base_s=3.0), ROW])
# 3 layers, the first with a plain MLP of 3 * 4 * 8 = 96 weights, two with 4 experts of 3 * 4 * 2 = 24. Outside the
# experts 3 * (4 * 2 * (2 * 4 + 2 * 2) + 2 * 4) + 96 + 2 * (3 * 4 * 2 + 4 * 4) + 4 = 492; embeddings 2 * 10 * 4 = 80.
MODEL = Model("m", 3, 4, 4, 2, 2, 8, 10, 100, experts=Experts(4, 2, 2, 2, dense_layers=1, dtype="fp8"))
LATENT = LatentAttention(query_rank=3, kv_rank=6, nope_dim=2, rope_dim=2, value_dim=3)
GPU = Gpu("gpu", {"bf16": 1e12}, 4000.0, 1e12, 1e9, 16.0, 1e9, 100.0, 1.0, 1.0)


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "seconds"),
    [
        ((0, 0, 0), 0.5),  # linear and logits of nothing are nothing
        ((1, 0, 0), 0.5 + 0.25 + 8 + 1),
        ((0, 1, 1), 0.5 + 0.125 + 0.0625 + 1 + 2.25),
        ((0, 3, 3), 0.5 + 0.375 + 0.1875 + 2 + 2.75),  # at a knot of linear
        ((4, 3, 4), 0.5 + 1 + 8 + 0.375 + 0.25 + (2 + 4) + 3),  # between two, and at the last one of logits
        ((10, 1, 6), 0.5 + 2.5 + 8 + 0.125 + 0.375 + 10 + 3.5),
        ((20, 1, 0), 0.5 + 5 + 8 + 0.125 + (10 + 10)),  # beyond
    ],
)
def test_base(step: tuple[int, int, int], seconds: float) -> None:
    assert table.base_s(TABLES, 1, *step) == seconds
    assert table.base_s(TABLES, 0, *step) == 3.0


@pytest.mark.parametrize(
    ("prefix", "chunk", "seconds"),
    [
        (0, 1, (1 / 8 + 3) * 1 + 0.5),
        (0, 5, (25 / 8 + 3) * 1 + 25 / 2),  # a whole prompt wastes nothing
        (1, 1, (3 / 8 + 3 * 3 / 4) * 4 / 3.5 + 0.5),
        (4, 4, (48 / 8 + 9 * 48 / 64) * 2.5 / 1.25 + 16 / 2),  # attention(8) = 3 + 2 * 3
        (8, 8, (192 / 8 + 25 * 192 / 256) * 1.25 / 1 + 64 / 2),  # attention(16) = 11 + 2 * 7, waste is 1 from 9 on
        (30, 2, (124 / 8 + 57 * 124 / 1024) * 3.5 / 1 + 4 / 2),  # attention(32) = 11 + 2 * 23
    ],
)
def test_chunk(prefix: int, chunk: int, seconds: float) -> None:
    assert table.chunk_s(TABLES, 1, prefix, chunk) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("decodes", "context", "expected"),
    [
        (1, 0, (0.0, 1 / 16 + 1 / 32, 32.0)),
        (1, 1, (1 / 16 + 1 / 32, 1 / 16 + 1 / 32, 32.0)),
        (1, 32, (2 + 1, 1 / 16 + 2 / 32, 64.0)),
        (2, 16, (1 + (0.5 + 3) / 2, 1 / 16 + (1 / 32 + 2 / 32) / 2, 32.0)),
        (4, 48, (3 + (5 + 10) / 2, 1 / 16 + (2 / 32 + 8 / 32) / 2, 64.0)),
        (3, 64, (4 + 6, 1 / 16 + 2 / 32, math.inf)),
        (5, 96, (6 + 14 + 8, 1 / 16 + 8 / 32, math.inf)),
        (7, 16, (1 + 4 + (4 - 3), 1 / 16 + 4 / 32 + 2 / 32, 32.0)),  # from batch 5 as far on as from 3 to 5
        (7, 96, (6 + 22 + (22 - 8), 1 / 16 + 8 / 32 + 6 / 32, math.inf)),
    ],
)
def test_decode(decodes: int, context: int, expected: tuple[float, float, float]) -> None:
    assert table.decode_s(TABLES, 1, decodes, context) == expected


def test_uneven() -> None:
    assert table.uneven_s(TABLES, 1, 1, 10, 10) == 0.0
    assert table.uneven_s(TABLES, 1, 3, 30, 16) == (3 * 16 - 30) / 32


@pytest.mark.parametrize(
    ("tokens", "sampled", "decodes", "context", "length", "ratio"),
    [
        (0, 0, 0, 0, 0, 0.0),
        (8, 4, 1, 64, 16, 1.0),  # each at its limit
        (12, 0, 0, 0, 0, 12 / 8),
        (0, 10, 0, 0, 0, 10 / 4),
        (0, 0, 0, 0, 40, 40 / 16),
        (1, 1, 1, 160, 0, 160 / 64),
        (3, 3, 3, 192, 0, 192 / (64 + 2 * 16)),
        (0, 0, 9, 96, 0, 96 / (128 + 4 * 16)),
    ],
)
def test_extrapolation(tokens: int, sampled: int, decodes: int, context: int, length: int, ratio: float) -> None:
    assert table.extrapolation(TABLES, 1, tokens, sampled, decodes, context, length) == ratio
    assert table.extrapolation(TABLES, 0, tokens, sampled, decodes, context, length) == 0.0


def test_formats_change_a_row() -> None:
    kv = KvFormat(read_factor=0.5, prefill_factor=2.0, pack_bytes_s=96.0)
    tables = stack([kv.step_row(ROW, MODEL, Parallelism(tp=2, dp=2))])  # packs 48 / 2 bytes for every other token
    assert table.base_s(tables, 0, 4, 3, 4) == 19.125 + 4 * 24 / 96 / 2
    assert table.chunk_s(tables, 0, 8, 8) == 2 * ((192 / 8 + 25 * 192 / 256) * 1.25 + 64 / 2)
    assert table.decode_s(tables, 0, 2, 32) == (1 + (0.5 + 3) / 2, (1 / 16 + 3 / 64) / 2, 64.0)  # as 16 tokens before
    assert table.uneven_s(tables, 0, 3, 30, 16) == 18 / 32 / 2
    assert table.extrapolation(tables, 0, 1, 1, 1, 320, 0) == 160 / 64


@pytest.mark.parametrize(
    ("changes", "weights", "token"),
    [
        ({}, 492 * 2 + 192 + 80 * 2, 3 * 8 * 2),
        ({"tied_embeddings": True, "kv_dtype": "nvfp4"}, 492 * 2 + 192 + 40 * 2, 3 * 8 * 0.5625),
        ({"dtype": "fp8"}, 492 + 192 + 80 * 2, 3 * 8 * 2),  # embeddings stay in bf16
        ({"dtype": "fp32", "kv_dtype": "fp8"}, 572 * 4 + 192, 3 * 8),
        ({"window": 9, "windowed_layers": 1}, 492 * 2 + 192 + 80 * 2, 2 * 8 * 2),
        # 4 * 3 + 3 * 4 * 4 + 4 * 8 + 6 * 4 * 5 + 4 * 3 * 4 = 260 weights of attention instead of 96
        ({"latent": LATENT}, (492 + 3 * 164) * 2 + 192 + 80 * 2, 3 * 8 * 2),
        ({"experts": None, "mlp_matrices": 2}, (3 * (104 + 2 * 4 * 8) + 4) * 2 + 80 * 2, 3 * 8 * 2),
    ],
)
def test_bytes_of_a_model(changes: dict[str, Any], weights: float, token: float) -> None:
    model = replace(MODEL, **changes)
    assert (model.weight_bytes, model.kv_bytes_per_token) == (weights, token)


@pytest.mark.parametrize(
    ("split", "share", "tokens"),
    [
        (Parallelism(), 1.0, 13),  # (2000 - 1336) / 48 = 13.8
        (Parallelism(), 0.25, 55),  # 664 / 12 = 55.3
        (Parallelism(tp=2), 1.0, 55),  # (2000 - 668) / 24 = 55.5
        (Parallelism(tp=4), 1.0, 69),  # each head on two GPUs: (2000 - 334) / 24 = 69.4
        (Parallelism(pp=3), 1.0, 97),  # (2000 - 445.3) / 16 = 97.2
        (Parallelism(tp=2, dp=2), 1.0, 2 * 57),  # (2000 - 1144 / 2 - 192 / 4) / 24 = 57.5
        (Parallelism(tp=2, dp=2, ep=4), 1.0, 2 * 57),
        (Parallelism(tp=2, dp=2, pp=2), 1.0, 2 * 140),  # (2000 - 1144 / 4 - 192 / 8) / 12 = 140.8
    ],
)
def test_capacity(split: Parallelism, share: float, tokens: int) -> None:
    assert kv_capacity_tokens(MODEL, GPU, split, 0.5, share) == tokens


def test_latent_keys_and_values_are_on_every_gpu() -> None:
    latent = replace(MODEL, latent=LATENT)
    assert [latent.kv_share(tp) for tp in (1, 2, 4)] == [1.0, 1.0, 1.0]
    assert [MODEL.kv_share(tp) for tp in (1, 2, 4)] == [1.0, 0.5, 0.5]
    assert kv_capacity_tokens(latent, GPU, Parallelism(2), 0.5) == 17  # (2000 - 2320 / 2) / 48 = 17.5


def test_slowdowns() -> None:
    both = Sharing(50, {4: 3.0, 36: 2.0, 100: 1.0}, {50: 1.5, 100: 1.0}).slowdowns()
    assert both.shape == (2, 101)
    assert both[0, [0, 1, 3, 4, 20, 36, 68, 100]].tolist() == [math.inf, 12.0, 4.0, 3.0, 2.5, 2.0, 1.5, 1.0]
    assert both[1, [0, 1, 25, 50, 75, 100]].tolist() == [math.inf, 75.0, 3.0, 1.5, 1.25, 1.0]


@pytest.mark.parametrize(
    ("tier", "blocks"),
    [
        (Tier(), 40),
        (Tier(capacity_tokens=0), 0),
        (Tier(capacity_tokens=63), 15),
        (Tier(capacity_tokens=64), 16),
        (Tier(capacity_bytes=1000.0), 15),  # 62.5 tokens
        (Tier(capacity_bytes=1024.0), 16),
        (Tier(capacity_bytes=1e9), 40),
    ],
)
def test_blocks_of_a_store(tier: Tier, blocks: int) -> None:
    assert tier.blocks(4, 16.0, 40) == blocks


def test_hash_of_draws() -> None:
    # 1 * 0x7FEB352D = 0x7FEB352D; ^ 0xFFD6 = 0x7FEBCAFB; * 0x846CA68B = ...6889F849 (mod 2^32); ^ 0x6889 = 0x688990C0
    known = {0: 0, 1: 0x688990C0, 2: 0xD1132181, 2**32 - 1: 0x6768824A}
    assert {x: definitions.lowbias32(x) for x in known} == known


@pytest.mark.parametrize("implementation", ["compiled", "reference"])
class TestRuns:
    """A token has 48 bytes of KV as the model has it, half of them in memory and a quarter on a link."""

    def play(self, rows: Sequence[tuple[float, int, int]], names: Sequence[int], *roles: str, **changes: Any) -> Result:
        arrival_s, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
        columns: dict[str, Any] = {
            "hash_ids": np.array(names),
            "hash_spans": consecutive([2] * len(rows)),
            "hash_block_tokens": 4,
        }
        workload = Workload(arrival_s.astype(float), prompts, outputs, **(columns if names else {}))
        pools = tuple(PoolSpec(role, role, 1, GPU) for role in roles)  # type: ignore[arg-type]
        kv = KvFormat(memory_share=0.5, copy_share=0.25)
        engine = EngineConfig(**{"watermark": 0.0, "kv_fraction": 0.5, "kv_compression": kv, **changes})
        timing = RowTiming({"gpu": StepRow(base_s=1.0)})
        policy = Disaggregated() if "decode" in roles else None
        return simulate(workload, ClusterSpec(pools, LinkSpec(8.0, 0.5)), MODEL, timing, engine, policy)

    def test_bytes_of_a_copy_and_share_of_experts(self, implementation: str) -> None:
        result = self.play([(0, 5, 2)], [], "prefill", "decode", block_tokens=4, implementation=implementation)
        assert result.instances["transferred_bytes"].tolist() == [5 * 12, 0]
        assert result.requests["transfer_end_s"].tolist() == [1 + 60 / 8 + 0.5]
        assert result.instances["total_blocks"].tolist() == [27 // 4] * 2  # 664 / 24 = 27.7 tokens
        # A token chooses 2 experts of 4: of 5 tokens, each is passed by with probability 1 / 2^5.
        assert result.instances["expert_reads"].tolist() == [1 - 1 / 32, 1 / 2]

    def test_bytes_of_swapping(self, implementation: str) -> None:
        rows, options = [(0, 3, 5)] * 2, {"block_tokens": 1, "preemption": "swap", "kv_tokens": 9}
        result = self.play(rows, [], "mixed", implementation=implementation, **options)
        # After a decode each has 4 of 9 tokens, and two more are needed: the 4 of one leave, and come back later.
        assert result.requests["preemptions"].tolist() == [0, 1]
        assert result.instances["busy_s"][0] - result.instances["steps"][0] == 2 * 4 * 24 / 16

    def test_bytes_of_a_load(self, implementation: str) -> None:
        stores = PrefixStores({"host": Tier()}, layer_wise=False)
        options = {"block_tokens": 2, "kv_tokens": 12, "prefix_cache": True, "prefix_stores": stores}
        rows = [(0, 9, 1), (100, 9, 1), (200, 9, 1)]  # the second evicts the first
        result = self.play(rows, [1, 2, 3, 4, 1, 2], "mixed", implementation=implementation, **options)
        assert result.tiers["loaded_bytes"].tolist() == [8 * 24]
        assert result.requests["end_s"].tolist() == [1, 101, 200 + 8 * 24 / 16 + 1]
