"""How far step times are from measured layers: `python -m experiments.validation.steps gpu=h100`

The tables are of llama3_8b on one GPU, as `python -m framework.timing.microbench` writes them: `layer.steps.csv` has
whole layers, `fa3` and `fa2` the attention of FlashAttention 3 (fa3-fwd 0.0.3) and of PyTorch, `streams.steps.csv` two
streams on one GPU, `launch` launches. The JSON next to each names card, driver, versions, date and clocks. A layer here
is its matrix products and its attention. Its time, times the layers, is compared with those parts of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from framework.checks import require_choice
from framework.cli.arguments import configured
from framework.cli.command import Arguments, command
from framework.report import show_step
from framework.system.model import Model

MODEL = "llama3_8b"
GPUS = ("h100", "h200")
BACKENDS = ("vllm", "trtllm", "sglang")
_KEYS = {
    "gpu": "h100 or h200, whose tables lie next to this module; h100 by default",
    "backend": "of the profile that is compared: vllm, trtllm or sglang; vllm by default",
}
_PARTS = ("gemm", "prefill_attention", "decode_attention")
_HERE = Path(__file__).parent
_WORK = ("tokens", "prefix", "decodes", "context")
_KINDS = ("decodes", "prompt", "chunk behind prefix", "mixed")


def step_arguments(row: Mapping[str, Any]) -> list[str]:
    """The arguments of `show_step` for the step of a row."""
    arguments = [f"prefill={row['tokens']}@{row['prefix']}"] if row["tokens"] else []
    return arguments + ([f"decode={row['decodes']}x{row['context']}"] if row["decodes"] else [])


def kind(row: Mapping[str, Any]) -> str:
    """The kind of step of a row."""
    if not row["tokens"]:
        return _KINDS[0]
    return _KINDS[3] if row["decodes"] else _KINDS[2] if row["prefix"] else _KINDS[1]


def layers(gpu: str, backend: str, layer_count: int) -> pl.DataFrame:
    """Each measured layer: `measured_ms` and `profile_ms` of all layers, and their `ratio`."""
    rows = []
    for row in _table(gpu, "layer.steps").iter_rows(named=True):
        arguments = show_step.main.read([f"model={MODEL}", f"gpu={gpu}", f"backend={backend}", *step_arguments(row)])
        step = show_step.run(arguments)
        measured_ms = layer_count * row["latency_us"] / 1e3
        profile_ms = sum(step.parts_ms[part] for part in _PARTS)
        work = {name: row[name] for name in _WORK}
        rows.append({"kind": kind(row), **work, "measured_ms": measured_ms, "profile_ms": profile_ms})
    return pl.DataFrame(rows).with_columns(ratio=pl.col("profile_ms") / pl.col("measured_ms"))


def one_kernel(gpu: str) -> pl.DataFrame:
    """Attention of a chunk and of decodes in one call, over the sum of the two calls, `ratio`, by library."""
    apart = _table(gpu, "fa3").filter(pl.col("longest").is_null())
    chunks = apart.filter(op="prefill_attention", batch=1).select("tokens", "prefix", chunk_us="latency_us")
    decodes = apart.filter(op="decode_attention").select("context", decodes="batch", decodes_us="latency_us")
    found = []
    for library in ("fa3", "fa2"):
        mixed = _table(gpu, f"{library}.steps").select(*_WORK, "latency_us")
        both = mixed.join(chunks, on=["tokens", "prefix"]).join(decodes, on=["decodes", "context"])
        ratio = pl.col("latency_us") / (pl.col("chunk_us") + pl.col("decodes_us"))
        found.append(both.with_columns(kind=pl.lit(library), ratio=ratio))
    return pl.concat(found)


def slowdowns(gpu: str) -> pl.DataFrame:
    """The factor by which a layer takes longer on `percent` of the SMs than on all: `alone`, or `concurrent` with
    another.

    `ratio` is `concurrent` over `alone`: the cost of the other stream beyond its multiprocessors.
    """
    own = pl.when(stream="prefill")
    rows = _table(gpu, "streams.steps").select(*_WORK, "stream", "percent", "latency_us")
    keys = [own.then(pl.col("tokens")).otherwise(pl.col("decodes")), own.then(pl.col("prefix")).otherwise("context")]
    rows = rows.with_columns(size=keys[0], length=keys[1])
    single = (pl.col("tokens") == 0) | (pl.col("decodes") == 0)
    by = ["stream", "size", "length"]
    whole = rows.filter(single, percent=100).select(*by, whole_us="latency_us")
    part = rows.filter(single).select(*by, "percent", part_us="latency_us").join(whole, on=by)
    part = part.with_columns(alone=pl.col("part_us") / pl.col("whole_us"))
    both = rows.filter(~single).select(*by, "percent", "latency_us").join(part, on=[*by, "percent"], how="right")
    concurrent, ratio = pl.col("latency_us") / pl.col("whole_us"), pl.col("latency_us") / pl.col("part_us")
    return both.with_columns(concurrent=concurrent, ratio=ratio)


def spread(name: str, ratios: pl.Series) -> str:
    """A line: the number of ratios, their median, the 90th percentile of their errors, and the worst."""
    known = ratios.to_numpy()
    off = np.exp(np.abs(np.log(known)))
    figures = f"{np.median(known):8.2f}{np.percentile(off, 90):9.2f}x{off.max():9.2f}x"
    return f"{name:<26}{len(ratios):>4}{figures}   {known.min():.2f} to {known.max():.2f}"


def _report(gpu: str, backend: str, layer_count: int) -> Iterator[str]:
    yield f"{MODEL} on one {gpu}, kernels of {backend}: products and attention of a step, profile / measured"
    yield f"{'':<26}{'':>4}{'median':>8}{'p90 off':>10}{'worst':>10}   from, to"
    steps = layers(gpu, backend, layer_count)
    yield from (spread(name, steps.filter(kind=name)["ratio"]) for name in _KINDS)
    yield "\nattention of chunk and decodes in one kernel / in two of FlashAttention 3"
    mixed = one_kernel(gpu)
    names = {"fa3": "FlashAttention 3", "fa2": "FlashAttention 2 (PyTorch)"}
    yield from (spread(names[name], mixed.filter(kind=name)["ratio"]) for name in names)
    yield "\ntwo streams: times as long as alone on all multiprocessors (median; least to most)"
    yield f"{'':<10}{'percent':>8}{'alone':>22}{'with the other':>24}"
    found = slowdowns(gpu)
    for (stream, percent), rows in sorted(found.group_by("stream", "percent"), key=lambda pair: pair[0]):
        yield f"{stream!s:<10}{percent!s:>8}{_range(rows['alone']):>22}{_range(rows['concurrent']):>24}"
    yield "\nlaunch of the smallest kernel, us"
    for row in _table(gpu, "launch.steps").iter_rows(named=True):
        yield f"{row['mode']:<10}{row['kernels']:>8}{row['latency_us']:>10.2f}"


def _range(values: pl.Series) -> str:
    known = values.drop_nulls().to_numpy()
    return f"{np.median(known):.2f} ({known.min():.2f} to {known.max():.2f})" if len(known) else "-"


def _table(gpu: str, name: str) -> pl.DataFrame:
    return pl.read_csv(_HERE / gpu / f"{name}.csv")


def _layers() -> int:
    model: Model = configured([f"model={MODEL}"], ["model"])["model"]
    return model.layers


@command(__doc__, keys=_KEYS)
def main(arguments: Arguments) -> None:
    """Run the command line. Raises InputError for a user's mistake."""
    gpu, backend = arguments.own.get("gpu", GPUS[0]), arguments.own.get("backend", BACKENDS[0])
    require_choice("gpu", gpu, GPUS)
    require_choice("backend", backend, BACKENDS)
    print(*_report(gpu, backend, _layers()), sep="\n")
