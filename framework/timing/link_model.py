"""All-reduces by a link model: a latency for each GPU after the first, and a share of the link's bandwidth.

Cards without NVLink are measured in two kinds of host. On two RTX PRO 6000 (PCIe 5, 64 GB/s) an all-reduce takes 4.3 us
and then 39 GB/s if the cards reach each other's memory, and 17 us and 15 GB/s if all goes through the host's memory
(aiconfigurator-core 0.12.0, custom_allreduce of vllm 0.24.0 and 0.19.0). No table says which of the two a server has:
conf/gpu states it, and a user can (`gpu.link_efficiency`, `gpu.link_latency_s`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.timing.curves import Curve
from framework.timing.profile import StepParts

_ACTIVATION_BYTES = 2.0  # bf16


def applies(parts: StepParts, gpu: Gpu) -> bool:
    """Whether the GPU states a latency, and the instance only reduces among the GPUs of one node."""
    setup = parts.setup.parallelism
    return gpu.link_latency_s is not None and 1 < setup.tp <= gpu.linked_gpus and setup.dp == setup.pp == 1


def with_link_model(parts: StepParts, model: Model, gpu: Gpu) -> StepParts:
    """The parts of a step with all-reduces by the link model: one after the embedding, two in each layer."""
    tp = parts.setup.parallelism.tp
    assert gpu.link_latency_s is not None
    linear = parts["communication"].linear
    knots = np.array([1.0, 2.0]) if linear is None else np.asarray(linear.knots)
    sent_bytes = 2 * (tp - 1) / tp * knots * model.hidden * _ACTIVATION_BYTES
    reduce_s = gpu.link_latency_s * (tp - 1) + sent_bytes / (gpu.link_bytes_s * gpu.link_efficiency)
    communication = replace(parts["communication"], linear=Curve.of(knots, (2 * model.layers + 1) * reduce_s))
    return replace(parts, rows=dict(parts.rows) | {"communication": communication})
