"""The FLOPs and bytes of a step, for MFU, MBU and its place under the roofline.

FLOPs are two for each token and weight that it passes, without embedding and output projection, plus the attention of
each pair of a query and a key in layers without a window or chunks, causal (as `metrics.usage` counts them). Bytes,
over all GPUs of an instance, are those of weights once; of experts the expected share chosen by tokens that choose
evenly and at random; the output projection once. Copies count if attention is data parallel, and with pp stages the
weights are read for each of the pp micro-batches. For KV they are what decodes and chunks read and what all tokens
write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from framework.errors import InputError
from framework.system.gpu import DTYPE_BYTES
from framework.system.model import Model
from framework.system.parallelism import Parallelism


@dataclass(frozen=True)
class Chunk:
    """A chunk of a prompt: `tokens` are prefilled after `prefix` tokens that are already cached."""

    tokens: int
    prefix: int = 0


@dataclass(frozen=True)
class Step:
    """What a step holds: chunks of prompts, and `batch` decodes of `context` tokens each, the computed one included.

    Raises InputError if it holds nothing.
    """

    chunks: Sequence[Chunk] = ()
    batch: int = 0
    context: int = 0

    def __post_init__(self) -> None:
        if not self.chunks and self.batch < 1:
            raise InputError("a step needs a chunk or a decode")

    @property
    def tokens(self) -> int:
        """The number of tokens that are computed."""
        return sum(chunk.tokens for chunk in self.chunks) + self.batch

    @property
    def sampled(self) -> int:
        """The number of sequences that emit a token; each chunk counts as its prompt's last."""
        return len(self.chunks) + self.batch

    @property
    def decode_context(self) -> int:
        """The context summed over the decodes, in tokens."""
        return self.batch * self.context

    @property
    def longest_prompt(self) -> int:
        """The tokens of the longest prompt, its prefix included; 0 without chunks."""
        return max((chunk.prefix + chunk.tokens for chunk in self.chunks), default=0)


def flops(model: Model, step: Step) -> float:
    """The FLOPs of a step over all GPUs, counted as the module states."""
    pairs = step.decode_context + sum(
        ((chunk.prefix + chunk.tokens) ** 2 - chunk.prefix**2) / 2 for chunk in step.chunks
    )
    return model.flops_per_token * step.tokens + model.attention_flops_per_pair * pairs


def moved_bytes(model: Model, parallelism: Parallelism, step: Step) -> float:
    """The bytes that the GPUs of one instance must read and write for a step, counted as the module states."""
    return _weight_bytes(model, parallelism, step) + _kv_bytes(model, step)


def _weight_bytes(model: Model, parallelism: Parallelism, step: Step) -> float:
    shared = model.shared_parameters * model.dtype_bytes
    output = model.output_parameters * max(model.dtype_bytes, DTYPE_BYTES["bf16"])
    copies = parallelism.dp * parallelism.pp
    read = (shared + output) * copies
    if model.experts is not None:
        missed = (1 - model.experts.per_token / model.experts.count) ** (step.tokens / parallelism.pp)
        read += model.expert_parameters * DTYPE_BYTES[model.expert_dtype] * (1 - missed) * parallelism.pp
    return read


def _kv_bytes(model: Model, step: Step) -> float:
    """Layers with a window read no more than the window, local ones their own chunks; all write each token once."""
    per_layer = model.kv_bytes_per_token / model.growing_layers  # a model has at least one such layer
    read: float = model.full_layers * (step.decode_context + sum(chunk.prefix + chunk.tokens for chunk in step.chunks))
    if model.local is not None:
        size = model.local.chunk_tokens
        own = step.batch * float(model.local.seen(np.array(float(step.context))))
        read += model.local.layers * (own + sum(chunk.prefix % size + chunk.tokens for chunk in step.chunks))
    near = step.batch * min(step.context, model.window + 1)
    near += sum(min(chunk.prefix + chunk.tokens, model.window + chunk.tokens) for chunk in step.chunks)
    written = (model.growing_layers + model.windowed_layers) * step.tokens
    states = 2.0 * model.state_bytes * step.sampled  # read and written for each sequence
    return per_layer * (read + model.windowed_layers * near + written) + states
