"""Kernel tables: a CSV, Vidur's profiles and aiconfigurator-core read into one schema, and every refusal."""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES, Gpu
from framework.timing.kernels.build import load_kernels
from framework.timing.kernels.checks import require_plausible, too_fast
from framework.timing.kernels.read_aiconfigurator import BACKENDS, _Reader, load_package, package_gpu, package_root
from framework.timing.kernels.read_csv import load_csv
from framework.timing.kernels.read_vidur import load_vidur
from framework.timing.kernels.table import MAY_BE_ZERO, NAMES, OPERATIONS, Kernels, fastest
from tests.timing.test_timing import H100

Rows = list[dict[str, Any]]


# A user's CSV

GEMM: Rows = [
    {"op": "gemm", "dtype": "bf16", "m": m, "n": 4096, "k": 4096, "latency_us": us}
    for m, us in ((1, 14.0), (16, 14.8), (64, 15.8), (8192, 347.0))
]
DECODE: Rows = [
    {
        "op": "decode_attention",
        "kv_dtype": "bf16",
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "window": 0,
        "batch": batch,
        "context": context,
        "latency_us": us,
    }
    for batch, context, us in ((1, 1024, 8.0), (16, 1024, 31.0), (1, 4096, 12.0))
]


def write(path: Path, rows: Rows) -> Path:
    pl.DataFrame(rows, infer_schema_length=None, strict=False).write_csv(path)
    return path


def changed(rows: Rows, index: int, **values: Any) -> Rows:
    return [{**row, **values} if place == index else row for place, row in enumerate(rows)]


def without(rows: Rows, name: str) -> Rows:
    return [{key: value for key, value in row.items() if key != name} for row in rows]


def test_a_csv_of_several_operations(tmp_path: Path) -> None:
    kernels = load_csv(write(tmp_path / "mine.csv", GEMM + DECODE), H100, "vllm")
    gemm = kernels.table("gemm")
    assert gemm.select("dtype", "m", "n", "k").row(1) == ("bf16", 16, 4096, 4096)
    assert gemm["latency_s"].to_list() == pytest.approx([14e-6, 14.8e-6, 15.8e-6, 347e-6], rel=1e-12)
    assert kernels.table("decode_attention")["context"].to_list() == [1024, 4096, 1024]  # sorted by batch, context
    assert kernels.provenance.gpu == "h100"
    assert kernels.provenance.backend == "vllm"
    assert kernels.provenance.versions == {"gemm": "unstated", "decode_attention": "unstated"}


@pytest.mark.parametrize(("column", "factor"), [("latency_us", 1.0), ("latency_ms", 1e-3), ("latency_s", 1e-6)])
def test_units(tmp_path: Path, column: str, factor: float) -> None:
    rows = [{**row, column: row["latency_us"] * factor} for row in GEMM]
    if column != "latency_us":
        rows = without(rows, "latency_us")
    kernels = load_csv(write(tmp_path / "mine.csv", rows), H100, "vllm")
    assert kernels.table("gemm")["latency_s"][0] == pytest.approx(14e-6, rel=1e-12)


def test_window_and_prefix_may_be_left_out(tmp_path: Path) -> None:
    rows = [
        {**row, "op": "prefill_attention", "tokens": row["context"], "latency_us": 900.0}
        for row in without(DECODE, "window")
    ]
    table = load_csv(write(tmp_path / "mine.csv", rows), H100, "vllm").table("prefill_attention")
    assert table["window"].to_list() == table["prefix"].to_list() == [0, 0, 0]


def test_of_several_kernels_the_fastest_counts(tmp_path: Path) -> None:
    slow = [{**row, "kernel": "slow", "latency_us": row["latency_us"] * 2} for row in GEMM[1:]]
    fast = [{**row, "kernel": "fast"} for row in GEMM]
    table = load_csv(write(tmp_path / "mine.csv", slow + fast), H100, "vllm").table("gemm")
    assert table["kernel"].to_list() == ["fast"] * 4
    assert table["latency_s"].to_list() == pytest.approx([14e-6, 14.8e-6, 15.8e-6, 347e-6])


def test_spread_is_kept(tmp_path: Path) -> None:
    rows = [{**row, "spread_us": 0.5} for row in GEMM]
    table = load_csv(write(tmp_path / "mine.csv", rows), H100, "vllm").table("gemm")
    assert table["spread_s"].to_list() == pytest.approx([5e-7] * 4)


