"""Settings of measured servers as their start scripts give them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.validation.fidelity.rows import Pool, Row
from experiments.validation.fidelity.scripts import (
    admission_wait_steps_of,
    aggregated,
    disaggregated,
    expert_dtype_of,
    kv_dtype_of,
    token_budget_of,
    tokens_together_of,
)
from framework.system.parallelism import Parallelism
from tests.experiments.test_fidelity import row

DEEPSEEK = row(model="deepseek_v3", gpu="b200", backend="trtllm", version="1.2.0rc6.post2", dtype="fp8_block")
MINIMAX = row(model="minimax_m25", gpu="b200", dtype="fp8_block", expert_dtype="fp8_block")
GPT = row(model="gpt_oss_120b", gpu="b200", dtype="bf16", expert_dtype="mxfp4")


def on(gpus: int, **changes: object) -> Row:
    pool = Pool(1, Parallelism(tp=gpus))
    return replace(DEEPSEEK, version="", prefill=pool, decode=pool, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("measured", "dtype"),
    [
        (DEEPSEEK, "fp8"),
        (replace(DEEPSEEK, backend="sglang"), "fp8"),
        (replace(DEEPSEEK, backend="sglang", gpu="h200"), "bf16"),
        (MINIMAX, "fp8"),
        (replace(MINIMAX, version="0.17.0"), "bf16"),
        (replace(MINIMAX, version="nightly-5b8c"), "fp8"),
        (replace(MINIMAX, gpu="h200"), "bf16"),
        (replace(MINIMAX, dtype="nvfp4", version="0.17.0"), "fp8"),
        (GPT, "fp8"),
        (replace(GPT, gpu="h100"), "bf16"),
        (replace(GPT, gpu="h200", backend="trtllm"), "bf16"),
        (row(), "bf16"),
        (row(gpu="h200"), "fp8"),
    ],
)
def test_kv_dtype(measured: Row, dtype: str) -> None:
    assert kv_dtype_of(measured) == dtype


def test_activations_of_experts() -> None:
    assert expert_dtype_of(GPT) == "mxfp4_mxfp8"
    assert expert_dtype_of(replace(GPT, gpu="h200")) == "mxfp4"
    assert expert_dtype_of(MINIMAX) == "fp8_block"


def test_token_budgets() -> None:
    assert token_budget_of(DEEPSEEK) == 8192
    assert token_budget_of(replace(DEEPSEEK, version="1.1.0rc2")) == 1024 + 16 + 127
    spread = Pool(1, Parallelism(dp=8, ep=8))
    assert token_budget_of(replace(DEEPSEEK, decode=spread)) == 8 * 8192
    assert token_budget_of(replace(MINIMAX, isl=8192)) == 16384
    assert token_budget_of(replace(DEEPSEEK, backend="sglang", decode=spread)) == 32768
    assert token_budget_of(replace(DEEPSEEK, backend="sglang")) == 8192
    assert token_budget_of(replace(DEEPSEEK, backend="sglang", dtype="nvfp4")) == 16384


def test_waiting_for_others() -> None:
    assert admission_wait_steps_of(replace(DEEPSEEK, isl=1024, osl=1024, concurrency=64)) == 40
    assert admission_wait_steps_of(replace(DEEPSEEK, isl=1024, osl=1024, concurrency=32)) == 0
    assert admission_wait_steps_of(replace(DEEPSEEK, decode=Pool(1, Parallelism(dp=8, ep=8)))) == 60
    assert admission_wait_steps_of(replace(DEEPSEEK, backend="sglang")) == 30
    assert admission_wait_steps_of(replace(DEEPSEEK, backend="sglang", concurrency=8)) == 10
    assert admission_wait_steps_of(replace(DEEPSEEK, backend="sglang", gpu="h200")) == 0
    assert admission_wait_steps_of(row()) == 0
    spread = Pool(1, Parallelism(dp=2, ep=2))
    assert admission_wait_steps_of(replace(GPT, backend="trtllm", decode=spread)) == 50
    assert admission_wait_steps_of(replace(GPT, backend="trtllm")) == 0


def test_tokens_that_come_together() -> None:
    assert tokens_together_of(DEEPSEEK) == 10
    assert tokens_together_of(replace(DEEPSEEK, backend="sglang")) == 1
    assert tokens_together_of(replace(DEEPSEEK, mode="disagg")) == 1
    assert tokens_together_of(replace(GPT, backend="trtllm")) == 1


@pytest.mark.parametrize(
    ("measured", "layout"),
    [
        (on(8, dtype="nvfp4", concurrency=8), Parallelism(tp=8)),
        (on(8, dtype="nvfp4", concurrency=16, osl=1024), Parallelism(tp=8, ep=8)),
        (on(4, dtype="nvfp4", concurrency=16), Parallelism(tp=4)),
        (on(8, dtype="nvfp4", isl=8192, concurrency=64), Parallelism(dp=8, ep=8)),
        (on(8, concurrency=32, osl=1024), Parallelism(tp=8, ep=8)),
        (on(8, concurrency=64, osl=1024), Parallelism(dp=8, ep=8)),
        (on(8, gpu="h200", concurrency=64, osl=1024), Parallelism(tp=8, ep=8)),
        (on(2, model="gpt_oss_120b", gpu="h200", dtype="bf16"), Parallelism(tp=2, ep=2)),
        (on(2, model="gpt_oss_120b", dtype="bf16"), Parallelism(tp=2)),
        (on(2, family="gap analysis"), Parallelism(tp=2)),
        (DEEPSEEK, Parallelism(tp=2)),
        (replace(MINIMAX, decode=Pool(1, Parallelism(tp=8))), Parallelism(tp=8, ep=8)),
    ],
)
def test_layouts_that_scripts_chose(measured: Row, layout: Parallelism) -> None:
    assert aggregated(measured) == Pool(1, layout)


def test_data_parallel_attention_spreads_experts() -> None:
    wide = Pool(2, Parallelism(dp=32))
    measured = replace(DEEPSEEK, backend="sglang", mode="disagg")
    assert disaggregated(measured, wide) == Pool(2, Parallelism(dp=32, ep=32))
    assert disaggregated(replace(measured, backend="trtllm"), wide) == wide
