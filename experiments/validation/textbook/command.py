"""Effects that textbooks state, measured: seconds of work, three tables.

    python -m experiments.validation.textbook requests=500

Step times of decoding are affine in the batch; continuous batching gains on static batching with the spread of output
lengths; the size of prefill chunks trades time to first token against stalls. One H100 serves Llama-3.1-8B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hydra.utils import instantiate
from numpy.typing import NDArray
from omegaconf import OmegaConf
from rich import box
from rich.table import Table

from framework.cli.command import Arguments, command
from framework.cli.conf import CONF
from framework.cli.terminal import results_console
from framework.engine.setup.config import EngineConfig
from framework.metrics.invariants import check_result
from framework.metrics.slo import Slo
from framework.metrics.summary import evaluate
from framework.metrics.usage import kv_fill
from framework.policy import Policy
from framework.result import Result
from framework.simulate import simulate
from framework.system.cluster import mixed
from framework.timing.measured import Measured
from framework.workload import Workload
from policies.chunked import Chunked
from policies.continuous import Continuous
from policies.orca import Orca
from policies.static import Static
from traces.drawn.distributions import Distribution

_MODEL, _GPU = "llama3_8b", "h100"
_SERVED = "Llama-3.1-8B on one H100"
_SLO = Slo()

# A served 7B model: requests in a batch, seconds a token (a textbook's figures).
BATCH_POINTS = ((1, 0.030), (8, 0.035), (32, 0.045), (64, 0.060))

SPREADS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)  # coefficients of variation of output lengths
_PROMPT_TOKENS, _OUTPUT_TOKENS, _BATCH = 256, 256.0, 32

CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192)  # tokens of a step
_LONG_PROMPT_TOKENS, _RATE = 2000.0, 4.0


@dataclass(frozen=True)
class HeldOut:
    """The point at `batch`, in seconds a token, as measured and as an affine fit to the other three predicts it."""

    batch: int
    measured_s: float
    base_s: float
    per_sequence_s: float

    @property
    def predicted_s(self) -> float:
        return self.base_s + self.per_sequence_s * self.batch

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True)
class Spread:
    """Output tokens per second at saturation, by policy; `cv`: of output lengths, deviation / mean."""

    cv: float
    static: float
    iteration_level: float  # rate with the reservations of static batching
    continuous: float
    reserved_fill: float  # share of reserved KV that holds tokens
    paged_fill: float

    @property
    def gain(self) -> float:
        return self.continuous / self.static


@dataclass(frozen=True)
class ChunkSize:
    """Latencies in seconds if a step holds `tokens` tokens; `stall_s` is the mean over requests of the worst gap."""

    tokens: int
    ttft_p50_s: float
    ttft_p99_s: float
    tbt_p50_s: float
    tbt_p99_s: float
    stall_s: float
    throughput: float


def held_out() -> list[HeldOut]:
    """Each point, predicted by the least-squares line through the other three."""
    found = []
    for batch, measured_s in BATCH_POINTS:
        others = np.array([point for point in BATCH_POINTS if point[0] != batch])
        slope_s, base_s = np.polyfit(others[:, 0], others[:, 1], 1)
        found.append(HeldOut(batch, measured_s, float(base_s), float(slope_s)))
    return found


def spread(cv: float, requests: int) -> Spread:
    """The throughput if all requests wait from the start, at most 32 are served at once, and memory suffices
    for that.
    """
    lengths = (
        Distribution("fixed", mean=_OUTPUT_TOKENS) if cv == 0 else Distribution("lognormal", mean=_OUTPUT_TOKENS, cv=cv)
    )
    outputs = _tokens(lengths, requests, seed=1)
    workload = Workload(np.zeros(requests), np.full(requests, _PROMPT_TOKENS), outputs)
    longest = int(workload.input_tokens[0] + outputs.max())
    engine = EngineConfig(max_batch=_BATCH)
    runs = [_serve(workload, engine, policy) for policy in (Static(longest), Orca(longest), Continuous())]
    rates = [float(evaluate(run, _SLO).summary["output_throughput"]) for run in runs]
    return Spread(cv, *rates, *(kv_fill(run) or 0.0 for run in runs[1:]))


def chunk_size(tokens: int, requests: int) -> ChunkSize:
    """The latencies of prompts of 2000 tokens and outputs of 256 on average, four a second, in steps of at most
    `tokens` tokens.
    """
    gaps_s = np.random.default_rng(2).exponential(1 / _RATE, requests)
    prompts = _tokens(Distribution("lognormal", mean=_LONG_PROMPT_TOKENS, cv=1.0, high=32768), requests, seed=3)
    outputs = _tokens(Distribution("lognormal", mean=_OUTPUT_TOKENS, cv=1.0, high=4096), requests, seed=4)
    workload = Workload(np.cumsum(gaps_s), prompts, outputs)
    served = evaluate(_serve(workload, EngineConfig(token_budget=tokens), Chunked()), _SLO)
    summary = {name: float(value) / 1e3 for name, value in served.summary.items() if name.endswith("_ms")}
    return ChunkSize(
        tokens=tokens,
        ttft_p50_s=summary["median_ttft_ms"],
        ttft_p99_s=summary["p99_ttft_ms"],
        tbt_p50_s=summary["median_itl_ms"],
        tbt_p99_s=summary["p99_itl_ms"],
        stall_s=float(served.requests["tbt_max_s"].mean()),  # type: ignore[arg-type]
        throughput=float(served.summary["output_throughput"]),
    )


def balance(sizes: Sequence[ChunkSize]) -> ChunkSize:
    """The size at which P99 of TTFT and the mean stall, each as a ratio to its least, have the smallest product."""
    return min(sizes, key=lambda size: size.ttft_p99_s * size.stall_s)


def _tokens(lengths: Distribution, count: int, seed: int) -> NDArray[np.int64]:
    return np.maximum(1, np.rint(lengths.sample(count, np.random.default_rng(seed)))).astype(np.int64)


def _part(group: str, name: str) -> Any:
    return instantiate(OmegaConf.load(CONF / group / f"{name}.yaml"))


def _serve(workload: Workload, engine: EngineConfig, policy: Policy) -> Result:
    gpu = _part("gpu", _GPU)
    result = simulate(
        replace(workload, name="textbook"), mixed(1, gpu), _part("model", _MODEL), Measured(), engine, policy
    )
    check_result(result)
    return result


def _table(headings: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def fit_table(points: Sequence[HeldOut]) -> Table:
    """Predicted against measured."""
    table = _table(("batch", "measured\nms", "predicted\nms", "error", "fit to the others"))
    for point in points:
        fit = f"{1e3 * point.base_s:.1f} + {1e3 * point.per_sequence_s:.3f} B ms"
        times = (f"{1e3 * point.measured_s:.0f}", f"{1e3 * point.predicted_s:.1f}")
        table.add_row(str(point.batch), *times, f"{100 * point.error:+.1f} %", fit)
    return table


def spread_table(spreads: Sequence[Spread]) -> Table:
    """Throughput of three ways to batch, by the spread of output lengths."""
    ways = ("static\n", "iteration-level,\nreserved", "continuous,\npaged")
    table = _table(("CV of\noutputs", *ways, "gain\n", "KV filled,\nreserved", "\npaged"))
    for one in spreads:
        rates = (f"{rate:,.0f}" for rate in (one.static, one.iteration_level, one.continuous))
        fills = (f"{100 * fill:.0f} %" for fill in (one.reserved_fill, one.paged_fill))
        table.add_row(f"{one.cv:.2f}", *rates, f"{one.gain:.2f} ×", *fills)
    return table


def chunk_table(sizes: Sequence[ChunkSize]) -> Table:
    """Latencies by the tokens of a step, with the balance marked."""
    best = balance(sizes)
    waits, gaps = ("TTFT s\nP50", "\nP99"), ("TBT ms\nP50", " \nP99", "worst gap\nmean ms")
    table = _table(("tokens\nof a step", *waits, *gaps, "out\ntok/s"))
    for one in sizes:
        cells = [f"{wait_s:.2f}" for wait_s in (one.ttft_p50_s, one.ttft_p99_s)]
        cells += [f"{1e3 * gap_s:.1f}" for gap_s in (one.tbt_p50_s, one.tbt_p99_s, one.stall_s)]
        mark, style = ("▸ ", "bold") if one is best else ("", None)
        table.add_row(f"{mark}{one.tokens}", *cells, f"{one.throughput:,.0f}", style=style)
    return table


@command(__doc__, keys={"requests": "of each run, 2000 by default"})
def main(arguments: Arguments) -> None:
    """Measure and print."""
    requests = arguments.whole("requests", 2000)
    console = results_console()
    console.print("Seconds a token are affine in the batch: three points predict the fourth (a served 7B model)")
    console.print(fit_table(held_out()))
    console.print(f"Output tok/s at saturation by the spread of output lengths ({_BATCH} at once, {_SERVED})")
    console.print(spread_table([spread(cv, requests) for cv in SPREADS]))
    console.print(f"Chunk size trades TTFT against stalls ({_RATE:g} req/s, {_SERVED}); where they balance: ▸")
    console.print(chunk_table([chunk_size(tokens, requests) for tokens in CHUNKS]))
