"""Chunks behind prefixes in sparse attention, composed from whole prompts, against measured modules.

    python -m experiments.validation.steps.prefixes

SGLang's modules of DeepSeek-V3.2 and GLM-5 were measured behind prefixes on five GPUs (aiconfigurator-core 0.12.0). No
profile has these rows. A chunk of 2,048 tokens or more, alone, behind 4,096 or more, is composed in two ways: by the
difference between whole prompts that end where it ends and where it begins, as profiles have it, and by the share of
its pairs in a prompt that attends to everything. It needs `pip install '.[kernels]'`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from framework.cli.arguments import configured
from framework.cli.command import Arguments, command
from framework.cli.terminal import tell
from framework.timing.kernels.attention_sparse import SparseModule
from framework.timing.kernels.operations import Operations
from framework.timing.kernels.read_aiconfigurator import load_package

_GPUS, _MODELS, _SPLITS = ("h200", "b200", "b300", "gb200", "gb300"), ("deepseek_v32", "glm_5"), (1, 2, 4, 8)
_DTYPE, _KV_DTYPE = "fp8_block", "fp8"
_LEAST_TOKENS, _LEAST_PREFIX = 2048, 4096
_ENDS = (2**14, 2**16, 163_840)  # of a chunk: of the tables of whole prompts, beyond them, of the context


@command(__doc__, keys={})
def main(arguments: Arguments) -> None:
    """Print the errors of both by GPU, model and the end of a chunk."""
    frames = [frame for gpu in _GPUS for model in _MODELS for frame in compared(gpu, model)]
    rows = pl.concat(frames).filter(pl.col("end") <= _ENDS[-1])
    reach = pl.lit(_ENDS[-1])
    for end in reversed(_ENDS):
        reach = pl.when(pl.col("end") <= end).then(pl.lit(end)).otherwise(reach)
    rows = rows.with_columns(reach.alias("ends"))
    for names in (("ends",), ("gpu", "model", "ends")):
        for line in rows.group_by(names, maintain_order=True).agg(*_errors()).sort("ends").iter_rows(named=True):
            place = ", ".join((*(line[name] for name in names[:-1]), f"up to {line['ends']:,}"))
            shown = [f"{way} {line[way]:+.1f} % ({line[f'{way}_mape']:.1f})" for way in ("difference", "share")]
            tell(f"{place}: {line['count']} chunks, median error (mean absolute): {', '.join(shown)}")


def compared(gpu: str, name: str) -> Iterator[pl.DataFrame]:
    """For each split of the heads the chunks with `end` in tokens, and both predictions over the measured time."""
    kernels = load_package(gpu, "sglang")
    parts = configured([f"gpu={gpu}", f"model={name}"], ["gpu", "model"])
    model = replace(parts["model"], dtype=_DTYPE, kv_dtype=_KV_DTYPE)
    behind = (pl.col("tokens") >= _LEAST_TOKENS) & (pl.col("prefix") >= _LEAST_PREFIX) & (pl.col("batch") == 1)
    kind = (pl.col("hidden") == model.hidden) & (pl.col("dtype") == _DTYPE) & (pl.col("kv_dtype") == _KV_DTYPE)
    table = kernels.table("sparse_prefill").filter(behind & kind)
    for tp in _SPLITS:
        rows = table.filter(pl.col("heads") == model.heads // tp)
        if rows.is_empty():
            continue
        module = SparseModule(Operations(kernels, parts["gpu"]), model, tp)
        chunk, prefix = (rows[column].cast(pl.Float64).to_numpy() for column in ("tokens", "prefix"))
        measured_s = rows["latency_s"].to_numpy() * model.layers
        whole_s, before_s = (module.prefill_s(np.ones(1), tokens) for tokens in (prefix + chunk, prefix))
        flat_s = module.projections_s(chunk)
        ratios = {
            "difference": (flat_s + whole_s - before_s) / measured_s,
            "share": (flat_s + whole_s * (1.0 - (prefix / (prefix + chunk)) ** 2)) / measured_s,
        }
        yield pl.DataFrame({"gpu": gpu, "model": name, "end": prefix + chunk, **ratios})


def _errors() -> Iterator[pl.Expr]:
    yield pl.len().alias("count")
    for way in ("difference", "share"):
        yield (100 * (pl.col(way).median() - 1)).alias(way)
        yield (100 * (pl.col(way) - 1).abs().mean()).alias(f"{way}_mape")


if __name__ == "__main__":
    main.start()