def test_of_repeats_the_median_counts_and_how_far_the_half_in_the_middle_spreads() -> None:
    one = {"dtype": "bf16", "m": 1, "n": 4096, "k": 4096}
    rows = [{**one, "kernel": "a", "latency_s": s} for s in (14.0, 15.0, 16.0, 18.0, 30.0)]
    found = fastest("gemm", pl.DataFrame([*rows, {**one, "kernel": "b", "latency_s": 17.0}]))
    assert found.select("kernel", "latency_s", "spread_s").rows() == [("a", 16.0, 3.0)]


def test_uneven_decodes_have_a_table_of_their_own(tmp_path: Path) -> None:
    uneven = {**DECODE[1], "longest": 2048, "latency_us": 35.0}
    even = [{**row, "longest": None} for row in DECODE]
    even[0]["longest"] = even[0]["context"]
    kernels = load_csv(write(tmp_path / "mine.csv", [*even, uneven]), H100, "vllm")
    assert kernels.table("decode_attention").height == 3
    assert kernels.table("uneven_decode").select("batch", "context", "longest").rows() == [(16, 1024, 2048)]


def test_what_a_file_states_of_itself(tmp_path: Path) -> None:
    rows = [{**row, "gpu": "h100", "backend": "torch", "version": "2.9", "licence": "CC0"} for row in GEMM]
    origin = load_csv(write(tmp_path / "mine.csv", rows), H100).provenance
    assert (origin.backend, origin.version, origin.licence, origin.source) == ("torch", "2.9", "CC0", "mine.csv")
    with pytest.raises(InputError, match="row 2: backend = 'torch', but vllm is asked for"):
        load_csv(tmp_path / "mine.csv", H100, "vllm")


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    kernels = load_csv(write(tmp_path / "mine.csv", GEMM), H100, "vllm")
    with pytest.raises(InputError, match=r"no experts times for gpu h100, backend vllm in mine.csv; it has gemm"):
        kernels.table("experts")


REFUSALS: list[tuple[str, Rows, str]] = [
    ("no op", without(GEMM, "op"), r"no column op"),
    ("unknown op", changed(GEMM, 2, op="matmul"), r"row 4: op = 'matmul'; choose one of gemm, "),
    ("empty op", changed(GEMM, 2, op=None), r"row 4: op is empty; choose one of gemm"),
    ("missing key", without(GEMM, "k"), r"gemm, row 2: no column k; it needs dtype, m, n, k and one of latency_us"),
    ("missing time", without(GEMM, "latency_us"), r"gemm, row 2: no columns with a time; .* one of latency_us"),
    ("two times", [{**row, "latency_s": 1} for row in GEMM], r"gemm, row 2: 2 columns with a time"),
    ("missing for one op", GEMM + without(DECODE, "head_dim"), r"decode_attention, row 6: no column head_dim"),
    ("NaN", changed(GEMM, 1, latency_us="nan"), r"gemm, row 3: latency_us = 'nan'; a time must be finite"),
    ("infinite", changed(GEMM, 1, latency_us="inf"), r"gemm, row 3: latency_us = 'inf'"),
    ("zero", changed(GEMM, 3, latency_us=0), r"gemm, row 5: latency_us = '0.*above 0"),
    ("negative", changed(GEMM, 3, latency_us=-4), r"gemm, row 5: latency_us = '-4"),
    ("no number", changed(GEMM, 0, latency_us="fast"), r"gemm, row 2: latency_us = 'fast'"),
    ("empty time", changed(GEMM, 0, latency_us=None), r"gemm, row 2: latency_us is empty"),
    ("fraction", changed(GEMM, 1, m=1.5), r"gemm, row 3: m = '1.5'; a whole number of at least 1 is needed"),
    ("size 0", changed(GEMM, 1, n=0), r"gemm, row 3: n = '0'"),
    ("negative size", changed(DECODE, 1, window=-1), r"row 3: window = '-1'; a whole number of at least 0"),
    ("empty size", changed(GEMM, 1, k=None), r"gemm, row 3: k is empty"),
    ("unknown type", changed(GEMM, 2, dtype="float99"), r"gemm, row 4: dtype = 'float99'; choose one of fp32, bf16"),
    (
        "too fast",
        changed(GEMM, 3, latency_us=0.347),
        r"gemm, row 5: .* is 7.92e\+17 FLOP/s.* more than gpu h100 can do",
    ),
    ("shorter than a launch", changed(GEMM, 0, n=64, k=64, latency_us=0.014), r"gemm, row 2: .*more than gpu h100"),
    ("bandwidth", changed(DECODE, 2, latency_us=0.3), r"decode_attention, row 4: .* B/s, more than gpu h100 can do"),
    (
        "far too slow",
        [{**row, "latency_us": row["latency_us"] * 1e3} for row in GEMM],
        r"half of the rows are \d+ times",
    ),
    ("one row in another unit", changed(GEMM, 0, latency_us=14_800), r"gemm, row 2: .*m=1 .*than the next m of"),
    ("the last row in another unit", changed(GEMM, 3, latency_us=347_000), r"gemm, row 5: .*over 100 times slower"),
    ("one m", [{**row, "m": 16, "n": row["m"] * 64} for row in GEMM], r"gemm, row 2: m = 16 in all 4 rows"),
    ("one batch", DECODE[::2], r"decode_attention, row 2: batch = 1 in all 2 rows leaves nothing to interpolate"),
    ("contradiction", [*GEMM, {**GEMM[1], "latency_us": 17}], r"gemm, row 6: .*took 1.7e-05 s and in row 3 1.48e-05 s"),
    ("another gpu", [{**row, "gpu": "a100"} for row in GEMM], r"row 2: gpu = 'a100', but h100 is asked for"),
    (
        "two versions",
        changed([{**row, "version": "1"} for row in GEMM], 2, version="2"),
        r"row 4: version = '2', but the first row says '1'",
    ),
    ("no rows", [dict.fromkeys(GEMM[0])], r"has no rows"),
]


