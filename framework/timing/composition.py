"""From the full tables to Parts: knots few enough for a small file and close enough to be what was measured."""

from __future__ import annotations

import numpy as np

from framework.hardware import Gpu, Model, Parallelism
from framework.timing.exact import ExactTimes, exact_times
from framework.timing.interpolate import FloatArray
from framework.timing.kernels import Kernels
from framework.timing.knots import choose_knots, samples
from framework.timing.profile import Parts

_TOLERANCE = 0.01  # of the parts that depend on the tokens of a step together
_ATTENTION_TOLERANCE = 0.02
_DECODE_TOLERANCE = 0.02
_CHUNKS = (512.0, 1024.0, 2048.0, 4096.0, 8192.0)  # of chunked prefill: no error there
_RATIO = 1.04  # between points at which the tables are evaluated
_LARGEST_BATCH = 512.0
_LARGEST_CONTEXT = 2.0**21  # summed; from here on time grows in proportion


def compose(kernels: Kernels, model: Model, gpu: Gpu, parallelism: Parallelism) -> Parts:
    """Step times of a model on an instance from measured kernel times, as Parts.

    `gpu` states peaks and bandwidth for the interpolation between measured shapes. Raises InputError, naming operation
    and shape, where a kernel that a step needs was not measured, and where tp does not divide the heads.
    """
    exact = exact_times(kernels, model, gpu, parallelism)
    tokens, curves = _token_curves(exact)
    floor_s = attention_floor_s(exact)
    lengths, attention_s = _prompts(exact, floor_s)
    batches, contexts, decode_s = _decodes(exact)
    sampled, logits_s = _sampled(exact)
    return Parts(
        parallelism=parallelism,
        dtype=model.dtype,
        expert_dtype=model.expert_dtype,
        kv_dtype=model.kv_dtype,
        tokens=tokens,
        gemm_s=curves[0],
        experts_s=curves[1],
        elementwise_s=curves[2],
        communication_s=curves[3],
        lengths=lengths,
        attention_s=attention_s,
        attention_floor_s=floor_s + exact.copies_s,
        batches=batches,
        contexts=contexts,
        decode_s=decode_s,
        sampled=sampled,
        logits_s=logits_s,
        base_s=exact.base_s,
        tokens_limit=exact.tokens_limit,
        length_limit=exact.attention.length_limit(),
        sampled_limit=exact.sampled_limit,
        context_limits=exact.context_limits(batches),
    )


def attention_floor_s(exact: ExactTimes) -> float:
    """Seconds of prefill attention that a step pays once, however many prompts: T(b, l) = floor + b (T(1, l) - floor).

    Of all floors that leave no prompt a negative time, the one that comes closest to the batches that were measured:
    2 to 64 prompts of 16 tokens or more, 16,384 in all.
    """
    batch, length = (axis.ravel() for axis in np.meshgrid(2.0 ** np.arange(1, 7), 2.0 ** np.arange(4, 13)))
    step = batch * length <= 2.0**14
    batch, length = batch[step], length[step]
    groups = exact.groups
    together_s = exact.prefill_s(batch * groups, length)
    alone_s = exact.prefill_s(np.ones(1), length)
    least_s = float(np.min(exact.prefill_s(np.ones(1), samples(1.0, 64.0, _RATIO))))
    floors = np.linspace(0.0, least_s, 50)[:, None]
    errors = np.abs(np.log((floors + batch * (alone_s - floors)) / together_s))
    return float(floors[np.argmin(np.mean(errors, axis=1)), 0])


def _token_curves(exact: ExactTimes) -> tuple[FloatArray, FloatArray]:
    """Knots over the tokens of a step, and the four curves there."""
    last = exact.tokens_limit
    tokens = samples(1.0, last, 1.02, also=exact.token_steps)
    parts = (exact.gemm_s, exact.experts_s, exact.elementwise_s, exact.communication_s)
    curves = np.stack([part(tokens) for part in parts])
    curves = np.vstack([curves, curves.sum(axis=0)])
    slack = np.broadcast_to(_TOLERANCE * curves[-1], curves.shape)
    knots = tokens[choose_knots(tokens, curves, slack, keep=_CHUNKS)]
    knots = np.append(knots, 2.0 * last)
    return knots, np.stack([part(knots) for part in parts])


def _prompts(exact: ExactTimes, floor_s: float) -> tuple[FloatArray, FloatArray]:
    """Knots over the length of a prompt, and the attention of one above the floor, spread over the groups."""
    last = exact.attention.length_limit()
    lengths = samples(1.0, last, _RATIO, also=2.0 ** np.arange(15))
    above_s = exact.prefill_s(np.ones(1), lengths) - floor_s
    slack = _ATTENTION_TOLERANCE * (above_s + floor_s + exact.copies_s)
    chosen = choose_knots(lengths, above_s[None], slack[None])
    knots = np.append(lengths[chosen], [2.0 * last, 4.0 * last])
    return knots, (exact.prefill_s(np.ones(1), knots) - floor_s) / exact.groups


def _decodes(exact: ExactTimes) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Knots over sequences and their summed context, and the decode attention there."""
    groups = exact.groups
    batches = samples(1.0, _LARGEST_BATCH * groups, 1.1, also=2.0 ** np.arange(10))
    contexts = samples(1.0, _LARGEST_CONTEXT * groups, _RATIO)
    grid = exact.decode_s(batches[:, None], contexts[None])
    real = (contexts >= batches[:, None]) & (contexts <= batches[:, None] * exact.model.max_context)
    slack = np.where(real, _DECODE_TOLERANCE * grid, np.inf)
    at_context = choose_knots(contexts, grid, slack)
    at_batch = choose_knots(batches, grid.T, slack.T)
    knots = np.append(contexts[at_context], 2.0 * contexts[-1])
    return batches[at_batch], knots, exact.decode_s(batches[at_batch][:, None], knots[None])


def _sampled(exact: ExactTimes) -> tuple[FloatArray, FloatArray]:
    """Knots over the sequences that emit, and the projection to the vocabulary there."""
    sampled = samples(1.0, exact.sampled_limit, _RATIO, also=exact.token_steps)
    logits_s = exact.logits_s(sampled)
    knots = sampled[choose_knots(sampled, logits_s[None], 2 * _TOLERANCE * logits_s[None])]
    knots = np.append(knots, 2.0 * exact.sampled_limit)
    return knots, exact.logits_s(knots)
