"""How a measured server was set up: what its published start script says, or else what its engine does by default.

Settings are those of the InferenceX scripts (https://github.com/SemiAnalysisAI/InferenceX, benchmarks/) where a row is
from there, and those of the engines' documentation elsewhere. None of them is fitted here; `Client` alone holds what is
not known of the clients and is chosen on deployments other than those it is tested on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml
from hydra.utils import instantiate

from experiments.fidelity_rows import Pool, Row
from framework.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.engine.config import Batching, EngineConfig
from framework.errors import InputError
from framework.hardware import Gpu, Model, Parallelism, kv_capacity_tokens
from framework.timing.kernel_package import package_gpu

_CONF = Path(__file__).resolve().parent.parent / "conf"
_LATENCY_S = 1e-4  # of a transfer between instances
_MOST_SEQUENCES = 2048
# Share of a GPU's memory for weights and KV (vLLM: gpu_memory_utilization less activations; SGLang: mem_fraction_static
# less the same), or of what the weights leave for KV (TensorRT-LLM: free_gpu_memory_fraction less buffers).
_SHARES = {"vllm": 0.9, "sglang": 0.83}
_VLLM_OTHER_BYTES = 5.5e9  # of a GPU: activations, CUDA graphs, communication
_FREE_SHARE = 0.8
_BATCHING: dict[str, Batching] = {"vllm": "decode_first", "trtllm": "mixed", "sglang": "prefill_first"}
_VLLM_TOKENS = 8192  # max_num_batched_tokens of an API server on GPUs of 80 GB and more
_TRTLLM_TOKENS = 8192  # max_num_tokens
_SGLANG_TOKENS = 16384  # max_prefill_tokens


@dataclass(frozen=True)
class Client:
    """What a row does not tell of the client: lengths are uniform in [shortest, 1] x nominal.

    Clients that ask for equal lengths keep requests in step, in waves that end and begin together; a little
    inequality disperses them. `token_budget`: of a step, where the server's is not published; None: its default.
    `spare`: how many more requests are in flight than the server runs at once.
    """

    shortest: float
    token_budget: int | None = None
    spare: int = 0


_INFERENCEX = Client(0.8)  # its scripts say so
_UNKNOWN = Client(0.98)  # before anything is fitted: hardly any inequality, yet not none
# Before anything is fitted, two campaigns whose latencies tell of their clients, without any prediction: TTFT that grows
# in proportion to the requests in flight, as half the time to prefill them all does, means waves of equal requests; and
# one that grows with the length of outputs by the time a request lasts over their number, that one always waits for a
# seat.
_IN_STEP = ("qwen3_32b", "h100", "sglang")
_ONE_WAITS = ("llama3_8b", "h100", "trtllm")
# What the clients of campaigns other than InferenceX may have been.
CANDIDATES = tuple(
    Client(shortest, token_budget, spare)
    for shortest in (1.0, 0.995, 0.98, 0.9)
    for token_budget in (None, 4096, 2048)
    for spare in (0, 1)
)


def stated(row: Row) -> Client | None:
    """The client as the source of a row describes it, None where it does not."""
    return _INFERENCEX if row.family == "InferenceX" else None


def assumed(row: Row) -> Client:
    """The client of a row where nothing is fitted."""
    campaign = (row.model, row.gpu, row.backend)
    if campaign == _IN_STEP:
        return Client(1.0)
    return stated(row) or (Client(_UNKNOWN.shortest, spare=1) if campaign == _ONE_WAITS else _UNKNOWN)


@dataclass(frozen=True)
class Server:
    """All that a replay of a row needs beside its kernel times."""

    model: Model
    cluster: ClusterSpec
    engine: EngineConfig


def gpu_of(row: Row) -> Gpu:
    """The row's GPU as the package of the kernel tables describes it: with all of its memory."""
    return package_gpu(row.gpu)


@lru_cache(maxsize=None)
def model_of(name: str, dtype: str, expert_dtype: str, kv_dtype: str) -> Model:
    """A model of conf/model in the given data types."""
    model: Model = instantiate(yaml.safe_load((_CONF / "model" / f"{name}.yaml").read_text("utf-8")), _convert_="all")
    experts = model.experts if model.experts is None else replace(model.experts, dtype=expert_dtype)
    return replace(model, dtype=dtype, kv_dtype=kv_dtype, experts=experts)