@pytest.mark.parametrize(("rows", "message"), [refusal[1:] for refusal in REFUSALS], ids=[r[0] for r in REFUSALS])
def test_refused(tmp_path: Path, rows: Rows, message: str) -> None:
    path = write(tmp_path / "mine.csv", rows)
    with pytest.raises(InputError, match=message) as refusal:
        load_csv(path, H100, "vllm")
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


def test_repeats_of_one_time_are_no_contradiction(tmp_path: Path) -> None:
    assert load_csv(write(tmp_path / "mine.csv", GEMM + GEMM), H100, "vllm").table("gemm").height == 4


def test_blank_lines_count_as_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", changed(GEMM, 2, m=0))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], "", *lines[2:]]) + "\n")
    with pytest.raises(InputError, match="row 5: m = '0'"):
        load_csv(path, H100, "vllm")


def test_blanks_around_values_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", [{**row, "gpu": "h100", "row": "mine"} for row in GEMM])
    path.write_text(path.read_text().replace(",", " , "))
    assert load_csv(path, H100, "vllm").table("gemm").height == 4


def test_columns_of_other_operations_may_be_empty(tmp_path: Path) -> None:
    empty = dict.fromkeys(("op", *(name for keys in OPERATIONS.values() for name in keys), "longest", "kernel"), "")
    rows = [{**empty, **row, "spread_us": "0.1", "licence": ""} for row in GEMM + DECODE]
    kernels = load_csv(write(tmp_path / "mine.csv", rows), H100)
    assert set(kernels.tables) == {"gemm", "decode_attention"}
    assert kernels.provenance.licence == "unstated"


def test_files_that_are_no_csv(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.csv: cannot be read"):
        load_kernels(str(tmp_path / "none.csv"), H100, "vllm")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match=r"empty.csv: is no CSV"):
        load_kernels(str(tmp_path / "empty.csv"), H100, "vllm")
    (tmp_path / "ragged.csv").write_text("op,m\ngemm,1,2,3\n")
    with pytest.raises(InputError, match=r"ragged.csv: is no CSV"):
        load_kernels(str(tmp_path / "ragged.csv"), H100, "vllm")
    (tmp_path / "bytes.csv").write_bytes(b"op,m\n\xff\xfe,1\n")
    with pytest.raises(InputError, match=r"bytes.csv: is no CSV"):
        load_kernels(str(tmp_path / "bytes.csv"), H100, "vllm")


# Vidur's profiles

