"""The settings of a measured server: from its published start script, else its engine's defaults.

Rows of InferenceX have the settings of its scripts (https://github.com/SemiAnalysisAI/InferenceX, benchmarks/), other
rows those of the engines' documentation. None of them is fitted here; only `Client` holds unknown properties of the
clients, which are chosen on deployments other than the tested ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Literal

import yaml
from hydra.utils import instantiate

from experiments.validation.fidelity.recipes import recipe_of, router_of
from experiments.validation.fidelity.rows import Pool, Row
from experiments.validation.fidelity.scripts import (
    admission_wait_steps_of,
    aggregated,
    disaggregated,
    expert_dtype_of,
    is_asynchronous,
    kv_dtype_of,
    token_budget_of,
    tokens_together_of,
)
from framework.calibration.apply import Calibrated
from framework.calibration.replay import Deployment
from framework.cli.conf import CONF
from framework.engine.setup.config import Batching, EngineConfig, FirstToken
from framework.errors import InputError
from framework.policy import Aggregated
from framework.system.cluster import ClusterSpec, LinkSpec, PoolSpec
from framework.system.gpu import Gpu
from framework.system.model import Model, kv_capacity_tokens
from framework.system.parallelism import Parallelism
from framework.timing.calibration_terms import Calibration
from framework.timing.kernels.read_aiconfigurator import load_package, package_gpu
from framework.timing.kernels.table import Kernels
from framework.timing.kernels.tabulate import tabulate
from framework.timing.profile import StepParts
from framework.timing.server import Server
from framework.timing.step_row import StepRow, Timing

_LATENCY_S = 1e-4  # of a transfer between instances
_MOST_SEQUENCES = 2048
# Share of a GPU's memory for weights and KV (vLLM: gpu_memory_utilization less activations; SGLang: mem_fraction_static
# less the same), or of what the weights leave for KV (TensorRT-LLM: free_gpu_memory_fraction less buffers).
_SHARES = {"vllm": 0.9, "sglang": 0.83}
_GRAPH_TOKENS = 512  # tokens of the largest step whose kernels a CUDA graph launches (vLLM: max_cudagraph_capture_size)
_VLLM_OTHER_BYTES = 5.5e9  # of a GPU: activations, CUDA graphs, communication
_FREE_SHARE = 0.8
# SGLang and TensorRT-LLM send the first token with the KV: the decode server has it once there is a seat. vLLM's decode
# server computes the last prompt token itself.
_FIRST_TOKEN: dict[str, FirstToken] = {"vllm": "recomputed", "trtllm": "join", "sglang": "join"}
_BATCHING: dict[str, Batching] = {"vllm": "decode_first", "trtllm": "mixed", "sglang": "chunks_first"}


@dataclass(frozen=True)
class Client:
    """What a row does not state about the client: lengths are uniform in [shortest, 1] x nominal.

    Clients that request equal lengths keep requests in step, in waves that start and end together; a little inequality
    disperses them. `token_budget`: of a step, if the server's is not published; None: its default. `spare`: how many
    more requests are in flight than the server runs at once. `token_s`: how long the one process that reads all answers
    takes for a token; a request waits until that process sends it. `rounds`: how many requests it sends for each one in
    flight, the first of which come at once; None: as many as the row says. `together`: tokens of an answer that the
    server sends at once, so that the first comes with the last of them.
    """

    shortest: float
    token_budget: int | None = None
    spare: int = 0
    token_s: float = 0.0
    rounds: int | None = None
    together: int = 1


_INFERENCEX = Client(0.8)  # from its scripts
_UNKNOWN = Client(0.98)  # before anything is fitted: almost equal lengths
# Two campaigns whose latencies describe their clients before anything is fitted or predicted. TTFT in proportion to the
# requests in flight, as half the time to prefill them all, means waves of equal requests. TTFT that grows with the
# length of outputs, by the time a request lasts divided by their number, means that one request always waits for a
# seat.
_IN_STEP = ("qwen3_32b", "h100", "sglang")
_ONE_WAITS = ("llama3_8b", "h100", "trtllm")
# Possible clients of campaigns other than InferenceX; their reading speed is chosen after the rest.
READING_S = (0.0, 3e-5, 4e-5, 5e-5, 6e-5, 7e-5, 8e-5, 9e-5, 1e-4, 1.1e-4, 1.2e-4, 1.3e-4)
CANDIDATES = tuple(
    Client(shortest, token_budget, spare, rounds=rounds)
    for shortest in (1.0, 0.995, 0.98, 0.9)
    for token_budget in (None, 4096, 2048)
    for spare in (0, 1)
    for rounds in (10, 5, 20)
)


def stated(row: Row) -> Client | None:
    """The client as the source of a row describes it, None if it does not."""
    return replace(_INFERENCEX, together=tokens_together_of(row)) if row.family == "InferenceX" else None


def assumed(row: Row) -> Client:
    """The client of a row if nothing is fitted."""
    campaign = (row.model, row.gpu, row.backend)
    if campaign == _IN_STEP:
        return Client(1.0)
    return stated(row) or (Client(_UNKNOWN.shortest, spare=1) if campaign == _ONE_WAITS else _UNKNOWN)


def gpu_of(row: Row) -> Gpu:
    """The row's GPU as the package of the kernel tables describes it: with all of its memory."""
    return _described(row.gpu)


