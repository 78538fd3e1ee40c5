"""What mixtures of experts add to measured step times: kernels that backends share, exchange, norms, launches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from framework.system.model import Experts
from framework.system.parallelism import Parallelism
from framework.timing.kernels.all_to_all import all_to_all_s
from framework.timing.kernels.operations import Operations
from tests.timing.test_kernels import EXPERT, read
from tests.timing.test_tabulate import (
    DENSE,
    GPU,
    LATENT,
    LATENT_TABLES,
    MIXTURE,
    TABLES,
    TOKENS,
    at,
    exact,
    grid,
    kernels,
)

SHARED_KERNEL = "sglang_flashinfer_trtllm_moe"
NARROWER = {"mxfp4": "mxfp4_mxfp8"}
WIDE = Experts(8, 2, 512)
SENT = {"tokens": [1, 64, 1024], "hidden": 512, "per_token": 2, "experts": 8, "ep": 4, "nodes": 1}


def expert(kernel: str, ms: float, dtype: str = "fp8_block", tp: int = 1) -> dict[str, object]:
    changed = {"moe_dtype": dtype, "moe_tp_size": tp, "num_tokens": 64, "kernel_source": kernel, "latency": ms}
    return EXPERT | changed


def sent_s(tokens: float, phase: str, comm: str, **_: object) -> float:
    return (1e-6 if comm == "deepep_ll" else 5e-6) + (2 if phase == "combine" else 1) * 1e-8 * tokens


def test_shared_kernels_fill_what_a_backend_measured_with_others_only(tmp_path: Path) -> None:
    files = {
        "moe/trtllm/2.0/moe": [
            expert("deepgemm", 0.3),
            expert("deepgemm", 0.3, tp=2),
            expert("moe_torch_flow_min_latency", 0.2, dtype="nvfp4"),
        ],
        "moe/sglang/2.0/moe": [
            expert(SHARED_KERNEL, 0.1),
            expert("sglang_fused_moe_triton", 0.01, tp=2),
            expert(SHARED_KERNEL, 0.1, dtype="nvfp4"),
            expert(SHARED_KERNEL, 0.1, dtype="w4a8_mxfp4_mxfp8"),
            expert(SHARED_KERNEL, 0.1, dtype="int4_wo"),
        ],
    }
    found = read(tmp_path, files, backend="trtllm")
    table = found.table("experts").select("dtype", "tp", "latency_s").sort("dtype", "tp")
    assert [(*row[:2], round(row[2], 9)) for row in table.rows()] == [
        ("fp8_block", 1, 1e-4),
        ("fp8_block", 2, 3e-4),
        ("mxfp4_mxfp8", 1, 1e-4),
        ("nvfp4", 1, 2e-4),
    ]
    assert found.provenance.versions["experts"] == "2.0, sglang 2.0"
    assert found.multiplied_as == NARROWER
    own = read(tmp_path, {}, backend="sglang")
    assert own.multiplied_as == {}
    assert own.provenance.versions["experts"] == "2.0"


def test_a_backend_multiplies_by_what_is_faster_where_that_was_measured() -> None:
    experts = TABLES["experts"]
    narrow = experts.with_columns(dtype=pl.lit("mxfp4"))
    narrower = narrow.with_columns(dtype=pl.lit("mxfp4_mxfp8"), latency_s=pl.col("latency_s") / 2)
    both = {"experts": pl.concat([narrow, narrower])}
    model = replace(MIXTURE, experts=replace(WIDE, dtype="mxfp4"))

    def seconds(multiplied_as: dict[str, str], tables: dict[str, pl.DataFrame]) -> float:
        measured = replace(kernels(**tables), multiplied_as=multiplied_as)
        assert model.experts is not None
        return float(Operations(measured, GPU).experts("mxfp4", 512, model.experts, 1, 1).seconds(at(TOKENS[4])))

    assert seconds(NARROWER, both) == pytest.approx(seconds({}, both) / 2)
    assert seconds(NARROWER, {"experts": narrow}) == pytest.approx(seconds({}, both))


def test_tokens_go_by_the_fastest_library_that_brings_them_back() -> None:
    table = pl.concat(
        [
            grid(sent_s, phase=["dispatch", "combine"], comm=["deepep_ht", "deepep_ll"], **SENT),
            grid(lambda **_: 1e-9, phase="dispatch", comm="one_way", **SENT),
        ]
    )
    operations = Operations(kernels(dispatch=table), GPU)
    assert all_to_all_s(operations, 512, WIDE, 4, at(64)) == pytest.approx(2e-6 + 3e-8 * 64)
    assert all_to_all_s(operations, 512, WIDE, 8, at(1024)) > all_to_all_s(operations, 512, WIDE, 4, at(1024))
    assert all_to_all_s(operations, 512, WIDE, 16, at(1024)) > 5 * all_to_all_s(operations, 512, WIDE, 8, at(1024))


def test_experts_beyond_a_node_need_not_gather_all_tokens() -> None:
    model = replace(MIXTURE, experts=Experts(32, 2, 512))
    tables = {"experts": TABLES["experts"].with_columns(experts=pl.lit(32, pl.Int64))}
    table = grid(sent_s, phase=["dispatch", "combine"], comm="deepep_ll", **(SENT | {"experts": 32}))
    wide = Parallelism(dp=16, ep=16)
    gathered_s = exact(model, wide, tables).communication_s(at(8192))
    exchanged_s = exact(model, wide, tables | {"dispatch": table}).communication_s(at(8192))
    assert exchanged_s < gathered_s / 2
    near = Parallelism(dp=8, ep=8)
    assert exact(model, near, tables | {"dispatch": table}).communication_s(at(8192)) == pytest.approx(
        exact(model, near, tables).communication_s(at(8192))
    )


def test_norms_across_heads_are_summed_over_the_gpus() -> None:
    normed = replace(DENSE, norm_across_heads=True)
    for tp in (1, 2):
        plain, across = (exact(model, Parallelism(tp=tp)) for model in (DENSE, normed))
        more_s = across.elementwise_s(at(4)) - plain.elementwise_s(at(4))
        assert more_s == pytest.approx(2 * 4 * 3e-6, rel=0.01)
        reduced_s = across.communication_s(at(4)) - plain.communication_s(at(4))
        assert reduced_s == pytest.approx(2 * (4e-6 + 256 / 5e10) if tp == 2 else 0.0, rel=0.01)


def test_launches_of_modules_are_no_time_of_a_graph() -> None:
    def projections_s(extra_s: float, **bare: pl.DataFrame) -> float:
        module = {
            name: LATENT_TABLES[name].with_columns(module=1, latency_s=pl.col("latency_s") + extra_s)
            for name in ("latent_prefill", "latent_decode")
        }
        return float(exact(LATENT, tables=module | bare).attention.projections_s(at(TOKENS[2])))

    absorb = {"latent_bmm": LATENT_TABLES["latent_bmm"]}
    assert projections_s(1e-4, **absorb) == pytest.approx(projections_s(3e-4, **absorb))
    assert projections_s(3e-4) - projections_s(1e-4) == pytest.approx(2 * 2e-4)
    assert projections_s(0.0, **absorb) == pytest.approx(projections_s(0.0))


def test_among_nodes_that_were_measured_more_of_them_add_little() -> None:
    table = grid(sent_s, phase=["dispatch", "combine"], comm="deepep_ll", **(SENT | {"ep": 16, "nodes": 2}))
    operations = Operations(kernels(dispatch=table), GPU)
    two_nodes_s, ten_s = (float(all_to_all_s(operations, 512, WIDE, ep, at(1024))) for ep in (16, 80))
    assert two_nodes_s < ten_s < 1.1 * two_nodes_s
    apart = Operations(kernels(dispatch=table.with_columns(ep=pl.lit(2, pl.Int64))), replace(GPU, linked_gpus=1))
    two_s, four_s = (float(all_to_all_s(apart, 512, WIDE, ep, at(1024))) for ep in (2, 4))
    assert two_s < four_s < 2 * two_s


def test_kernels_for_experts_among_nodes() -> None:
    own = TABLES["experts"].with_columns(tp=pl.lit(1, pl.Int64))
    made = own.with_columns(ep=pl.lit(16, pl.Int64), distribution=pl.lit("balanced"), latency_s=pl.lit(1e-6))
    operations = Operations(kernels(experts=own, spread_experts=made), GPU)
    assert float(operations.experts("bf16", 512, WIDE, 1, 16).seconds(at(TOKENS[4]))) == pytest.approx(1e-6)
    for tp, ep in ((1, 8), (16, 1)):
        assert float(operations.experts("bf16", 512, WIDE, tp, ep).seconds(at(TOKENS[4]))) > 1.2e-6