LAYERS: Rows = [
    {
        "time_stats.attn_pre_proj.median": 0.02 * scale,
        "time_stats.attn_post_proj.median": 0.016 * scale,
        "time_stats.mlp_up_proj.median": 0.08 * scale,
        "time_stats.mlp_down_proj.median": 0.04 * scale,
        "n_head": 32,
        "n_kv_head": 8,
        "n_embd": 4096,
        "n_expanded_embd": 14336,
        "vocab_size": 128256,
        "use_gated_mlp": True,
        "num_tokens": tokens,
        "num_tensor_parallel_workers": 2,
    }
    for tokens, scale in ((64, 1.0), (64, 1.2), (64, 3.0), (2048, 12.0))
]
SEQUENCES: Rows = [
    {
        "time_stats.attn_prefill.median": prefill,
        "time_stats.attn_decode.median": decode,
        "n_embd": 4096,
        "n_q_head": 32,
        "n_kv_head": 8,
        "block_size": 16,
        "num_tensor_parallel_workers": 2,
        "batch_size": batch,
        "prefill_chunk_size": chunk,
        "kv_cache_size": cached,
        "is_prefill": prefill is not None,
        "attention_backend": "AttentionBackend.FLASH_ATTENTION",
    }
    for prefill, decode, batch, chunk, cached in (
        (0.1, None, 1, 512, 0),
        (0.3, None, 1, 1024, 512),
        (None, 0.02, 1, 0, 1023),
        (None, 0.05, 16, 0, 1023),
    )
]
REDUCES: Rows = [
    {"time_stats.all_reduce.median": ms, "num_workers": 2, "size": size, "devices_per_node": node, "rank": 0}
    for ms, size, node in ((0.02, 4096, 2), (0.05, 4096, 1), (0.2, 16777216, 2))
]


