"""The shipped step times: models, GPUs, backends, and common setups.

Stages of more than the eight GPUs of a node ship for the largest models alone: collectives between nodes were not
measured but estimated from the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model, kv_capacity_tokens
from framework.system.parallelism import Parallelism
from framework.timing.profile import Setup

GPUS = ("a100", "h100", "h200", "b200", "l40s", "b300", "gb200", "gb300", "rtx_pro_6000")
BACKENDS = ("vllm", "trtllm", "sglang")
_KV_FRACTION = 0.9
_LEAST_KV_TOKENS = 8192  # KV tokens below which a setup is useless


@dataclass(frozen=True)
class Types:
    """The data types of the weights, of the KV cache, and of the experts' weights.

    `expert_dtype` None stands for what conf/model says, or else for that of the weights.
    """

    dtype: str
    kv_dtype: str
    expert_dtype: str | None = None


def parallelisms(names: str) -> tuple[Parallelism, ...]:
    """The parallelisms in a text such as "tp4-pp2 tp8", which are Parallelism(4, 2) and Parallelism(8)."""
    found = []
    for name in names.split():
        sizes = {size.rstrip("0123456789"): int(size.lstrip("abcdefghijklmnopqrstuvwxyz")) for size in name.split("-")}
        found.append(Parallelism(**sizes))
    return tuple(found)


_PLAIN = (Types("bf16", "bf16"), Types("fp8", "bf16"), Types("fp8", "fp8"))
_ONLINE = (Types("fp8_dynamic", "bf16"),)
_FOUR_BIT = (Types("nvfp4", "bf16"), Types("nvfp4", "fp8"))
_BLOCK = (Types("fp8_block", "bf16"), Types("fp8_block", "fp8"))
_KIMI = (Types("bf16", "bf16", "int4"), Types("nvfp4", "bf16", "nvfp4"), Types("nvfp4", "fp8", "nvfp4"))
_OSS = tuple(Types("bf16", kv_dtype, experts) for experts in ("mxfp4", "mxfp4_mxfp8") for kv_dtype in ("bf16", "fp8"))
_INTEGERS = (Types("int8", "bf16"), Types("int8_wo", "bf16"))
_DENSE = parallelisms("tp1 tp2 tp4 tp8")
_STAGED = parallelisms("tp4-pp2 tp8-pp2")
_SPREAD = parallelisms("tp2-ep2 tp4-ep4 tp8-ep8")
_GROUPED = parallelisms("tp1-dp2-ep2 tp1-dp4-ep4 tp1-dp8-ep8")
_WIDE = parallelisms("tp16 tp16-ep16 tp1-dp16-ep16 tp1-dp32-ep32")
_WIDEST = parallelisms("tp1-dp144-ep144")  # parallelism of the deployment that DeepSeek describes

PLANS: Mapping[str, tuple[tuple[Types, ...], tuple[Parallelism, ...]]] = {
    "llama3_8b": (_PLAIN + _ONLINE + _FOUR_BIT + _BLOCK[:1] + _INTEGERS, _DENSE),
    "llama3_70b": (_PLAIN + _ONLINE + _FOUR_BIT + _INTEGERS, _DENSE + _STAGED),
    "llama2_7b": (_PLAIN, _DENSE),
    "llama2_70b": (_PLAIN, _DENSE),
    "mistral_7b": (_PLAIN[:1], _DENSE[:2]),
    "yi_6b": (_PLAIN[:1], _DENSE[:2]),
    "yi_34b": (_PLAIN[:1], _DENSE[1:2]),
    "codellama_34b": (_PLAIN[:1], _DENSE),
    "qwen25_7b": (_PLAIN + _ONLINE, _DENSE[:3]),
    "qwen25_14b": (_PLAIN + _ONLINE, _DENSE),
    "qwen25_32b": (_PLAIN + _ONLINE, _DENSE),
    "qwen3_32b": (_PLAIN + _ONLINE + _FOUR_BIT, _DENSE),
    "opt_13b": (_PLAIN[:1], _DENSE),
    "opt_66b": (_PLAIN[:1], _DENSE + _STAGED),
    "mixtral_8x7b": (_PLAIN, _DENSE + _SPREAD),
    "gpt_oss_120b": (_OSS, _DENSE + _SPREAD + _GROUPED),
    "qwen3_30b": (_PLAIN[:1] + _BLOCK[:1], _DENSE[:3] + _SPREAD[:2]),
    "qwen3_235b": (_BLOCK + _FOUR_BIT, _DENSE + _SPREAD + _GROUPED),
    "minimax_m25": (_BLOCK + _FOUR_BIT, _DENSE + _SPREAD),
    "deepseek_v3": (_BLOCK + _FOUR_BIT, _DENSE[2:] + _SPREAD[1:] + _GROUPED + _WIDE + _WIDEST),
    "qwen3_next_80b": (_PLAIN[:1] + _BLOCK[:1], _DENSE[1:3] + _SPREAD[1:2]),
    "qwen35_397b": (_BLOCK[:1] + _FOUR_BIT[:1], _DENSE[2:]),
    "deepseek_v32": (_BLOCK[:1] + _FOUR_BIT[:1], _DENSE[2:] + _GROUPED[2:]),
    "glm_5": (_BLOCK[:1] + _FOUR_BIT[:1], _DENSE[2:]),
    "llama4_maverick": ((Types("bf16", "bf16", "fp8"),), _DENSE[2:]),
    "kimi_k25": (_KIMI, _DENSE[2:] + _SPREAD[1:] + _GROUPED[1:] + _WIDE),
}


def plan_of(model: Model) -> tuple[tuple[Types, ...], tuple[Parallelism, ...]]:
    """The data types and parallelisms to make for a model; for an unlisted one, its own types on 1 to 8 GPUs."""
    own = (Types(model.dtype, model.kv_dtype),)
    return PLANS.get(model.name, (own, _DENSE if model.experts is None else _DENSE + _SPREAD))


def typed(model: Model, types: Types) -> Model:
    """The model with those data types."""
    experts = model.experts
    if experts is not None and types.expert_dtype is not None:
        experts = replace(experts, dtype=types.expert_dtype)
    return replace(model, dtype=types.dtype, kv_dtype=types.kv_dtype, experts=experts)


def fitting(
    model: Model, gpu: Gpu, types: Sequence[Types], instances: Sequence[Parallelism], *, anyway: bool = False
) -> Iterator[tuple[Model, Setup]]:
    """The setups that fit the GPU's memory and in whose data types it computes, or all of them with `anyway`.

    Each comes with the model in its data types. Those of one KV type and parallelism are adjacent.
    """
    for kv_dtype in dict.fromkeys(type_.kv_dtype for type_ in types):
        for parallelism in instances:
            for type_ in types:
                candidate = typed(model, type_)
                if type_.kv_dtype == kv_dtype and (anyway or _fits(candidate, gpu, parallelism)):
                    yield candidate, Setup.of(candidate, parallelism)


def _fits(model: Model, gpu: Gpu, parallelism: Parallelism) -> bool:
    try:
        for dtype in (model.dtype, model.expert_dtype):
            gpu.peak(dtype)
        return kv_capacity_tokens(model, gpu, parallelism, _KV_FRACTION) >= _LEAST_KV_TOKENS
    except InputError:
        return False
