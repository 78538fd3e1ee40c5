"""Times of linear attention, of sparse attention, and of experts in another number, from tables made by formulas."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Experts, LatentAttention, LinearAttention, LocalAttention, Model, SparseAttention
from framework.system.parallelism import Parallelism
from framework.timing.flops import Chunk, Step, moved_bytes
from framework.timing.kernels.attention_gqa import GroupedQuery
from framework.timing.kernels.attention_linear import DeltaRule, Hybrid
from framework.timing.kernels.attention_sparse import SparseModule
from framework.timing.kernels.operations import Operations
from framework.timing.kernels.table import Kernels, Provenance
from framework.timing.measured import Measured
from framework.timing.roofline import Roofline
from framework.timing.table import chunk_s, stack
from framework.timing.table import decode_s as attend_s
from tests.helpers.definitions import decode_s
from tests.helpers.parts import load

GPU = Gpu("toy", {"bf16": 1e14, "fp8": 2e14}, 80e9, 1e12, 1e11, 1e10, 1e10, 500.0, 50.0, 1.0)
BASE = Model("toy", 4, 512, 8, 2, 64, 1024, 1000, 100_000)
LINEAR = replace(BASE, linear=LinearAttention(3, 2, 4, 64, 32, kernel=4))
SPARSE = replace(BASE, latent=LatentAttention(96, 64, 16, 8, 16), sparse=SparseAttention(2, 32, 256))
SIZES = [1, 16, 256, 4096]


def operations(**tables: pl.DataFrame) -> Operations:
    return Operations(Kernels(Provenance("toy", "vllm", "1", "a test", "none", {}), tables, saturates=False), GPU)


def grid(seconds: Callable[..., float], first: str, second: str, seconds_of: list[int], **others: Any) -> pl.DataFrame:
    rows = [{**others, first: a, second: b} for a, b in itertools.product(SIZES, seconds_of)]
    return pl.DataFrame([{**row, "latency_s": seconds(row[first], row[second])} for row in rows])


def light(flops: float, moved: float) -> float:
    return max(flops / 1e14, moved / 1e12)


def kernel_s(phase: str, value_heads: int, key_heads: int, batch: float, tokens: float) -> float:
    """At the speed of light."""
    moved = 2 * batch * tokens * (2 * key_heads * 64 + value_heads * 32) * 2
    state = value_heads * 64 * 32
    if phase in ("prefill", "decode"):
        return light(7 * batch * tokens * state, moved + 2 * batch * state * 2)
    return light(0.0, moved)


def delta_rule(tp: int) -> DeltaRule:
    """Kernels of all heads were measured, at a quarter of the speed of light; of a decode at a half."""
    tables = []
    for phase, speed in (("conv_prefill", 4), ("prefill", 4), ("conv_decode", 2), ("decode", 2)):

        def seconds(batch: float, tokens: float, phase: str = phase, speed: int = speed) -> float:
            return speed * kernel_s(phase, 4, 2, batch, tokens)

        shape = {"phase": phase, "key_heads": 2, "value_heads": 4, "key_dim": 64, "value_dim": 32}
        tables.append(grid(seconds, "batch", "tokens", [1] if "decode" in phase else SIZES, **shape))
    return DeltaRule(operations(linear_attention=pl.concat(tables)), LINEAR, tp)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_layers_with_linear_attention(tp: int) -> None:
    rule, value_heads, key_heads = delta_rule(tp), 4 // tp, max(1, 2 // tp)
    for batch, tokens in ((1, 1), (3, 100), (16, 4096)):
        expected = 4 * sum(
            kernel_s(phase, value_heads, key_heads, batch, tokens) for phase in ("conv_prefill", "prefill")
        )
        assert rule.prefill_s(np.array(batch), np.array(tokens)) == pytest.approx(3 * expected)
    for batch in (1, 5, 4096):
        expected = 2 * sum(kernel_s(phase, value_heads, key_heads, batch, 1) for phase in ("conv_decode", "decode"))
        found = rule.decode_s(np.array(batch), np.array([10.0, 90_000.0]))
        assert found.tolist() == pytest.approx([3 * expected] * 2)  # whatever the context
    assert (rule.length_limit(), rule.context_limit(np.ones(2)).tolist()) == (4096.0, [np.inf, np.inf])
    assert rule.copies == 3


def test_a_state_is_split_over_heads_of_values_alone() -> None:
    with pytest.raises(InputError, match="tp = 8 does not divide the 4 value heads of toy"):
        delta_rule(8)


def sparse_s(heads: int, tokens: float, pairs: float, scored: float, read: float) -> float:
    """A layer at the speed of light: weights, pairs of attention, pairs of the indexer, bytes read beside weights."""
    weights = 512 * 96 + 96 * heads * 24 + 512 * 72 + 64 * heads * 32 + heads * 16 * 512 + 96 * 64 + 512 * 34
    flops = 2 * weights * tokens + 2 * heads * (2 * 64 + 8) * pairs + 2 * 2 * 32 * scored
    return light(flops, 2 * weights + read)


def prompt_s(heads: int, batch: float, tokens: float) -> float:
    seen = min(tokens, 256)
    pairs = batch * (tokens * seen - seen * seen / 2)
    return sparse_s(heads, batch * tokens, pairs, batch * tokens * tokens / 2, batch * tokens * 72 * 2)


def decodes_s(heads: int, batch: float, context: float) -> float:
    seen = batch * min(context, 256)
    return sparse_s(heads, batch, seen, batch * context, seen * 72 * 2 + batch * context * 36)


def sparse(launch_s: float) -> SparseModule:
    """Of all heads, twice as long as the speed of light; a prompt no shorter than its launches."""
    key = {"kv_dtype": "bf16", "dtype": "bf16", "hidden": 512, "heads": 8}
    prompts = grid(lambda b, t: max(2 * prompt_s(8, b, t), launch_s), "batch", "tokens", SIZES, **key, prefix=0)
    decodes = grid(lambda b, c: 2 * decodes_s(8, b, c), "batch", "context", SIZES, **key)
    return SparseModule(operations(sparse_prefill=prompts, sparse_decode=decodes), SPARSE, 2)


@pytest.mark.parametrize(("batch", "context"), [(1, 16), (16, 256), (256, 4096)])
def test_decodes_read_what_the_indexer_chooses(batch: int, context: int) -> None:
    module = sparse(0.0)
    found = module.projections_s(np.array(batch)) + module.decode_s(np.array(batch), np.array(context))
    assert found == pytest.approx(4 * 2 * decodes_s(4, batch, context))


def test_a_prompt_whose_launches_take_long_takes_no_longer_than_its_tokens_as_decodes() -> None:
    plain, launched = sparse(0.0), sparse(5e-3)
    long_s = plain.projections_s(np.array(4096)) + plain.prefill_s(np.array(1), np.array(4096))
    assert long_s == pytest.approx(4 * 2 * prompt_s(4, 1, 4096))
    short_s = launched.projections_s(np.array(256)) + launched.prefill_s(np.array(1), np.array(256))
    assert short_s < 4 * 5e-3 / 10
    assert short_s == pytest.approx(4 * 2 * decodes_s(4, 256, 128), rel=0.05)


LOCAL = replace(BASE, local=LocalAttention(3, 64))


def grouped(model: Model) -> GroupedQuery:
    """A layer takes 2 us a call, 1 ns a pair of a prompt and 1 ns a token of a decode's context."""
    shape = {"kv_dtype": "bf16", "heads": 8, "kv_heads": 2, "head_dim": 64, "window": 0}
    sizes = list(itertools.product([1, 2, 3, 4], [1, 16, 32, 40, 64, 128, 160, 256, 1024]))
    prompts = [{**shape, "batch": b, "tokens": t, "prefix": 0, "latency_s": 2e-6 + 5e-10 * b * t * t} for b, t in sizes]
    decodes = [{**shape, "batch": b, "context": c, "latency_s": 2e-6 + 1e-9 * b * c} for b, c in sizes]
    tables = {"prefill_attention": pl.DataFrame(prompts), "decode_attention": pl.DataFrame(decodes)}
    return GroupedQuery(operations(**tables), model, 1)


