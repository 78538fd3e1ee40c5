"""Settings of the measured servers, from their published start scripts.

InferenceX (https://github.com/SemiAnalysisAI/InferenceX) keeps a script for each model, precision, GPU and engine under
benchmarks/, and lists the changes between versions of the engines in perf-changelog.yaml. For a row of another
campaign, or a setting that a script leaves open, the engine's default applies. Nothing here is fitted.
"""

from __future__ import annotations

import re
from dataclasses import replace

from experiments.validation.fidelity.rows import Pool, Row
from framework.system.parallelism import Parallelism

_VLLM_TOKENS = 8192  # max_num_batched_tokens of an API server on GPUs of 80 GB and more
_TRTLLM_TOKENS = 8192  # max_num_tokens
_SGLANG_TOKENS = {"h100": 8192, "h200": 8192}  # chunked_prefill_size, by the memory of a GPU
_SGLANG_LARGE_TOKENS = 16384  # the same from 160 GB on
_HOPPER = ("h100", "h200")


def kv_dtype_of(row: Row) -> str:
    """Type of the cached keys and values.

    TensorRT-LLM's quantised checkpoints cache fp8, as do the scripts' servers of Llama-70B on H200 and later, of
    DeepSeek with SGLang on Blackwell and of gpt-oss there. Nvidia's nvfp4 checkpoints request it, which vLLM follows
    since December 2025 (vllm-project/vllm pull request 29980), and so do the scripts of MiniMax on Blackwell from vLLM
    0.19 on. The number of concurrent requests under short memory confirms it.
    """
    if row.backend == "trtllm":
        return "fp8" if row.dtype != "bf16" or (row.model == "gpt_oss_120b" and row.gpu not in _HOPPER) else "bf16"
    if row.model == "llama3_70b":
        return "bf16" if row.gpu == "h100" else "fp8"
    if row.gpu in _HOPPER:
        return "bf16"
    if row.backend == "sglang":
        return "fp8" if row.model in ("deepseek_v3", "kimi_k25") else "bf16"
    if row.model == "minimax_m25" and row.dtype == "fp8_block":
        return "bf16" if _before(row, 0, 19) else "fp8"
    return "fp8" if row.dtype == "nvfp4" or row.model == "gpt_oss_120b" else "bf16"


def expert_dtype_of(row: Row) -> str:
    """Type of the experts' weights; the scripts make vLLM multiply mxfp4 by mxfp8 activations on Blackwell."""
    if row.backend == "vllm" and row.expert_dtype == "mxfp4" and row.gpu not in _HOPPER:
        return "mxfp4_mxfp8"
    return row.expert_dtype


def token_budget_of(row: Row) -> int:
    """Most tokens of a step of the whole instance."""
    if row.backend == "vllm":
        # Scripts of MiniMax for Blackwell later request 2 x isl; the heaviest loads of short prompts show more.
        recent = row.model == "minimax_m25" and row.gpu not in _HOPPER and not _before(row, 0, 19)
        return max(_VLLM_TOKENS, 2 * row.isl) if recent else _VLLM_TOKENS
    if row.backend == "sglang":
        # --max-prefill-tokens for DeepSeek in fp8; others have the default
        if row.model == "deepseek_v3" and row.dtype == "fp8_block" and row.family == "InferenceX":
            return 2 * _SGLANG_LARGE_TOKENS if row.parallelism.gpus == 8 else 8192
        return _SGLANG_TOKENS.get(row.gpu, _SGLANG_LARGE_TOKENS)
    if row.family != "InferenceX":
        return _TRTLLM_TOKENS
    if row.model == "llama3_70b":
        return row.isl + row.osl + 200  # max_model_len
    if row.model == "gpt_oss_120b":
        return 20_000 * aggregated(row).parallelism.dp
    # Of each dp group; scripts of 1.2 request at least the default.
    each = row.isl + row.concurrency + 127
    return (each if _before(row, 1, 2) else max(_TRTLLM_TOKENS, each)) * aggregated(row).parallelism.dp