@cache
def model_of(name: str, dtype: str, expert_dtype: str, kv_dtype: str) -> Model:
    """A model of conf/model in the given data types."""
    model: Model = instantiate(yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text("utf-8")), _convert_="all")
    experts = model.experts if model.experts is None else replace(model.experts, dtype=expert_dtype)
    return replace(model, dtype=dtype, kv_dtype=kv_dtype, experts=experts)


def served(row: Row) -> Model:
    """The row's model in the types of its server."""
    return model_of(row.model, row.dtype, expert_dtype_of(row), kv_dtype_of(row))


def server(row: Row, client: Client) -> Deployment:
    """The deployment of a row, with step times from the full kernel tables.

    Raises InputError if its weights leave no room for KV.
    """
    model, apart = served(row), row.mode == "disagg"
    pools = _apart(row, model) if apart else (_pool("mixed", aggregated(row), row, model),)
    gpu = gpu_of(row)
    kv_tokens = min(kv_capacity_tokens(model, pool.gpu, pool.parallelism, 1.0) for pool in pools)
    most = row.concurrency if apart else min(_most_sequences(row, kv_tokens), row.concurrency - client.spare)
    tokens = client.token_budget or token_budget_of(row)
    pools = tuple(_by_rank(pool, max(1, most), tokens) for pool in pools)
    engine = EngineConfig(
        first_token=_FIRST_TOKEN[row.backend],
        batching=_BATCHING[row.backend],
        asynchronous=software_of(row).asynchronous,
        admission_wait_steps=admission_wait_steps_of(row),
        kv_fraction=1.0,
        watermark=0.0,
    )
    cluster = ClusterSpec(pools, LinkSpec(gpu.nic_bytes_s, _LATENCY_S))
    return Deployment(model, cluster, engine, _timing(row), router_of(row) if apart else Aggregated)


def software_of(row: Row) -> Server:
    """The work of the row's server in addition to its kernels; a calibration gives its costs."""
    return Server(row.backend, asynchronous=is_asynchronous(row), graph_tokens=_GRAPH_TOKENS)


def unsupported(row: Row) -> str:
    """Why no step times can be made for a row, in one line; empty if they can."""
    try:
        model = served(row)
        for pool in (row.prefill, aggregated(row)):
            _parts(row.gpu, row.backend, model, pool.parallelism)
        server(row, assumed(row))
    except InputError as error:
        return str(error)
    return ""