def test_layers_attend_within_chunks() -> None:
    """A prompt of 160 tokens is two chunks of 64 and one of 32, a quarter of the pairs of another one."""
    module, plain = grouped(LOCAL), grouped(BASE)
    one = np.ones(())
    for tokens, pairs in ((32, 32**2 / 2), (64, 64**2 / 2), (160, (2 + 1 / 4) * 64**2 / 2), (256, 4 * 64**2 / 2)):
        whole_s = float(plain.prefill_s(one, np.array(float(tokens)))) / 4
        found_s = float(module.prefill_s(one, np.array(float(tokens))))
        assert found_s == pytest.approx(whole_s + 3 * (2e-6 + 1e-9 * pairs), rel=0.02)
        assert float(module.bounded_share(np.array(float(tokens)))) == pytest.approx(1 - whole_s / found_s)
    assert float(plain.bounded_share(np.array(256.0))) == 0.0
    for context, seen in ((40.0, 40.0), (64.0, 64.0), (1024.0, 32.5)):
        found_s = float(module.decode_s(np.array(2.0), np.array(context)))
        assert found_s == pytest.approx(4 * 2e-6 + 1e-9 * 2 * (context + 3 * seen), rel=0.02)


def test_states_grow_with_the_tokens_of_a_chunk() -> None:
    rule, tokens = delta_rule(1), np.array([16.0, 4096.0])
    hybrid = Hybrid(rule, grouped(replace(BASE, linear=LINEAR.linear)))
    share = rule.prefill_s(np.ones(()), tokens) / hybrid.prefill_s(np.ones(()), tokens)
    assert hybrid.bounded_share(tokens).tolist() == pytest.approx(share.tolist())


