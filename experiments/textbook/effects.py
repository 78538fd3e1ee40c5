"""Effects that textbooks state, simulated: idle seats of static batches, what continuous batching gains, chunk sizes,
the transfer of KV, and what the targets of 2025 leave of a GPU. One H100 serves Llama-3.1-8B without a server's own
time, so that an effect stands alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.tune.base import Configuration
from framework.metrics.summary import Evaluation, evaluate
from framework.metrics.usage import kv_fill
from framework.result import Result
from framework.run.compose import compose

SPREADS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)  # coefficients of variation of output lengths
BATCH = 32
CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192)  # tokens of a step
RATE = 4.0  # requests/s of the chunk sizes
TARGET_RATES = (2.0, 8.0, 32.0)  # requests/s
_PROMPT_TOKENS, _OUTPUT_TOKENS = 256, 256
_AT_ONCE = 1e6  # requests/s
_SHARED = ("trace=synthetic", "server=none", "engine.prefix_cache=false")


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
class Idle:
    """A static batch of `BATCH` requests: seconds for which seats idle, summed over them.

    `said_s`: sum of (T_max - T_i) x TPOT, T in tokens and TPOT that of the longest; `simulated_s`: from the end of each
    request to that of the last.
    """

    cv: float
    tpot_s: float
    said_s: float
    simulated_s: float
    share: float  # of all seats' time


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


@dataclass(frozen=True)
class Target:
    """The targets of 2025 at `rate` requests/s: shares of requests, of the GPU's time, bandwidth and KV memory."""

    rate: float
    ttft_p90_s: float
    tpot_p90_s: float
    kept: float
    busy: float
    mbu: float
    kv: float


def spread(cv: float, requests: int) -> Spread:
    """The throughput if all requests wait from the start, at most 32 are served at once, and memory suffices
    for that.
    """
    load = _batch_of(cv, requests)
    longest = {"policy.reserve_tokens": None}  # of the trace
    runs = [_served(policy, load | own) for policy, own in (("static", longest), ("orca", longest), ("continuous", {}))]
    rates = [float(evaluation.summary["output_throughput"]) for _, evaluation in runs]
    return Spread(cv, *rates, *(kv_fill(result) or 0.0 for result, _ in runs[1:]))


def idle(cv: float) -> Idle:
    """One batch, which waits from the start."""
    result, evaluation = _served("static", _batch_of(cv, BATCH))
    tokens, end_s = result.workload.output_tokens, result.requests["end_s"]
    first_s = result.requests["first_token_s"]
    last = int(tokens.argmax())
    tpot_s = float((end_s[last] - first_s[last]) / (tokens[last] - 1))
    said_s = float((tokens.max() - tokens).sum() * tpot_s)
    simulated_s = float((end_s.max() - end_s).sum())
    return Idle(cv, tpot_s, said_s, simulated_s, simulated_s / (BATCH * float(evaluation.summary["duration"])))


def chunk_size(tokens: int, requests: int) -> ChunkSize:
    """The latencies of prompts of 2000 tokens and outputs of 256 on average, four a second, in steps of at most
    `tokens` tokens.
    """
    load = {"trace.input.mean": 2000, "trace.output.mean": _OUTPUT_TOKENS, "trace.output.high": 4096}
    rate = {"trace.requests": requests, "trace.arrivals.rate": RATE}
    _, served = _served("chunked", {"engine.token_budget": tokens, **load, **rate})
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


def transfer_s(link_bytes_s: float, prompt: int) -> float:
    """Seconds from the end of a prefill to that of the copy of its KV, alone on links of that speed."""
    sizes = {"trace.input": {"law": "fixed", "mean": prompt}, "trace.output": {"law": "fixed", "mean": 2}}
    result, _ = _served("distserve", {"trace.requests": 1, "cluster.link_bandwidth_bytes_s": link_bytes_s} | sizes)
    return float(result.requests["transfer_end_s"][0] - result.requests["prefill_end_s"][0])


def target(rate: float, requests: int) -> Target:
    """Prompts of 1,155 and outputs of 211 tokens on average at that rate, under `slo=targets_2025`."""
    lengths = {"trace.input.mean": 1155, "trace.output.mean": 211, "trace.arrivals.rate": rate}
    result, evaluation = _served("chunked", {"trace.requests": requests, **lengths}, ("slo=targets_2025",))
    summary = evaluation.summary
    return Target(
        rate,
        summary["p90_ttft_ms"] / 1e3,
        summary["p90_tpot_ms"] / 1e3,
        summary["slo_attainment"],
        float(result.instances["busy_s"][0]) / result.end_s,
        summary["mbu"],
        summary["kv_utilization"],
    )


def _batch_of(cv: float, requests: int) -> dict[str, Any]:
    outputs = {"law": "lognormal" if cv else "fixed", "mean": _OUTPUT_TOKENS, "cv": cv, "high": None}
    return {
        "engine.max_batch": BATCH,
        "trace.requests": requests,
        "trace.arrivals.rate": _AT_ONCE,
        "trace.input": {"law": "fixed", "mean": _PROMPT_TOKENS},
        "trace.output": outputs,
    }


def _served(policy: str, settings: Mapping[str, Any], words: tuple[str, ...] = ()) -> tuple[Result, Evaluation]:
    config = _base(policy, words).copy()
    for name, value in settings.items():
        OmegaConf.update(config, name, value)
    experiment = compose(config)
    result = experiment.run()
    return result, evaluate(result, experiment.slo)


@cache
def _base(policy: str, words: tuple[str, ...]) -> DictConfig:
    pools = () if policy != "distserve" else ("cluster.prefill=1", "cluster.decode=1")
    instances = ("cluster.instances=1",) if not pools else ()
    return Configuration((f"policy={policy}", *_SHARED, *pools, *instances, *words)).config