def admission_wait_steps_of(row: Row) -> int:
    """Decode steps for which a server lets requests wait for others (`engine.admission_wait_steps`)."""
    if row.family != "InferenceX" or row.mode != "agg":
        return 0
    equal = (row.isl, row.osl) == (1024, 1024)
    if row.backend == "trtllm" and row.model == "llama3_70b":
        return 20 if equal and row.parallelism.tp < 8 else 0  # batch_wait_timeout_iters
    if row.backend == "trtllm" and row.model == "deepseek_v3":
        if aggregated(row).parallelism.dp > 1:
            return 60  # attention_dp_config: timeout_iters
        delayed = row.dtype == "fp8_block" and row.gpu == "b200" and equal and 64 <= row.concurrency < 256
        return 40 if delayed and not _before(row, 1, 2) else 0  # batch_wait_timeout_iters
    if row.backend == "trtllm" and row.model == "gpt_oss_120b" and aggregated(row).parallelism.dp > 1:
        return 50  # the default of timeout_iters
    if row.backend == "sglang" and row.model == "deepseek_v3" and row.gpu.startswith("b"):
        return 30 if row.concurrency >= 16 else 10  # --scheduler-recv-interval
    return 0


def tokens_together_of(row: Row) -> int:
    """Tokens of an answer that the server sends at once (stream_interval of TensorRT-LLM).

    The scripts of gpt-oss set it, too, but let other processes make the text (num_postprocess_workers), and their
    first token comes at once.
    """
    return 10 if (row.model, row.backend) == ("deepseek_v3", "trtllm") and row.mode == "agg" else 1


def is_asynchronous(row: Row) -> bool:
    """Whether the server forms a step while the previous one runs.

    TensorRT-LLM (overlap scheduler) and SGLang (overlap schedule) do by default, vLLM from 0.14 on; the scripts of
    InferenceX set it for older versions (--async-scheduling).
    """
    return row.backend != "vllm" or row.family == "InferenceX" or not _before(row, 0, 14)


def aggregated(row: Row) -> Pool:
    """The instance of an aggregated row.

    Until December 2025 the scripts of TensorRT-LLM chose expert parallelism and data-parallel attention themselves, by
    the load; the csv lists these rows under their number of GPUs alone. Later rows, listed in full, agree with it.
    Experts of 1536 values in blocks of 128 cannot be split eight ways, so MiniMax in fp8 spreads them.
    """
    if (row.model, row.dtype, row.parallelism.expert_tp) == ("minimax_m25", "fp8_block", 8):
        return Pool(1, replace(row.parallelism, ep=8))
    if row.mode != "agg" or row.backend != "trtllm" or row.version or row.family != "InferenceX":
        return row.decode
    gpus, load = row.parallelism.gpus, row.concurrency
    if row.model == "deepseek_v3":
        spread, apart = _chosen_for_deepseek(row, gpus, load)
    elif row.model == "gpt_oss_120b":
        spread = row.gpu == "h200" or (gpus >= 4 and row.isl == 1024 and load >= 16)
        apart = row.gpu != "h200" and load >= 256
    else:
        return row.decode
    tp, dp = (1, gpus) if apart else (gpus, 1)
    return Pool(1, Parallelism(tp=tp, dp=dp, ep=gpus if spread or apart else 1))


def disaggregated(row: Row, pool: Pool) -> Pool:
    """The instances of one role of a disaggregated row.

    SGLang's data-parallel attention with DeepEP spreads experts over all GPUs (its documentation: ep_size becomes
    tp_size), whatever the csv says.
    """
    layout = pool.parallelism
    if row.backend != "sglang" or layout.dp == 1 or layout.ep > 1:
        return pool
    return Pool(pool.workers, Parallelism(tp=layout.tp, dp=layout.dp, ep=layout.stage_gpus))


def _chosen_for_deepseek(row: Row, gpus: int, load: int) -> tuple[bool, bool]:
    """Whether experts are spread over the GPUs, and whether each GPU attends to its own sequences."""
    long_prompts, long_outputs = row.isl > row.osl, row.osl > row.isl
    if row.dtype == "nvfp4":
        spread = load > (32 if gpus == 4 or long_prompts else 16 if long_outputs else 8)
        return spread, load > 32 if long_prompts else load >= 256
    if row.gpu == "h200":
        return True, load > (32 if long_prompts else 64)
    return True, load > (64 if long_prompts or long_outputs else 32)


def _before(row: Row, *version: int) -> bool:
    """Whether the row's engine is older than a release; without a number, a row of 2025 is and a later build is not."""
    if not row.version[:1].isdigit():
        return not row.version
    return tuple(int(part) for part in re.findall(r"\d+", row.version)[: len(version)]) < version