def test_a_roofline_of_bounded_layers() -> None:
    """Pairs and bytes counted by hand at 1e14 FLOP/s and 1e12 bytes/s; a pair takes 4 x 8 heads x 64 FLOPs a layer."""
    timing = Roofline(mfu=1.0, mbu=1.0, overhead_s=0.0)
    local, plain, windowed, sparse = (
        stack([timing.row(model, GPU, Parallelism())])
        for model in (LOCAL, BASE, replace(BASE, window=64, windowed_layers=3), SPARSE)
    )
    pair_s, behind = 4 * 8 * 64 / 1e14, (256**2 - 192**2) / 2
    assert chunk_s(plain, 0, 192, 64) == pytest.approx(4 * behind * pair_s)
    assert chunk_s(local, 0, 192, 64) == pytest.approx((behind + 3 * 64**2 / 2) * pair_s)
    assert chunk_s(local, 0, 0, 64) == pytest.approx(4 * 64**2 / 2 * pair_s)
    assert chunk_s(windowed, 0, 192, 64) == pytest.approx((behind + 3 * 64 * 64) * pair_s)
    indexed, chosen = 2 * 2 * 32 / 1e14, 2 * 8 * (2 * 64 + 8) / 1e14
    squares = (4096**2 - 3072**2) / 2
    assert chunk_s(sparse, 0, 3072, 1024) == pytest.approx(4 * (squares * indexed + 1024 * 256 * chosen))
    token_s = 2 * 2 * 64 * 2 / 1e12
    for context, seen in ((40, 40), (64, 64), (1024, 32.5)):
        for batch in (1, 4):
            found_s = attend_s(local, 0, batch, batch * context)[0]
            assert found_s == pytest.approx(batch * (context + 3 * seen) * token_s)
    of_index, of_chosen = 4 * 36, 256 * 4 * (64 + 8) * 2  # bytes: of a token of the context, and of a sequence
    row = timing.row(SPARSE, GPU, Parallelism())
    assert row.per_context_token_s == pytest.approx(of_index / 1e12)
    assert row.per_sequence_s == pytest.approx(of_chosen / 1e12)
    step, known = Step((Chunk(40, 100),), 2, 1024), Step((Chunk(1),))
    least = moved_bytes(LOCAL, Parallelism(), known) - 512 * 4 * (1 + 1)
    read = (2 * 1024 + 140) + 3 * (2 * 32.5 + 100 % 64 + 40)
    assert moved_bytes(LOCAL, Parallelism(), step) - least == pytest.approx(512 * (read + 4 * 42))


