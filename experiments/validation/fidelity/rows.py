"""Measured deployments for comparison with the simulator, each under one load, and reasons to doubt some of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from framework.system.parallelism import Parallelism

DENSE = ("llama3_8b", "llama3_70b", "qwen3_32b")
# Each GPU, and an older one of the same kernels with less memory, which no server runs faster on.
_OLDER = {"h200": "h100", "b300": "b200", "gb300": "gb200"}
_SLOWER = 2.0  # TTFT over that of the older GPU that no difference of versions explains
_SPECULATIVE = 0.87  # repeats of one version and load differ by less than 8 % in nine of ten cases


@dataclass(frozen=True)
class Pool:
    """Equal instances of one role: `workers` of them, each laid out as `parallelism`."""

    workers: int
    parallelism: Parallelism

    @property
    def gpus(self) -> int:
        """GPUs of the pool."""
        return self.workers * self.parallelism.gpus

    def __str__(self) -> str:
        return f"{self.workers}x{self.parallelism}"


@dataclass(frozen=True)
class Row:
    """One measurement of one deployment under one load.

    `mode`: agg (one instance, `prefill` and `decode` are the same pool) or disagg. `prompts` sequences of `shortest` x
    nominal to nominal length, drawn uniformly, `concurrency` in flight over the whole deployment. `ttft_s`, `tpot_s`:
    means as published. `doubts`: reasons to report scores also without this row. `listed`: the layout that the source
    states, if the deployment had another.
    """

    key: str
    model: str
    gpu: str
    backend: str
    version: str
    dtype: str
    expert_dtype: str
    mode: str
    prefill: Pool
    decode: Pool
    isl: int
    osl: int
    concurrency: int
    prompts: int
    shortest: float
    ttft_s: float
    tpot_s: float
    family: str
    date: str
    doubts: tuple[str, ...] = ()
    listed: str = ""

    @property
    def parallelism(self) -> Parallelism:
        """That of the instance that generates."""
        return self.decode.parallelism

    @property
    def kind(self) -> str:
        """Dense or moe."""
        return "dense" if self.model in DENSE else "moe"

    @property
    def gpus(self) -> int:
        """GPUs of the deployment."""
        return self.decode.gpus if self.mode == "agg" else self.prefill.gpus + self.decode.gpus

    @property
    def layout(self) -> str:
        """Instances and their parallelism, for reading and grouping."""
        return str(self.decode) if self.mode == "agg" else f"{self.prefill} + {self.decode}"

    @property
    def deployment(self) -> str:
        """What a fold must not divide: model, system, backend, precision, parallelism; not version, load, lengths."""
        return "/".join((self.model, self.gpu, self.backend, self.dtype, self.expert_dtype, self.layout))

    @property
    def output_tokens(self) -> float:
        """Mean output length."""
        return self.osl * (1 + self.shortest) / 2

    @property
    def tokens_s_gpu(self) -> float:
        """Output tokens per second and GPU, see `throughput`."""
        return throughput(self, self.ttft_s, self.tpot_s)


def throughput(row: Row, ttft_s: float, tpot_s: float) -> float:
    """Output tokens per second and GPU that `row`'s load would yield at these latencies (Little's law).

    A closed loop of c requests that each last ttft + (o - 1) tpot completes c / (ttft + (o - 1) tpot) a second.
    """
    lasting_s = ttft_s + (row.output_tokens - 1) * tpot_s
    return row.concurrency * row.output_tokens / lasting_s / row.gpus


def doubted(rows: Sequence[Row]) -> list[Row]:
    """The rows with their doubts: evidence within the data, no prediction."""
    slowest: dict[tuple[object, ...], float] = {}
    first_s: dict[tuple[object, ...], float] = {}
    for row in rows:
        slowest[_load_of(row)] = max(row.tpot_s, slowest.get(_load_of(row), 0.0))
        first_s[_load_on(row, row.gpu)] = max(row.ttft_s, first_s.get(_load_on(row, row.gpu), 0.0))
    return [replace(row, doubts=_doubts(row, slowest[_load_of(row)]) + _late(row, first_s)) for row in rows]


def _late(row: Row, first_s: Mapping[tuple[object, ...], float]) -> tuple[str, ...]:
    """A doubt for a row whose first token comes far later than on an older GPU."""
    older = _OLDER.get(row.gpu, "")
    longest_s = first_s.get(_load_on(row, older), math.inf)
    if row.ttft_s <= _SLOWER * longest_s:
        return ()
    return (
        f"slower than its predecessor? (on {older} the first token of the same layout and load comes twice as soon)",
    )


def _load_on(row: Row, gpu: str) -> tuple[object, ...]:
    """What is the same on both GPUs."""
    return (gpu, row.model, row.backend, row.dtype, row.expert_dtype, row.layout, row.isl, row.osl, row.concurrency)


def _doubts(row: Row, slowest_s: float) -> tuple[str, ...]:
    doubts = []
    if (row.model, row.gpu, row.backend, row.dtype) == ("llama3_8b", "h200", "vllm", "fp8"):
        doubts.append("mislabelled? (Llama-3.1-8B fp8 on H200: up to the peak FLOP/s, prefill and decode together)")
    if (row.model, row.gpu, row.backend, row.concurrency) == ("gpt_oss_120b", "h100", "vllm", 512):
        doubts.append(
            "a batch limit far below the load? (gpt-oss on H100 with vLLM: 88-98 of 512 run, whatever the tp)"
        )
    if (row.model, row.gpu, row.backend) == ("qwen3_235b", "h200", "vllm"):
        doubts.append("eager mode? (Qwen3-235B on H200 with vLLM: 34-58 ms a token whatever the batch)")
    if (row.model, row.gpu, row.backend, row.date) == (
        "deepseek_v3",
        "b200",
        "sglang",
        "2025-11-10",
    ) and row.ttft_s > 5:
        doubts.append("stalled at its start? (DeepSeek nvfp4 on B200 of 2025-11-10: TTFT 5-9 s whatever the load)")
    # perf-changelog.yaml of InferenceX: pull requests 632 and 642 move the servers with MTP to 1.2.0rc6.post3 while the
    # others stay on rc6.post2 (594, 620); 392 adds MTP in January 2026 to servers of 1.1.0rc2.post2 without it.
    if (row.model, row.backend, row.mode) == ("deepseek_v3", "trtllm", "agg") and (
        row.version == "1.2.0rc6.post3" or (row.version == "1.1.0rc2.post2" and row.date.startswith("2026-01"))
    ):
        doubts.append("speculative decoding? (a version that the changelog gives to servers with MTP alone)")
    if row.model == "deepseek_v3" and row.version and row.tpot_s < _SPECULATIVE * slowest_s:
        doubts.append("speculative decoding? (the same deployment, version and load is also listed far slower)")
    return tuple(doubts)


def _load_of(row: Row) -> tuple[object, ...]:
    return (row.deployment, row.mode, row.version, row.isl, row.osl, row.concurrency)
