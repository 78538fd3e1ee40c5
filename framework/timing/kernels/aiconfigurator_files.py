"""The columns of aiconfigurator-core's files that make the rows of each operation: facts about its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from framework.errors import InputError
from framework.timing.kernels.table import NAMES
from framework.timing.profile import NODE_GPUS

# Left out are 4-bit integers times 8-bit activations (w4afp8): framework.system.gpu has no such type.
_DTYPES = {
    "bfloat16": "bf16",
    "half": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
    "int4_wo": "int4",
    "int8_wo": "int8_wo",
    "sq": "int8",
}
_US = 1e-6
_BF16_BYTES = 2


@dataclass(frozen=True)
class File:
    """One kind of file: its place, the column or expression of each key, which rows count, and their seconds."""

    family: str
    name: str
    columns: Mapping[str, str | pl.Expr]
    keep: pl.Expr | None = None
    folder: str | None = None  # folder to read instead of the backend's
    fills: Sequence[str] = ()  # rows count if no earlier row has the same values of these columns
    unless: str = ""  # names of kernels that are left out
    latency_s: pl.Expr = pl.col("latency") * 1e-3

    def rows(self, raw: pl.DataFrame, where: str) -> pl.DataFrame:
        """The file's rows that count, under the names of the schema; a data type without a name there is null.

        `raw` has the columns of the file `where`, and `gpus_per_node`. The column `row` of the result counts from 1.
        Raises InputError for a missing column.
        """
        if self.family == "attention" and "window_size" not in raw.columns:  # files older than windows
            raw = raw.with_columns(window_size=pl.lit(0, pl.Int64))
        missing = [name for name in self._needed() if name not in raw.columns]
        if missing:
            raise InputError(f"{where}: no column {missing[0]}; needed are {', '.join(self._needed())}")
        raw = raw.with_row_index("row", offset=1)
        if self.keep is not None:
            raw = raw.filter(self.keep)
        return raw.select(
            *(_key(name, column) for name, column in self.columns.items()),
            pl.col("row").cast(pl.Int64),
            kernel=pl.col("kernel_source"),
            latency_s=self.latency_s.cast(pl.Float64),
        )

    def _needed(self) -> list[str]:
        read = [*self.columns.values(), "kernel_source", self.latency_s, *([] if self.keep is None else [self.keep])]
        names = [[source] if isinstance(source, str) else source.meta.root_names() for source in read]
        return list(dict.fromkeys(name for several in names for name in several))


_HEADS = {
    "kv_dtype": "kv_cache_dtype",
    "heads": "num_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "window": "window_size",
    "batch": "batch_size",
}
_ELEMENTS = pl.col("message_size") * _BF16_BYTES
_EXPERTS: Mapping[str, str | pl.Expr] = {
    "dtype": "moe_dtype",
    "tokens": "num_tokens",
    "hidden": "hidden_size",
    "intermediate": "inter_size",
    "experts": "num_experts",
    "per_token": "topk",
    "tp": "moe_tp_size",
    "ep": "moe_ep_size",
    "distribution": "distribution",
}
# TensorRT-LLM's own kernels for experts on Blackwell, which FlashInfer provides to the other backends: if two tables
# measured them for one shape, they agree within a few per cent.
_SHARED_TYPES = ("fp8_block", "nvfp4", "w4a8_mxfp4_mxfp8")
_SHARED_KERNELS = "flashinfer_trtllm|min_latency|^moe_torch_flow$"


def _nccl(name: str) -> File:
    columns: dict[str, str | pl.Expr] = {"dtype": "nccl_dtype", "gpus": "num_gpus", "bytes": _ELEMENTS}
    keep = (pl.col("op_name") == name) & (pl.col("nccl_dtype") == "half")
    return File("comm", "nccl", columns, keep, folder="nccl")


def _latent(name: str, tokens: Mapping[str, str | pl.Expr], module: int) -> File:
    """Latent attention: bare kernels have one type, modules that of their projections."""
    dtype = "gemm_type" if module else "mla_dtype"
    sizes: dict[str, str | pl.Expr] = {"heads": "num_heads", "batch": "batch_size", **tokens}
    return File("mla", name, {"kv_dtype": "kv_cache_dtype", "dtype": dtype, **sizes, "module": pl.lit(module)})


# The hidden size of the models whose sparse attention was measured, by their architecture.
_HIDDEN = {"DeepseekV32ForCausalLM": 7168, "GlmMoeDsaForCausalLM": 6144}


def _sparse(name: str, tokens: Mapping[str, str | pl.Expr]) -> File:
    columns: dict[str, str | pl.Expr] = {
        "kv_dtype": "kv_cache_dtype",
        "dtype": "gemm_type",
        "hidden": pl.col("architecture").replace_strict(_HIDDEN, default=None, return_dtype=pl.Int64),
        "heads": "num_heads",
        "batch": "batch_size",
        **tokens,
    }
    return File("sparse_attention", name, columns)


# The kernels of the gated delta rule, by what they do; a decode's convolution and rule may be one kernel.
_DELTA_RULE = {"causal_conv1d_fn": "conv_prefill", "causal_conv1d_update": "conv_decode"}


def _linear() -> File:
    rule = pl.when(pl.col("phase") == "context").then(pl.lit("prefill")).otherwise(pl.lit("decode"))
    named = pl.col("kernel_source").replace_strict(_DELTA_RULE, default=None, return_dtype=pl.String)
    columns: dict[str, str | pl.Expr] = {
        "phase": named.fill_null(rule),
        "key_heads": "num_k_heads",
        "value_heads": "num_v_heads",
        "key_dim": "head_k_dim",
        "value_dim": "head_v_dim",
        "batch": "batch_size",
        "tokens": "seq_len",
    }
    return File("linear_attention", "gdn", columns)


def _quantize(name: str, phase: str) -> File:
    columns: dict[str, str | pl.Expr] = {"dtype": "quant_dtype", "m": "m", "k": "k", "phase": pl.lit(phase)}
    return File("quantize", name, columns)


def _scaling(folder: str | None) -> File:
    """Kernels that read a matrix in bf16 and write it in fp8."""
    moved = pl.col("m") * pl.col("k") * (_BF16_BYTES + 1)
    keep = (pl.col("quant_dtype") == "fp8") & (pl.col("kernel_source") != "sglang")
    return File("quantize", "scale_matrix", {"bytes": moved}, keep, folder, fills=() if folder is None else ("bytes",))


def _deepep(name: str, comm: str, phase: str, latency_us: pl.Expr, keep: pl.Expr | None = None) -> File:
    """Older files of the library DeepEP: dispatch and combine in one row, all GPUs of the nodes take part."""
    columns: dict[str, str | pl.Expr] = {
        "phase": pl.lit(phase),
        "comm": pl.lit(comm),
        "tokens": "num_token",
        "hidden": "hidden_size",
        "per_token": "num_topk",
        "experts": "num_experts",
        "ep": pl.col("node_num") * pl.col("gpus_per_node"),
        "nodes": "node_num",
    }
    return File("comm", name, columns, keep, latency_s=latency_us * _US)


def _deepep_files() -> list[File]:
    files = []
    for phase in ("dispatch", "combine"):
        # DeepEP communicates with 20 SMs unless set otherwise (deepseek-ai/DeepEP, README, "Buffer.set_num_sms").
        normal_us = pl.col(f"{phase}_transmit_us") + pl.col(f"{phase}_notify_us")
        files.append(_deepep("wideep_deepep_normal", "deepep_ht", phase, normal_us, keep=pl.col(f"{phase}_sms") == 20))
        files.append(_deepep("wideep_deepep_ll", "deepep_ll", phase, pl.col(f"{phase}_avg_t_us")))
    return files


def _spread_experts(name: str) -> File:
    """Kernels behind DeepEP, with whole experts on each GPU; routing is even, as copies of the popular experts
    make it.
    """
    columns = {**_EXPERTS, "distribution": pl.lit("balanced")}
    keep = (pl.col("distribution") == "uniform") & (pl.col("moe_ep_size") > NODE_GPUS)
    return File("moe", name, columns, keep)


# The type of the sent data is part of the library's name if it is not the default.
_COMM = pl.col("comm_backend").str.strip_prefix("trtllm_") + pl.when(
    pl.col("comm_dtype").is_in(["default", "bfloat16"])
).then(pl.lit("")).otherwise("_" + pl.col("comm_dtype"))
_PREFILL: Mapping[str, str | pl.Expr] = {"tokens": "isl", "prefix": "step"}
_DECODE: Mapping[str, str | pl.Expr] = {"context": pl.col("isl") + pl.col("step")}
# Operations that no version measured completely: what one lacks, by these columns, is taken from the next.
FILLED = {
    "all_reduce": ["gpus"],
    "all_gather": ["gpus"],
    "reduce_scatter": ["gpus"],
    "all_to_all": ["gpus"],
    "dispatch": ["phase", "comm", "hidden", "per_token", "experts", "ep", "nodes"],
}
FILES: Mapping[str, Sequence[File]] = {
    "gemm": [File("gemm", "gemm", {"dtype": "gemm_dtype", "m": "m", "n": "n", "k": "k"})],
    "prefill_attention": [
        File("attention", "context_attention", {**_HEADS, **_PREFILL}),
    ],
    "decode_attention": [
        File("attention", "generation_attention", {**_HEADS, **_DECODE}),
    ],
    "experts": [
        # Experts without a gate do two thirds of the work, so they are not a faster kernel of the same operation.
        File("moe", "moe", _EXPERTS, keep=~pl.col("kernel_source").str.contains("nongated")),
        File(
            "moe",
            "moe",
            _EXPERTS,
            keep=(pl.col("kernel_source") == "sglang_flashinfer_trtllm_moe") & pl.col("moe_dtype").is_in(_SHARED_TYPES),
            folder="sglang",
            fills=[name for name in _EXPERTS if name not in ("tokens", "distribution")],
            unless=_SHARED_KERNELS,
        ),
    ],
    # For a few tokens of each expert, and for many: if both were measured, the faster one counts.
    "spread_experts": [_spread_experts("wideep_generation_moe"), _spread_experts("wideep_context_moe")],
    "all_reduce": [
        File(
            "comm",
            "custom_allreduce",
            {"dtype": "allreduce_dtype", "gpus": "num_gpus", "bytes": _ELEMENTS},
            keep=~pl.col("kernel_source").str.ends_with("_eager"),
        ),
        _nccl("all_reduce"),
    ],
    "all_gather": [_nccl("all_gather")],
    "reduce_scatter": [_nccl("reduce_scatter")],
    "all_to_all": [_nccl("alltoall")],
    "dispatch": [
        File(
            "comm",
            "moe_a2a",
            {
                "phase": "phase",
                "comm": _COMM,
                "tokens": "num_tokens",
                "hidden": "hidden_size",
                "per_token": "topk",
                "experts": "num_experts",
                "ep": "ep_size",
                "nodes": "node_num",
            },
            latency_s=pl.col("latency") * _US,
        ),
        *_deepep_files(),
    ],
    "latent_prefill": [_latent("context_mla", _PREFILL, 0), _latent("mla_context_module", _PREFILL, 1)],
    "latent_decode": [_latent("generation_mla", _DECODE, 0), _latent("mla_generation_module", _DECODE, 1)],
    "sparse_prefill": [_sparse("dsa_context_module", _PREFILL)],
    "sparse_decode": [_sparse("dsa_generation_module", _DECODE)],
    "linear_attention": [_linear()],
    "latent_bmm": [
        File(
            "mla_bmm",
            "mla_bmm",
            {
                "dtype": "bmm_dtype",
                "heads": "num_heads",
                "tokens": "num_tokens",
                "phase": pl.col("op_name").str.strip_prefix("mla_gen_"),
            },
        )
    ],
    # Scaling a matrix to fp8 is an elementwise kernel; in SGLang's tables it is ten times slower than in others.
    "elementwise": [_scaling(None), _scaling("vllm")],
    "quantize": [_quantize("computescale", "scale"), _quantize("scale_matrix", "apply")],
}


def _key(name: str, column: str | pl.Expr) -> pl.Expr:
    source = pl.col(column) if isinstance(column, str) else column
    if name.endswith("dtype"):
        source = source.replace_strict(_DTYPES, default=None, return_dtype=pl.String)
    return source.cast(pl.String if name in NAMES else pl.Int64).alias(name)
