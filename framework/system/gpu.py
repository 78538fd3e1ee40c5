"""GPUs: peak rates, memory and links, and the data types in which they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from framework.checks import Count, Name, NotNegative, Positive, Share, at_least, check_fields
from framework.errors import InputError

_GB = 1e9
# Bytes of a value, including its share of a block's scale. `fp8`: the scales of activations are part of the checkpoint;
# `fp8_dynamic`: they are computed at each matrix product, as when a bf16 checkpoint is quantised online; `fp8_block`:
# one scale for 128 x 128 values; `int8`: 8-bit integers times 8-bit activations; `int8_wo`: weights alone; `nvfp4`: one
# byte for 16; `mxfp4`: one byte for 32; `mxfp4_mxfp8`: the same, times 8-bit activations; `int4`: two bytes for 128.
DTYPE_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_dynamic": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "int8_wo": 1.0,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
    "mxfp4_mxfp8": 0.5 + 1 / 32,
    "int4": 0.5 + 2 / 128,
}
SAME_DTYPE = {"fp4": "nvfp4"}  # other names: NVIDIA's checkpoints call it FP4
# The type in which a GPU multiplies values of each type. Weights that alone are smaller are first widened to bf16.
_COMPUTES_AS = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_dynamic": "fp8",
    "fp8_block": "fp8",
    "int8": "int8",
    "nvfp4": "fp4",
    "mxfp4_mxfp8": "fp8",
}


@dataclass(frozen=True)
class Kernels:
    """What kernels of a GPU reach by published tables: for step times if no whole step was measured.

    `mfu` is the share of its peak that large matrix products reach, by the type of computation, and `mbu` the share of
    its bandwidth that reading matrices and KV reaches. The smallest product takes `product_s`, another kernel
    `launch_s`. Steps take up to `spread` times longer, or shorter, than this predicts. Raises InputError for a value
    out of range.
    """

    mfu: Mapping[str, Share]
    mbu: Share
    product_s: NotNegative
    launch_s: NotNegative
    spread: Annotated[float, at_least(1)]

    def __post_init__(self) -> None:
        check_fields(self, "gpu.kernels.")


@dataclass(frozen=True)
class Gpu:
    """One GPU as its datasheet states it, and what is known of servers on it.

    `peak_flops`: dense FLOP/s per data type; `link_bytes_s`: to the GPUs of the same node, in each direction;
    `nic_bytes_s`: this GPU's share of the network between nodes, in each direction; `usd_per_hour`: rental price.
    `compute_capability` is NVIDIA's number of the architecture, None if there is none; it determines the attention
    kernels, and `multiprocessors` is the number of SMs, None if unknown. `linked_gpus` reach each other at
    `link_bytes_s`; all others over the network. `link_efficiency` is the share of `link_bytes_s` that an all-reduce
    reaches, and `link_latency_s` are its seconds for each GPU after the first, None if measured times are to be used.
    `neighbour` names the reference GPU whose measured times are scaled for this one if it has none of its own.
    `tensor_gain` is the share of its tensor peak that large products reach here, divided by the share that they reach
    there; `bandwidth_gain` is the same for the bandwidth. `kernels` is what kernels reach by published tables, None if
    there are none. Raises InputError for a value out of range.
    """

    name: Name
    peak_flops: Mapping[str, Positive]
    memory_bytes: Positive
    bandwidth_bytes_s: Positive
    link_bytes_s: Positive
    pcie_bytes_s: Positive
    nic_bytes_s: Positive
    tdp_w: Positive
    idle_w: NotNegative
    usd_per_hour: NotNegative
    compute_capability: Positive | None = None
    multiprocessors: Count | None = None
    linked_gpus: Count = 8
    link_efficiency: Share = 1.0
    link_latency_s: NotNegative | None = None
    neighbour: str | None = None
    tensor_gain: Positive = 1.0
    bandwidth_gain: Positive = 1.0
    kernels: Kernels | None = None

    def __post_init__(self) -> None:
        check_fields(self, "gpu.")
        if self.idle_w > self.tdp_w:
            raise InputError(
                f"gpu.idle_w = {self.idle_w:g} is above gpu.tdp_w = {self.tdp_w:g}, the most that it draws"
            )
        if self.neighbour is not None and not isinstance(self.neighbour, str):
            raise InputError(f"gpu.neighbour must be the name of a GPU or null, got {self.neighbour!r}")
        if not isinstance(self.peak_flops, Mapping):
            raise InputError(f"gpu.peak_flops must map data types to FLOP/s, got {self.peak_flops!r}")

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s for weights of that type. Raises InputError if the GPU states none."""
        computed = computes_as(dtype)
        if computed not in self.peak_flops:
            raise InputError(
                f"gpu {self.name} states no peak for {computed} (it has {', '.join(self.peak_flops)}):"
                " choose another model.dtype or gpu"
            )
        return float(self.peak_flops[computed])


def computes_as(dtype: str) -> str:
    """The type in which GPUs multiply weights of that type."""
    return _COMPUTES_AS.get(dtype, "bf16")
