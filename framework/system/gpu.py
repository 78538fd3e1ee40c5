"""GPUs: peak rates, memory and links, and the data types that they compute in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from framework.errors import (
    InputError,
    require_at_least,
    require_positive,
)

_GB = 1e9
# Bytes of a value, scales of its block included. `fp8`: the scales of activations are part of the checkpoint;
# `fp8_dynamic`: they are searched for at each matrix product, as where a bf16 checkpoint is quantised online;
# `fp8_block`: one scale for 128 x 128 values; `nvfp4`: one byte for 16; `mxfp4`: one byte for 32; `mxfp4_mxfp8`: the
# same, times 8-bit activations; `int4`: two bytes for 128.
DTYPE_BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8_dynamic": 1.0,
    "fp8_block": 1.0,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
    "mxfp4_mxfp8": 0.5 + 1 / 32,
    "int4": 0.5 + 2 / 128,
}
# What a GPU multiplies values of each type as. Weights of 4 bits alone are widened to bf16 first.
_COMPUTES_AS = {
    "fp32": "fp32",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp8_dynamic": "fp8",
    "fp8_block": "fp8",
    "nvfp4": "fp4",
    "mxfp4_mxfp8": "fp8",
}


@dataclass(frozen=True)
class Gpu:
    """One GPU as its datasheet states it.

    `peak_flops`: dense FLOP/s per data type; `link_bytes_s`: to the GPUs of the same node, in each direction;
    `nic_bytes_s`: this GPU's share of the network between nodes, in each direction; `usd_per_hour`: rental price.
    """

    name: str
    peak_flops: Mapping[str, float]
    memory_bytes: float
    bandwidth_bytes_s: float
    link_bytes_s: float
    pcie_bytes_s: float
    nic_bytes_s: float
    tdp_w: float
    idle_w: float
    usd_per_hour: float

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "bandwidth_bytes_s", "link_bytes_s", "pcie_bytes_s", "nic_bytes_s", "tdp_w"):
            require_positive(f"gpu.{name}", getattr(self, name))
        for name in ("idle_w", "usd_per_hour"):
            require_at_least(f"gpu.{name}", getattr(self, name), 0)
        if not isinstance(self.peak_flops, Mapping):
            raise InputError(f"gpu.peak_flops must map data types to FLOP/s, got {self.peak_flops!r}")
        for dtype, flops in self.peak_flops.items():
            require_positive(f"gpu.peak_flops.{dtype}", flops)

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s for weights of that type; InputError where the GPU states none."""
        computed = _COMPUTES_AS.get(dtype, "bf16")
        if computed not in self.peak_flops:
            raise InputError(
                f"gpu {self.name} states no peak for {computed} (it has {', '.join(self.peak_flops)}):"
                " choose another model.dtype or gpu"
            )
        return float(self.peak_flops[computed])
