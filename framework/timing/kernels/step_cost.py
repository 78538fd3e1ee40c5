"""The time of a step from measured kernel times: the operations that each part of a step calls, and how often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from framework.errors import InputError
from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.curves import FloatArray
from framework.timing.kernels.all_to_all import all_to_all_s
from framework.timing.kernels.attention_gqa import GroupedQuery
from framework.timing.kernels.attention_linear import DeltaRule, Hybrid
from framework.timing.kernels.attention_mla import mla_attention
from framework.timing.kernels.attention_sparse import SparseModule
from framework.timing.kernels.interpolate import Interpolated
from framework.timing.kernels.operations import ACTIVATION_BYTES, Operations
from framework.timing.kernels.table import Kernels
from framework.timing.profile import NODE_GPUS

_SEND_LATENCY_S = 10e-6  # seconds of a send between pipeline stages, as aiconfigurator-core states it for every GPU
_SUM_BYTES = 4.0  # fp32
_OVERLAPPED_TOKENS = 256  # tokens up to which servers are assumed to run shared experts on a separate stream


class Attention(Protocol):
    """What a step needs of the attention of all layers on one GPU. Arrays broadcast, and all times are in seconds.

    `copied_bytes` are the bytes that elementwise kernels (rotary embedding, writing the cache) move for each token, and
    `copies` is the number of such kernels in a step. If elementwise kernels were not measured separately, the measured
    time of a decode is assumed to include their launch.
    """

    @property
    def copied_bytes(self) -> float: ...

    @property
    def copies(self) -> int: ...

    def projections_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds of the matrices before and after attention, over the tokens of a step."""
        ...

    def prefill_s(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        """Seconds of attention over `batch` prompts of `tokens` tokens each."""
        ...

    def bounded_share(self, tokens: FloatArray) -> FloatArray:
        """The share of that for one prompt in layers whose queries do not attend to the whole context."""
        ...

    def decode_s(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        """Seconds of attention of one token for each of `batch` sequences of `context` tokens each."""
        ...

    def length_limit(self) -> float:
        """The longest prompt that was measured, in tokens."""
        ...

    def context_limit(self, batch: FloatArray) -> FloatArray:
        """The longest context of each sequence that was measured for a batch, in tokens."""
        ...


@dataclass(frozen=True)
class StepCost:
    """Seconds of the parts of a step, evaluated in the full tables, over sizes of the whole instance. Arrays broadcast.

    Tokens and sequences are spread evenly over the dp groups. With pp stages, pp micro-batches of equal size are in
    flight and each passes all stages, so a step takes as long as one of them through the whole depth.
    """

    operations: Operations
    model: Model
    parallelism: Parallelism
    attention: Attention

    def gemm_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds of the matrices of attention and MLPs, router included, over the tokens of a step."""
        model, tp = self.model, self.parallelism.tp
        own = self._own(tokens)
        time_s = self.attention.projections_s(own)
        dense_layers = model.layers - model.expert_layers
        if dense_layers:
            time_s = time_s + dense_layers * self._mlp_s(model.intermediate / tp, own)
        if model.experts is not None:
            router = self.operations.gemm("bf16").seconds(model.experts.count, model.hidden, own)
            time_s = time_s + model.expert_layers * router
        return time_s

    def experts_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds of the experts over the tokens of a step; shared and routed experts overlap for few tokens."""
        if self.model.experts is None:
            return np.zeros(np.shape(tokens))
        time_s = self._expert_layer().seconds(self._in_flight(tokens))
        if self.model.experts.shared_intermediate:
            own = self._own(tokens)
            shared_s = self._mlp_s(self.model.experts.shared_intermediate / self.parallelism.tp, own)
            time_s = np.where(own <= _OVERLAPPED_TOKENS, np.maximum(time_s, shared_s), time_s + shared_s)
        return self.model.expert_layers * time_s

    def elementwise_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds of norms, activations, rotary embedding, cache writes and embedding over the tokens of a step."""
        model, tp, own = self.model, self.parallelism.tp, self._own(tokens)
        # Kernels, and the values that each moves for a token. Norms read and write the tokens and the residual.
        kernels = [(2 * model.layers, 4.0 * model.hidden)]
        kernels.append((model.layers - model.expert_layers, model.mlp_matrices * model.intermediate / tp))
        if model.experts is not None and model.experts.shared_intermediate:
            kernels.append((model.expert_layers, model.mlp_matrices * model.experts.shared_intermediate / tp))
        if model.norm_across_heads:  # queries and keys are read for the sums of their squares, then read and written
            heads = (model.heads + model.kv_heads) / tp
            kernels.append((4 * model.layers, 3 * heads * model.head_dim / 4))
        copy_s = self.operations.copy_s
        time_s = copy_s(own * 2 * model.hidden * ACTIVATION_BYTES)  # the embedding, whose launch is in every step
        for count, values in kernels:
            time_s = time_s + count * (self.operations.launch_s + copy_s(own * values * ACTIVATION_BYTES))
        copies = self.attention.copies
        if copies:
            launch_s = self.operations.launch_s if self.operations.elementwise_measured else 0.0
            time_s = time_s + copies * (launch_s + copy_s(own * self.attention.copied_bytes / copies))
        return time_s

    def communication_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds of collectives among the GPUs of a stage and of sends between stages, over the tokens of a step."""
        model, parallelism, collective_s = self.model, self.parallelism, self.operations.collective_s
        message = self._own(tokens) * model.hidden * ACTIVATION_BYTES
        reduce_s = collective_s("all_reduce", parallelism.tp, message)
        time_s = (model.layers + 1) * reduce_s  # one after each attention, one after the embedding
        time_s = time_s + (model.layers - model.expert_layers) * reduce_s
        if model.norm_across_heads:
            sums = self._own(tokens) * 2 * _SUM_BYTES  # sums of squares of a token's queries and keys
            time_s = time_s + model.layers * collective_s("all_reduce", parallelism.tp, sums)
        if model.experts is not None and parallelism.dp == 1:
            time_s = time_s + model.expert_layers * reduce_s
        elif model.experts is not None:
            time_s = time_s + model.expert_layers * self._dispatch_and_combine_s(tokens)
        return time_s + (parallelism.pp - 1) * self._send_s(message)

    def _dispatch_and_combine_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds in which the dp groups exchange tokens around the experts of a layer, over the tokens of a step.

        Within a node every GPU gathers all tokens; if experts are spread wider, tokens may go to their experts alone,
        if that is faster and was measured.
        """
        model, parallelism = self.model, self.parallelism
        assert model.experts is not None
        gathered = self._in_flight(tokens) * model.hidden * ACTIVATION_BYTES
        names = ("all_gather", "reduce_scatter")
        time_s = np.add.reduce([self.operations.collective_s(name, parallelism.stage_gpus, gathered) for name in names])
        if parallelism.ep == parallelism.stage_gpus > NODE_GPUS:
            each = np.maximum(self._in_flight(tokens) / parallelism.ep, 1.0)
            try:
                sent_s = all_to_all_s(self.operations, model.hidden, model.experts, parallelism.ep, each)
            except InputError:
                return np.asarray(time_s)
            time_s = np.minimum(time_s, sent_s)
        return np.asarray(time_s)

    def prefill_s(self, batch: FloatArray, tokens: FloatArray) -> FloatArray:
        """Seconds of attention of a step that prefills `batch` whole prompts of `tokens` tokens each."""
        return self.attention.prefill_s(self._own(batch), tokens)

    def decode_s(self, batch: FloatArray, context: FloatArray) -> FloatArray:
        """Seconds of attention of a step that decodes `batch` sequences of `context` tokens in all."""
        own = self._own(batch)
        return self.attention.decode_s(own, np.maximum(np.asarray(context) / batch, 1.0))

    def logits_s(self, sampled: FloatArray) -> FloatArray:
        """Seconds of the projection to the vocabulary, and of sampling, over the sequences that emit a token."""
        model, own = self.model, self._own(sampled)
        projected_s = self.operations.gemm("bf16").seconds(model.vocab / self.parallelism.tp, model.hidden, own)
        return projected_s + self.operations.sampler_s(model.vocab, own)

    @property
    def groups(self) -> int:
        """The number of parts of a step that run at the same time: micro-batches in flight times dp groups."""
        return self.parallelism.dp * self.parallelism.pp

    @property
    def tokens_limit(self) -> float:
        """The largest measured number of tokens of a step."""
        limit = self.operations.gemm(self.model.dtype).largest(-1) * self.groups
        if self.model.experts is not None:
            limit = min(limit, self._expert_layer().largest(-1) * self.parallelism.pp)
        return limit

    @property
    def sampled_limit(self) -> float:
        """The largest measured number of sequences of a step that emit a token."""
        return self.operations.gemm("bf16").largest(-1) * self.groups

    @property
    def token_steps(self) -> FloatArray:
        """The measured numbers of tokens of a step, shape (M,): times jump when a tile is full."""
        return np.asarray(2.0 ** self.operations.gemm(self.model.dtype).axes[-1] * self.groups)

    def context_limits(self, batches: FloatArray) -> FloatArray:
        """The largest measured summed context in tokens for each batch, of the shape of `batches`."""
        return batches * self.attention.context_limit(self._own(batches))

    @property
    def base_s(self) -> float:
        """Seconds of every step: the embedding's launch."""
        return self.operations.launch_s

    @property
    def copies_s(self) -> float:
        """Seconds that launching the elementwise kernels of attention adds to a step that prefills."""
        return 0.0 if self.operations.elementwise_measured else self.attention.copies * self.operations.launch_s

    def linear_s(self, tokens: FloatArray) -> FloatArray:
        """Seconds of all parts that depend only on the tokens of a step."""
        return self.gemm_s(tokens) + self.experts_s(tokens) + self.elementwise_s(tokens) + self.communication_s(tokens)

    def _expert_layer(self) -> Interpolated:
        model, parallelism = self.model, self.parallelism
        assert model.experts is not None
        return self.operations.experts(
            model.expert_dtype, model.hidden, model.experts, parallelism.expert_tp, parallelism.ep
        )

    def _mlp_s(self, intermediate: float, tokens: FloatArray) -> FloatArray:
        gemm, hidden = self.operations.gemm(self.model.dtype), self.model.hidden
        first_s = gemm.seconds((self.model.mlp_matrices - 1) * intermediate, hidden, tokens)
        return first_s + gemm.seconds(hidden, intermediate, tokens)

    def _send_s(self, message_bytes: FloatArray) -> FloatArray:
        gpu = self.operations.gpu
        link = gpu.link_bytes_s if self.parallelism.gpus <= gpu.linked_gpus else gpu.nic_bytes_s
        return _SEND_LATENCY_S + message_bytes / link

    def _in_flight(self, tokens: FloatArray) -> FloatArray:
        """The tokens of a micro-batch."""
        return np.maximum(np.asarray(tokens) / self.parallelism.pp, 1.0)

    def _own(self, tokens: FloatArray) -> FloatArray:
        """The tokens of a micro-batch in one dp group."""
        return np.maximum(np.asarray(tokens) / self.groups, 1.0)


def step_cost(kernels: Kernels, model: Model, gpu: Gpu, parallelism: Parallelism) -> StepCost:
    """The cost of a model's steps on an instance, made of kernels. Raises InputError if a kernel was not measured."""
    operations = Operations(kernels, gpu)
    return StepCost(operations, model, parallelism, _attention(operations, model, parallelism.tp))


def _attention(operations: Operations, model: Model, tp: int) -> Attention:
    if model.sparse is not None:
        return SparseModule(operations, model, tp)
    if model.latent is not None:
        return mla_attention(operations, model, tp)
    full = GroupedQuery(operations, model, tp)
    return full if model.linear is None else Hybrid(DeltaRule(operations, model, tp), full)