def kv_dtype_of(row: Row) -> str:
    """Type of the cached keys and values.

    TensorRT-LLM's quantised checkpoints cache fp8, as do the scripts' servers of Llama-70B on H200 and later, and of
    DeepSeek and Kimi with SGLang; how many requests ran at once where memory was short confirms it.
    """
    if row.backend == "trtllm" and row.dtype != "bf16":
        return "fp8"
    if row.model == "llama3_70b" and row.gpu != "h100":
        return "fp8"
    if row.model == "gpt_oss_120b" and row.backend == "trtllm" and row.gpu not in ("h100", "h200"):
        return "fp8"
    return "fp8" if row.model in ("deepseek_v3", "kimi_k25") and row.backend == "sglang" else "bf16"


def server(row: Row, client: Client) -> Server:
    """The deployment of a row; InputError where its weights leave no room for KV."""
    model = model_of(row.model, row.dtype, row.expert_dtype, kv_dtype_of(row))
    gpu = gpu_of(row)
    if row.mode == "agg":
        pools: tuple[PoolSpec, ...] = (_pool("mixed", row.decode, gpu),)
    else:
        pools = (
            replace(_pool("prefill", row.prefill, gpu), batching="prefill_first"),
            replace(_pool("decode", row.decode, gpu), batching="decode_first"),
        )
    pools = tuple(replace(pool, link_bytes_s=gpu.nic_bytes_s * pool.parallelism.gpus) for pool in pools)
    kv_tokens = min(_kv_tokens(row, model, gpu, pool.parallelism) for pool in pools)
    engine = EngineConfig(
        token_budget=client.token_budget or _token_budget(row),
        max_batch=min(_most_sequences(row, kv_tokens), max(1, row.concurrency - client.spare)),
        batching=_BATCHING[row.backend],
        admission_wait_steps=_admission_wait_steps(row),
        kv_tokens=kv_tokens,
        watermark=0.0,
    )
    return Server(model, ClusterSpec(pools, LinkSpec(gpu.nic_bytes_s, _LATENCY_S)), engine)


def _pool(role: Literal["mixed", "prefill", "decode"], pool: Pool, gpu: Gpu) -> PoolSpec:
    return PoolSpec(role, role, pool.workers, gpu, pool.parallelism)


def _kv_tokens(row: Row, model: Model, gpu: Gpu, parallelism: Parallelism) -> int:
    if row.backend == "vllm":
        left = replace(gpu, memory_bytes=_SHARES["vllm"] * gpu.memory_bytes - _VLLM_OTHER_BYTES)
        return kv_capacity_tokens(model, left, parallelism, 1.0)
    if row.backend != "trtllm":
        return kv_capacity_tokens(model, gpu, parallelism, _SHARES[row.backend])
    return int(_FREE_SHARE * kv_capacity_tokens(model, gpu, parallelism, 1.0))


def _most_sequences(row: Row, kv_tokens: int) -> int:
    """TensorRT-LLM admits a request only when its whole length fits (GUARANTEED_NO_EVICT)."""
    if row.backend != "trtllm" or row.mode != "agg":
        return _MOST_SEQUENCES
    return max(1, int(kv_tokens / ((row.isl + row.osl) * (1 + row.shortest) / 2)))


def _token_budget(row: Row) -> int:
    if row.backend == "vllm":
        return _VLLM_TOKENS
    if row.backend == "sglang":
        # --max-prefill-tokens of the scripts for Blackwell
        return 2 * _SGLANG_TOKENS if row.family == "InferenceX" and row.gpu.startswith(("b", "gb")) else _SGLANG_TOKENS
    if row.family != "InferenceX":
        return _TRTLLM_TOKENS
    if row.model == "llama3_70b":
        return row.isl + row.osl + 200  # max_model_len
    if row.model == "gpt_oss_120b":
        return 20_000
    return max(_TRTLLM_TOKENS, row.isl + row.concurrency + 127)


def _admission_wait_steps(row: Row) -> int:
    if row.family != "InferenceX" or row.mode != "agg":
        return 0
    if row.backend == "trtllm":
        if row.model == "llama3_70b" and (row.isl, row.osl) == (1024, 1024) and row.parallelism.tp < 8:
            return 20  # batch_wait_timeout_iters
        return 60 if row.model == "deepseek_v3" and row.parallelism.dp > 1 else 0  # attention_dp_config: timeout_iters
    if row.backend == "sglang" and row.model == "deepseek_v3" and row.gpu.startswith("b"):
        return 30 if row.concurrency >= 16 else 10  # --scheduler-recv-interval
    return 0