def _timing(row: Row) -> Callable[[Calibration], Timing]:
    """A function that makes the step times of a row's GPU and backend under any calibration."""

    software = software_of(row)

    def rows(calibration: Calibration, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepRow:
        return _step_row(software, calibration, row.gpu, row.backend, model, parallelism)

    return lambda calibration: Calibrated(rows, calibration, "kernel tables")


@cache
def _described(gpu: str) -> Gpu:
    return package_gpu(gpu)


@lru_cache(maxsize=4)
def _kernels(gpu: str, backend: str) -> Kernels:
    return load_package(gpu, backend)


@lru_cache(maxsize=64)
def _parts(gpu: str, backend: str, model: Model, parallelism: Parallelism) -> StepParts:
    return tabulate(_kernels(gpu, backend), model, package_gpu(gpu), parallelism)


@lru_cache(maxsize=256)  # loads of one deployment are adjacent, each replayed with the same few calibrations
def _step_row(
    software: Server, calibration: Calibration, gpu: str, backend: str, model: Model, parallelism: Parallelism
) -> StepRow:
    overheads = software.fitted(calibration).overheads(model.layers, parallelism)
    return _parts(gpu, backend, model, parallelism).row(calibration, overheads)


def _pool(role: Literal["mixed", "prefill", "decode"], pool: Pool, row: Row, model: Model) -> PoolSpec:
    """Instances of a role; their GPUs have the memory for weights and KV only."""
    gpu, gpus = gpu_of(row), pool.parallelism.gpus
    left = replace(gpu, memory_bytes=_usable_bytes(row.backend, model, gpu, pool.parallelism))
    return PoolSpec(role, role, pool.workers, left, pool.parallelism, link_bytes_s=gpu.nic_bytes_s * gpus)


def _apart(row: Row, model: Model) -> tuple[PoolSpec, ...]:
    """The instances of a disaggregated row, with the seats and prefill steps of its recipe, if there is one.

    Each data-parallel rank attends to its own requests, so a lone prompt keeps one of them busy.
    """
    prefill = _pool("prefill", disaggregated(row, row.prefill), row, model)
    decode = _pool("decode", disaggregated(row, row.decode), row, model)
    recipe = recipe_of(row)
    if recipe is not None:
        prefill = replace(prefill, max_batch=recipe.prefill_seats, token_budget=recipe.prefill_tokens)
        decode = replace(decode, max_batch=recipe.decode_seats)
    prefill, decode = (replace(pool, rank_choice="requests") for pool in (prefill, decode))
    return replace(prefill, batching="prefill_first"), replace(decode, batching="decode_first")


def _by_rank(pool: PoolSpec, seats: int, tokens: int) -> PoolSpec:
    """The pool with these seats and tokens of a step, by rank, unless it states its own."""
    seats, tokens = pool.max_batch or seats, pool.token_budget or tokens
    return replace(pool, max_batch=-(-seats // pool.ranks), token_budget=-(-tokens // pool.ranks))


def _usable_bytes(backend: str, model: Model, gpu: Gpu, parallelism: Parallelism) -> float:
    """Bytes of a GPU for weights and KV."""
    if backend == "vllm":
        return _SHARES[backend] * gpu.memory_bytes - _VLLM_OTHER_BYTES
    if backend == "sglang":
        return _SHARES[backend] * gpu.memory_bytes
    tokens = kv_capacity_tokens(model, gpu, parallelism, 1.0) / parallelism.dp
    free_bytes = tokens * model.kv_bytes_per_token * model.kv_share(parallelism.tp) / parallelism.pp
    return gpu.memory_bytes - (1.0 - _FREE_SHARE) * free_bytes


def _most_sequences(row: Row, kv_tokens: int) -> int:
    """The most sequences; TensorRT-LLM admits a request only when its whole length fits (GUARANTEED_NO_EVICT)."""
    if row.backend != "trtllm" or row.mode != "agg":
        return _MOST_SEQUENCES
    return max(1, int(kv_tokens / ((row.isl + row.osl) * (1 + row.shortest) / 2)))