def profiles(folder: Path, files: dict[str, Rows]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, rows in files.items():
        write(folder / f"{name}.csv", rows)
    return folder


def test_vidur_profiles(tmp_path: Path) -> None:
    files = {"mlp": LAYERS, "attention": SEQUENCES, "all_reduce": REDUCES, "other": [{"x": 1}]}
    folder = profiles(tmp_path / "a100", files)
    kernels = load_kernels(str(folder), H100, "vllm")
    gemm = kernels.table("gemm").filter(m=64)
    assert set(gemm.select("n", "k").rows()) == {(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)}
    assert gemm.filter(n=3072)["latency_s"].to_list() == pytest.approx([24e-6])  # the median of three
    prefill = kernels.table("prefill_attention").drop("kernel", "latency_s")
    assert prefill.rows() == [("bf16", 16, 4, 128, 0, 1, 512, 0), ("bf16", 16, 4, 128, 0, 1, 1024, 512)]
    decode = kernels.table("decode_attention")
    assert decode.select("batch", "context").rows() == [(1, 1024), (16, 1024)]
    assert decode["latency_s"].to_list() == pytest.approx([20e-6, 50e-6])
    assert kernels.table("all_reduce").select("gpus", "bytes").rows() == [(2, 4096), (2, 16777216)]
    assert kernels.table("all_reduce")["latency_s"][0] == pytest.approx(20e-6)


def test_one_file_of_vidur_is_recognised(tmp_path: Path) -> None:
    folder = profiles(tmp_path / "x", {"mlp": changed(LAYERS, 0, use_gated_mlp=False)})
    assert set(load_kernels(str(folder / "mlp.csv"), H100, "vllm").table("gemm")["n"]) == {3072, 4096, 14336, 7168}
    with pytest.raises(InputError, match="need a backend"):
        load_kernels(str(folder / "mlp.csv"), H100)


MICROSECONDS = [{name: value * 1e3 if "time_stats" in name else value for name, value in row.items()} for row in LAYERS]
VIDUR_REFUSALS: list[tuple[str, dict[str, Rows], str]] = [
    ("none", {"other": [{"x": 1}]}, r"no profile of Vidur; .*time_stats.mlp_up_proj.median"),
    ("column", {"mlp": without(LAYERS, "n_embd")}, r"mlp.csv, mlp, row 1: no column n_embd; needed are num_tokens"),
    ("no timer", {"attention": without(SEQUENCES, "is_prefill")}, r"no column is_prefill"),
    ("size", {"mlp": changed(LAYERS, 1, num_tokens=0)}, r"mlp.csv, mlp, row 3: num_tokens = '0'"),
    ("time", {"attention": changed(SEQUENCES, 1, **{"time_stats.attn_prefill.median": "nan"})}, r"row 3: .*= 'nan'"),
    ("uneven split", {"mlp": changed(LAYERS, 3, num_tensor_parallel_workers=5)}, r"mlp.csv, gemm, row 5: n = "),
    ("microseconds", {"mlp": MICROSECONDS}, r"mlp.csv, gemm, row \d: .* times slower than gpu h100 could be"),
    ("one batch", {"attention": SEQUENCES[:3]}, r"attention.csv, decode_attention, row 4: batch = 1 in all 1 rows"),
]


@pytest.mark.parametrize(
    ("files", "message"), [refusal[1:] for refusal in VIDUR_REFUSALS], ids=[r[0] for r in VIDUR_REFUSALS]
)
def test_vidur_refused(tmp_path: Path, files: dict[str, Rows], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_vidur(profiles(tmp_path / "h100", files), H100, "vllm")


# A package laid out like aiconfigurator-core

CHIP = {"mem_bw": 3.35e12, "mem_capacity": 85e9, "bfloat16_tc_flops": 989e12, "fp8_tc_flops": 1978e12, "power": 700}
NODE = {"num_gpus_per_node": 8, "inter_node_bw": 5e10, "intra_node_bw": 4.5e11, "pcie_bw": 6.4e10}
ATTENTION = {
    "num_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "beam_width": 1,
    "attn_dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16",
    "window_size": 0,
    "kernel_source": "fa3",
}
EXPERT = {
    "moe_dtype": "w4a16_mxfp4",
    "hidden_size": 2880,
    "inter_size": 2880,
    "topk": 4,
    "num_experts": 32,
    "moe_tp_size": 1,
    "moe_ep_size": 2,
    "distribution": "power_law_1.2",
}
LATENT = {"kv_cache_dtype": "fp8", "num_heads": 16, "batch_size": 2, "mla_dtype": "bfloat16", "kernel_source": "flash"}
DEEPEP = {"node_num": 2, "hidden_size": 7168, "num_topk": 8, "num_experts": 256, "kernel_source": "deepep"}
A2A = {
    "comm_backend": "trtllm_deepep_ll",
    "hidden_size": 7168,
    "topk": 8,
    "num_experts": 256,
    "ep_size": 8,
    "node_num": 1,
    "kernel_source": "deepep",
    "phase": "dispatch",
}


def multiply(m: int, ms: float, dtype: str = "bfloat16", kernel: str = "linear") -> dict[str, Any]:
    return {"gemm_dtype": dtype, "m": m, "n": 4096, "k": 4096, "kernel_source": kernel, "latency": ms}


def reduce(gpus: int, ms: float, kernel: str = "custom_graph") -> dict[str, Any]:
    keys = {"allreduce_dtype": "bfloat16", "num_gpus": gpus, "message_size": 1024}
    return {**keys, "kernel_source": kernel, "latency": ms}


def collective(name: str, gpus: int, ms: float, dtype: str = "half") -> dict[str, Any]:
    keys = {"op_name": name, "nccl_dtype": dtype, "num_gpus": gpus, "message_size": 4096}
    return {**keys, "kernel_source": "NCCL", "latency": ms}


def package(root: Path, files: dict[str, Rows]) -> Path:
    """`files`: path below data/h100_sxm without _perf.parquet, to rows; version 2.0 is the current one."""
    root.mkdir(exist_ok=True)
    slots = {"defaults": {backend: {"current": "2.0"} for backend in BACKENDS}}
    (root / "query_versions.yaml").write_text(yaml.safe_dump(slots))
    (root / "h100_sxm.yaml").write_text(yaml.safe_dump({"gpu": CHIP, "node": NODE}))
    for name, rows in files.items():
        path = root / "data" / "h100_sxm" / f"{name}_perf.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame(rows, infer_schema_length=None).write_parquet(path)
    return root


def read(tmp_path: Path, files: dict[str, Rows], backend: str = "vllm") -> Kernels:
    return load_package("h100", backend, package(tmp_path / "systems", files))


def test_package_gemm(tmp_path: Path) -> None:
    rows = [
        *(multiply(1, 0.016), multiply(1, 0.014), multiply(1, 0.015)),  # repeats: the median
        *(multiply(2, 0.02, kernel="a"), multiply(2, 0.018, kernel="b")),  # the fastest
        multiply(2, 0.02, dtype="fp8_block"),
        multiply(2, 0.03, dtype="w4afp8"),
        multiply(8192, 0.0347),  # ten times the peak
    ]
    kernels = read(tmp_path, {"gemm/vllm/2.0/gemm": rows})
    table = kernels.table("gemm")
    assert table.select("dtype", "m", "kernel").rows() == [
        ("bf16", 1, "linear"),
        ("bf16", 2, "b"),
        ("fp8_block", 2, "linear"),
    ]
    assert table["latency_s"].to_list() == pytest.approx([15e-6, 18e-6, 20e-6])
    assert kernels.notes == (
        "gemm: 1 rows of types without a name in DTYPE_BYTES (h100_sxm/gemm/vllm/2.0/gemm_perf.parquet)",
        "gemm: 1 rows faster than the GPU can be (h100_sxm/gemm/vllm/2.0/gemm_perf.parquet)",
    )
    assert kernels.provenance.licence == "Apache-2.0"


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [
        (("1.9", "2.0", "2.1"), "2.0"),
        (("1.9", "1.10", "2.1"), "1.10"),
        (("2.0rc15", "2.0rc9"), "2.0rc15"),
        (("2.2", "2.1"), "2.1"),
    ],
)
def test_the_current_version_counts_then_older_then_newer(
    tmp_path: Path, versions: tuple[str, ...], chosen: str
) -> None:
    files = {f"gemm/vllm/{version}/gemm": [multiply(m, 0.02) for m in (1, 2)] for version in versions}
    assert read(tmp_path, files).provenance.versions == {"gemm": chosen}


def test_package_attention(tmp_path: Path) -> None:
    prompts = [{**ATTENTION, "batch_size": 2, "isl": isl, "step": 0, "latency": 0.9} for isl in (512, 1024)]
    steps = [{**ATTENTION, "batch_size": 4, "isl": 1, "step": step, "latency": 0.02} for step in (1, 1023)]
    older = [{key: value for key, value in row.items() if key != "window_size"} for row in steps]
    files = {"attention/vllm/2.0/context_attention": prompts, "attention/vllm/2.0/generation_attention": older}
    kernels = read(tmp_path, files)
    prefill, decode = kernels.table("prefill_attention"), kernels.table("decode_attention")
    assert prefill.row(0) == ("bf16", 32, 8, 128, 0, 2, 512, 0, "fa3", pytest.approx(9e-4))
    assert decode.select("window", "batch", "context").rows() == [(0, 4, 2), (0, 4, 1024)]


def test_package_experts(tmp_path: Path) -> None:
    rows = [
        {**EXPERT, "num_tokens": tokens, "kernel_source": kernel, "latency": ms}
        for tokens, kernel, ms in ((64, "cutlass", 0.1), (64, "nongated", 0.06), (128, "cutlass", 0.12))
    ]
    table = read(tmp_path, {"moe/vllm/2.0/moe": rows}).table("experts")
    assert table.row(0)[:9] == ("mxfp4", 64, 2880, 2880, 32, 4, 1, 2, "power_law_1.2")
    assert table["latency_s"].to_list() == pytest.approx([1e-4, 1.2e-4])


def test_all_reduce_of_graphs_and_gpus_from_elsewhere(tmp_path: Path) -> None:
    files = {
        "comm/vllm/2.0/custom_allreduce": [reduce(2, 0.005), reduce(2, 0.003, kernel="custom_eager")],
        "comm/vllm/1.0/custom_allreduce": [reduce(2, 0.001), reduce(4, 0.006)],
        "comm/nccl/2.9/nccl": [
            *(collective("all_reduce", gpus, 0.02) for gpus in (4, 8)),
            collective("alltoall", 2, 0.02),
        ],
        "comm/nccl/2.10/nccl": [collective("all_reduce", 8, 0.03), collective("all_reduce", 8, 0.001, "int8")],
    }
    kernels = read(tmp_path, files)
    reduced = kernels.table("all_reduce")
    assert reduced.select("dtype", "gpus", "bytes").rows() == [
        *(("bf16", 2, 2048), ("bf16", 4, 2048), ("bf16", 8, 8192)),
    ]
    assert reduced["latency_s"].to_list() == pytest.approx([5e-6, 6e-6, 3e-5])
    assert kernels.provenance.versions["all_reduce"] == "2.0, 1.0, nccl 2.10"
    assert kernels.table("all_to_all")["latency_s"].to_list() == pytest.approx([2e-5])


def test_package_latent_attention_with_and_without_projections(tmp_path: Path) -> None:
    kernel = [{**LATENT, "isl": 512, "step": 0, "latency": 0.2}]
    module = [{**LATENT, "isl": 512, "step": 0, "latency": 0.5, "gemm_type": "fp8_block"}]
    bmm = [{"bmm_dtype": "fp8", "num_heads": 16, "num_tokens": 8, "op_name": "mla_gen_pre"}]
    files = {
        "mla/trtllm/2.0/context_mla": kernel,
        "mla/trtllm/2.0/mla_context_module": module,
        "mla_bmm/trtllm/2.0/mla_bmm": [{**row, "kernel_source": "bmm", "latency": 0.01} for row in bmm],
    }
    kernels = read(tmp_path, files, "trtllm")
    assert kernels.table("latent_prefill").drop("kernel", "latency_s").rows() == [
        ("fp8", "bf16", 16, 2, 512, 0, 0),
        ("fp8", "fp8_block", 16, 2, 512, 0, 1),
    ]
    assert kernels.table("latent_bmm").drop("kernel", "latency_s").rows() == [("fp8", 16, 8, "pre")]


def test_dispatch_is_in_microseconds(tmp_path: Path) -> None:
    normal = [
        {
            **DEEPEP,
            "num_token": 4096,
            "dispatch_sms": sms,
            "combine_sms": sms,
            "dispatch_transmit_us": us,
            "dispatch_notify_us": 20.0,
            "combine_transmit_us": us,
            "combine_notify_us": 0.0,
        }
        for sms, us in ((20, 600.0), (24, 500.0))
    ]
    low = [{**DEEPEP, "num_token": 64, "dispatch_avg_t_us": 40.0, "combine_avg_t_us": 60.0}]
    files = {"comm/sglang/2.0/wideep_deepep_normal": normal, "comm/sglang/2.0/wideep_deepep_ll": low}
    table = read(tmp_path, files, "sglang").table("dispatch")
    assert table.select("phase", "comm", "tokens", "ep", "nodes").rows() == [
        *(("combine", "deepep_ht", 4096, 16, 2), ("combine", "deepep_ll", 64, 16, 2)),
        *(("dispatch", "deepep_ht", 4096, 16, 2), ("dispatch", "deepep_ll", 64, 16, 2)),
    ]
    assert table["latency_s"].to_list() == pytest.approx([600e-6, 60e-6, 620e-6, 40e-6])


def test_dispatch_names_the_type_that_is_sent(tmp_path: Path) -> None:
    rows = [
        {**A2A, "num_tokens": 64, "comm_dtype": dtype, "latency": us}
        for dtype, us in (("bfloat16", 90.0), ("nvfp4", 60.0))
    ]
    table = read(tmp_path, {"comm/trtllm/1.5/moe_a2a": rows}, "trtllm").table("dispatch")
    assert table.select("comm", "latency_s").rows() == [
        ("deepep_ll", pytest.approx(90e-6)),
        ("deepep_ll_nvfp4", pytest.approx(60e-6)),
    ]


def test_a_difference_that_is_mostly_nought_is_no_table(tmp_path: Path) -> None:
    def scales(latencies: list[float]) -> Rows:
        keys = {"quant_dtype": "fp8", "k": 4096, "kernel_source": "scale"}
        return [{**keys, "m": 2**place, "latency": ms} for place, ms in enumerate(latencies)]

    files = {"computescale": scales([0.0, -0.001, 0.0, 0.002]), "scale_matrix": scales([0.002, 0.002, 0.003, 0.003])}
    kernels = read(tmp_path, {f"quantize/vllm/2.0/{name}": rows for name, rows in files.items()})
    assert set(kernels.table("quantize")["phase"]) == {"apply"}
    assert [note.split(" (")[0] for note in kernels.notes] == [
        "quantize: 3 rows without a positive time",
        "quantize: the other 1 rows",
    ]
    files["computescale"] = scales([0.0, -0.001, 0.002, 0.002])
    half = read(tmp_path, {f"quantize/vllm/2.0/{name}": rows for name, rows in files.items()})
    assert set(half.table("quantize")["phase"]) == {"apply", "scale"}


def test_scaling_a_matrix_is_elementwise_and_vllm_has_the_sizes_that_lack(tmp_path: Path) -> None:
    def scaled(m: int, ms: float, kernel: str = "scale", dtype: str = "fp8") -> dict[str, Any]:
        return {"quant_dtype": dtype, "m": m, "k": 4096, "kernel_source": kernel, "latency": ms}

    own = [scaled(1, 0.002), scaled(2, 0.003), scaled(4, 0.05, "sglang"), scaled(8, 0.05, dtype="nvfp4")]
    files = {"sglang/2.0": own, "vllm/1.0": [scaled(1, 0.001), scaled(4, 0.004)]}
    root = package(tmp_path / "systems", {f"quantize/{path}/scale_matrix": rows for path, rows in files.items()})
    found = _Reader(root, package_gpu("h100", root), "sglang").table("elementwise")
    assert found is not None
    assert found.select("bytes", "latency_s").rows() == [
        (m * 4096 * 3, pytest.approx(us * 1e-6)) for m, us in ((1, 2.0), (2, 3.0), (4, 4.0))
    ]


def test_elementwise_kernels_of_an_h100_are_left_out(tmp_path: Path) -> None:
    scaled = [{"quant_dtype": "fp8", "m": m, "k": 4096, "kernel_source": "a", "latency": 0.002} for m in (1, 64)]
    files = {"gemm/vllm/2.0/gemm": [multiply(1, 0.014), multiply(64, 0.016)], "quantize/vllm/2.0/scale_matrix": scaled}
    assert set(read(tmp_path, files).tables) == {"gemm", "quantize"}


def test_package_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = package(tmp_path / "systems", {})
    with pytest.raises(InputError, match="no measured kernel times of gpu l20: aiconfigurator-core has a100, b200"):
        load_package("l20", "vllm", root)
    with pytest.raises(InputError, match="no measured kernel times of backend tgi: choose one of vllm, trtllm, sglang"):
        load_package("h100", "tgi", root)
    with pytest.raises(InputError, match="h100_sxm: no table of backend vllm"):
        load_package("h100", "vllm", root)
    with pytest.raises(InputError, match=r"a100_sxm.yaml: cannot be read .* is it aiconfigurator-core 0.12.0"):
        load_package("a100", "vllm", root)
    incomplete = [{key: value for key, value in multiply(1, 0.02).items() if key != "k"}]
    with pytest.raises(InputError, match=r"gemm_perf.parquet: no column k; needed are gemm_dtype, m, n, k, kernel"):
        read(tmp_path, {"gemm/vllm/2.0/gemm": incomplete})
    seconds = [multiply(m, ms * 1e3) for m, ms in ((1, 0.014), (64, 0.016), (512, 0.03))]
    with pytest.raises(InputError, match=r"gemm_perf.parquet, gemm, row \d: .* times slower than gpu h100 could be"):
        read(tmp_path, {"gemm/vllm/2.0/gemm": seconds})
    (root / "data/h100_sxm/gemm/vllm/2.0/gemm_perf.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"gemm_perf.parquet: cannot be read"):
        load_package("h100", "vllm", root)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install '\.\[kernels\]'"):
        load_kernels("package", H100, "vllm")


# The package itself


def installed() -> Path:
    try:
        return package_root()
    except InputError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(("gpu", "backend"), [("h100", "vllm"), ("a100", "trtllm"), ("l40s", "sglang")])
def test_the_installed_package(gpu: str, backend: str) -> None:
    sound(gpu, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gpu", ["a100", "b200", "b300", "gb200", "gb300", "h100", "h200", "l40s"])
def test_every_gpu_and_backend_of_the_installed_package(gpu: str, backend: str) -> None:
    sound(gpu, backend)


def sound(gpu: str, backend: str) -> None:
    """Load the tables and check them by other means than the reader's."""
    kernels = load_package(gpu, backend, installed())
    hardware = package_gpu(gpu)
    assert {"gemm", "prefill_attention", "decode_attention", "experts", "all_reduce"} <= set(kernels.tables)
    for operation, table in kernels.tables.items():
        keys = list(OPERATIONS[operation])
        assert table.columns[: len(keys)] == keys
        assert not table.select(keys).is_duplicated().any()
        assert table.select(keys).null_count().sum_horizontal()[0] == 0
        assert (table["latency_s"] > 0).all()
        assert table["latency_s"].is_finite().all()
        for name in keys:
            if name in NAMES:
                assert not name.endswith("dtype") or set(table[name]) <= set(DTYPE_BYTES)
            else:
                assert table[name].dtype == pl.Int64
                assert int(table.select(pl.col(name).min()).item()) >= (0 if name in MAY_BE_ZERO else 1)
        assert not too_fast(operation, table, hardware).any()
    assert 0.5 < best_utilisation(kernels, hardware) < 1.0
    assert not any(note.startswith(("gemm", "prefill", "decode")) for note in kernels.notes if "types" not in note)


def best_utilisation(kernels: Kernels, gpu: Gpu) -> float:
    table = kernels.table("gemm").filter(dtype="bf16")
    flops = 2.0 * table["m"] * table["n"] * table["k"]
    return float((flops / table["latency_s"] / gpu.peak("bf16")).to_numpy().max())


def test_an_h100_as_published() -> None:
    """The datasheet of conf/gpu and the package's description of the same GPU agree."""
    described = package_gpu("h100", installed())
    assert described.bandwidth_bytes_s == H100.bandwidth_bytes_s
    assert described.peak("bf16") == H100.peak("bf16")
    assert described.link_bytes_s == H100.link_bytes_s


@pytest.mark.parametrize("slow", [2, 3])
def test_a_table_is_far_too_slow_if_half_of_its_rows_are(slow: int) -> None:
    seconds = [1e-5] * (5 - slow) + [1e-2] * slow
    rows = pl.DataFrame({"m": [1, 2, 4, 8, 16], "latency_s": seconds, "row": range(5)})
    rows = rows.with_columns(n=pl.lit(1024), k=pl.lit(1024), dtype=pl.lit("bf16"))
    with pytest.raises(InputError, match="half of the rows") if slow == 3 else nullcontext():
        require_plausible("gemm", rows, "table", H100)