@pytest.mark.parametrize("name", ["deepseek_v32", "llama4_maverick", "qwen3_next_80b"])
def test_chunks_of_shipped_profiles_add_up_to_a_prompt(name: str) -> None:
    """Attention to a bounded number of tokens does not grow with the prefix: the last chunk is shorter than a share."""
    model = load("model", name)
    row = Measured().row(model, load("gpu", "h200"), Parallelism(8 if name != "qwen3_next_80b" else 4))
    assert row.bounded is not None
    assert row.attention is not None
    tables, whole = stack([replace(row, attention=None)]), 65_536
    cuts = [0, 2_048, 8_192, 8_193, 32_768, whole]
    parts_s = [chunk_s(tables, 0, begin, end - begin) for begin, end in itertools.pairwise(cuts)]
    assert sum(parts_s) == pytest.approx(chunk_s(tables, 0, 0, whole))
    share = 1 - ((whole - 2_048) / whole) ** 2
    assert chunk_s(tables, 0, whole - 2_048, 2_048) < 0.95 * share * chunk_s(tables, 0, 0, whole)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"local": LocalAttention(4, 64)}, "model.windowed_layers = 0, model.local.layers = 4 of 4 layers"),
        ({"local": LocalAttention(1, 64), "latent": SPARSE.latent}, "model.local beside model.latent"),
    ],
)
def test_models_of_chunks_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(BASE, **wrong)


def test_experts_of_one_size_stand_for_up_to_twice_as_many() -> None:
    shape = {"dtype": "bf16", "hidden": 512, "intermediate": 128, "tp": 1, "ep": 1, "distribution": "balanced"}
    rows = [{**shape, "experts": 16, "per_token": 4, "tokens": tokens, "latency_s": 1e-5 * tokens} for tokens in SIZES]
    given = operations(experts=pl.DataFrame(rows))
    at_s = given.experts("bf16", 512, Experts(32, 5, 128), 1, 1).seconds(np.array(4096.0))
    assert at_s == pytest.approx(1e-5 * 4096 * 5 / 4)  # as busy with each token's experts
    for other in (Experts(64, 5, 128), Experts(32, 9, 128), Experts(32, 5, 64)):
        with pytest.raises(InputError, match="no experts times with dtype bf16, hidden 512"):
            given.experts("bf16", 512, other, 1, 1)


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_shipped_steps_of_long_contexts(backend: str) -> None:
    """Sparse attention reads 2,048 tokens of a context, whatever its length, and index keys of all."""
    dense, chosen = load("model", "deepseek_v3"), load("model", "deepseek_v32")
    rows = [Measured(backend=backend).row(model, load("gpu", "h200"), Parallelism(8)) for model in (dense, chosen)]
    long_s = [decode_s(row, 64, 64 * 65_536) - decode_s(row, 64, 64 * 8_192) for row in rows]
    assert long_s[1] < long_s[0] / 2


@pytest.mark.parametrize("name", ["qwen3_next_80b", "qwen35_397b", "deepseek_v32", "glm_5", "llama4_maverick"])
def test_published_sizes(name: str) -> None:
    """Parameters of the model cards, in 10^9: all, and those of one token with the output projection."""
    published = {
        "qwen3_next_80b": (80, 3.6),
        "qwen35_397b": (397, 17),
        "deepseek_v32": (672, 37.5),
        "glm_5": (744, 40.8),
        "llama4_maverick": (400, 17),
    }
    model = load("model", name)
    whole, active = published[name]
    assert model.parameters / 1e9 == pytest.approx(whole, rel=0.01)
    assert (model.active_parameters + model.output_parameters) / 1e9 == pytest.approx(active, rel=0.06)
