"""FLOPs and bytes of steps, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from framework.errors import InputError
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.flops import Chunk, Step, flops, moved_bytes
from tests.helpers.parts import load

LLAMA: Model = load("model", "llama3_8b")
SHARED = 2 * (LLAMA.shared_parameters + LLAMA.output_parameters)  # bytes of all weights of a dense model in bf16
KV = LLAMA.kv_bytes_per_token


def test_a_step_says_what_it_holds() -> None:
    step = Step(chunks=(Chunk(10, 5), Chunk(3, 20)), batch=4, context=100)
    assert (step.tokens, step.sampled, step.decode_context, step.longest_prompt) == (17, 6, 400, 23)
    assert Step(batch=1).longest_prompt == 0
    assert Step(chunks=(Chunk(2),)).tokens == 2
    with pytest.raises(InputError, match="a chunk or a decode"):
        Step()


def test_flops_are_two_a_weight_and_the_pairs_of_queries_and_keys() -> None:
    """A chunk of 10 tokens after 5: 15² / 2 - 5² / 2 pairs; four decodes of 100."""
    found = flops(LLAMA, Step(chunks=(Chunk(10, 5),), batch=4, context=100))
    pairs = 400 + (225 - 25) / 2
    assert found == 2 * LLAMA.active_parameters * 14 + LLAMA.attention_flops_per_pair * pairs


@pytest.mark.parametrize(
    ("parallelism", "copies"),
    [(Parallelism(), 1), (Parallelism(tp=4), 1), (Parallelism(pp=2), 2), (Parallelism(dp=2), 2)],
)
def test_weights_are_read_once_for_each_copy_and_each_micro_batch(parallelism: Parallelism, copies: int) -> None:
    found = moved_bytes(LLAMA, parallelism, Step(batch=2, context=50))
    assert found == pytest.approx(copies * SHARED + KV * (100 + 2))


def test_kv_is_read_of_decodes_and_chunks_and_written_of_all_tokens() -> None:
    found = moved_bytes(LLAMA, Parallelism(), Step(chunks=(Chunk(10, 5), Chunk(3)), batch=2, context=50))
    assert found == pytest.approx(SHARED + KV * (100 + 15 + 3) + KV * 15)


@pytest.mark.parametrize(("context", "near"), [(50, 50), (64, 64), (65, 65), (66, 65), (900, 65)])
def test_a_window_of_64_tokens_lets_a_decode_read_these_and_its_own(context: int, near: int) -> None:
    """Of 32 layers 16 have a window; `kv_bytes_per_token` counts the others."""
    model = replace(LLAMA, windowed_layers=16, window=64)
    layer = model.kv_bytes_per_token / 16
    weights = moved_bytes(model, Parallelism(), Step(batch=1, context=0)) - layer * 32
    found = moved_bytes(model, Parallelism(), Step(batch=3, context=context)) - weights
    assert found == pytest.approx(layer * (16 * 3 * context + 16 * 3 * near + 32 * 3))


@pytest.mark.parametrize(
    ("chunk", "near"), [(Chunk(10), 10), (Chunk(10, 60), 70), (Chunk(10, 64), 74), (Chunk(10, 65), 74)]
)
def test_a_chunk_reads_a_window_before_it_and_itself(chunk: Chunk, near: int) -> None:
    model = replace(LLAMA, windowed_layers=16, window=64)
    layer = model.kv_bytes_per_token / 16
    weights = moved_bytes(model, Parallelism(), Step(batch=1, context=0)) - layer * 32
    found = moved_bytes(model, Parallelism(), Step(chunks=(chunk,))) - weights
    assert found == pytest.approx(layer * (16 * (chunk.prefix + 10) + 16 * near + 32 * 10))


@pytest.mark.parametrize(("pp", "tokens"), [(1, 1), (1, 16), (2, 16)])
def test_of_experts_those_are_read_that_tokens_are_expected_to_choose(pp: int, tokens: int) -> None:
    """Each micro-batch of 16 / pp tokens misses an expert with a probability of (1 - chosen) each."""
    model: Model = load("model", "mixtral_8x7b")
    assert model.experts is not None
    missed = (1 - model.experts.per_token / model.experts.count) ** (tokens / pp)
    shared = 2 * (model.shared_parameters + model.output_parameters)
    found = moved_bytes(model, Parallelism(pp=pp), Step(batch=tokens, context=0))
    expected = pp * shared + pp * 2 * model.expert_parameters * (1 - missed) + model.kv_bytes_per_token * tokens
    assert found == pytest.approx(expected)
