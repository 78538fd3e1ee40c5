"""From the full tables to Parts: knots few enough for a small file and close enough to be what was measured.

Few knots between which curves are affine, and as close to a function as asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from framework.system.gpu import Gpu
from framework.system.model import Model
from framework.system.parallelism import Parallelism
from framework.timing.kernels.decode_imbalance import skew_step_s
from framework.timing.kernels.interpolate import FloatArray
from framework.timing.kernels.step_cost import ExactTimes, exact_times
from framework.timing.kernels.table import Kernels
from framework.timing.profile import Parts

_TOLERANCE = 0.01  # of the parts that depend on the tokens of a step together
# Attention may be off by this share of itself, or by that share of the step, whichever is more.
_PART_TOLERANCE, _STEP_TOLERANCE = 0.02, 0.003
_LOGITS_TOLERANCE = 0.001  # the same of the projection to the vocabulary
_CHUNKS = (512.0, 1024.0, 2048.0, 4096.0, 8192.0)  # of chunked prefill: no error there
_RATIO = 1.04  # between points at which the tables are evaluated
_LARGEST_BATCH = 512.0
_LARGEST_CONTEXT = 2.0**21  # summed; from here on time grows in proportion
_TOGETHER = np.asarray(2.0 ** np.arange(7), float)  # prompts that one step may hold
_ALONE_WEIGHT = 3.0  # of the error of one prompt, the commonest step
_LARGEST_STEP = 2.0**14  # tokens


def compose(kernels: Kernels, model: Model, gpu: Gpu, parallelism: Parallelism) -> Parts:
    """Step times of a model on an instance from measured kernel times, as Parts.

    `gpu` states peaks and bandwidth for the interpolation between measured shapes. Raises InputError, naming operation
    and shape, where a kernel that a step needs was not measured, and where tp does not divide the heads.
    """
    exact = exact_times(kernels, model, gpu, parallelism)
    tokens, curves = _token_curves(exact)
    lengths, attention_s, floor_s = _prompts(exact)
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
        attention_floor_s=floor_s,
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
        skew_s=skew_step_s(kernels, model, parallelism.tp) / exact.groups,
    )


def _token_curves(exact: ExactTimes) -> tuple[FloatArray, FloatArray]:
    """Knots over the tokens of a step, and the four curves there."""
    last = exact.tokens_limit
    tokens = samples(1.0, last, 1.02, also=[*exact.token_steps, *(exact.token_steps + 1.0)])
    parts = (exact.gemm_s, exact.experts_s, exact.elementwise_s, exact.communication_s)
    curves = np.stack([part(tokens) for part in parts])
    curves = np.vstack([curves, curves.sum(axis=0)])
    slack = np.broadcast_to(_TOLERANCE * curves[-1], curves.shape)
    knots = tokens[choose_knots(tokens, curves, slack, keep=_CHUNKS)]
    knots = np.append(knots, 2.0 * last)
    return knots, np.stack([part(knots) for part in parts])


def _prompts(exact: ExactTimes) -> tuple[FloatArray, FloatArray, float]:
    """Knots over the length of a prompt, the attention of one above the floor there, and the floor of a step.

    T(b, l) = floor + b above(l) stands for b prompts of l tokens. Alone, a short prompt does not fill the GPU: its time
    is launch, and many together take hardly longer. Floor and above(l) are those whose largest error in any step of 1
    to 64 prompts and 16,384 tokens, as a share of the step, is smallest (the floor: on the mean over lengths); that of
    one prompt alone weighs three times.
    """
    last = max(exact.attention.length_limit(), float(exact.model.max_context))
    lengths = samples(1.0, last, _RATIO, also=exact.token_steps / exact.groups)
    batch = _TOGETHER[:, None]
    fits = (batch == 1.0) | (batch * lengths <= _LARGEST_STEP)
    together_s = exact.prefill_s(batch * exact.groups, lengths) + exact.copies_s
    step_s = together_s + exact.linear_s(batch * exact.groups * lengths)
    floors = np.linspace(0.0, float(together_s[0].min()), 40)
    choices = [_above(floor, together_s, step_s, fits) for floor in floors]
    best = int(np.argmin([np.mean(error) for _, error in choices]))
    floor_s, above_s = float(floors[best]), choices[best][0]
    slack = np.maximum(_PART_TOLERANCE * (above_s + floor_s), _STEP_TOLERANCE * step_s[0])
    chosen = choose_knots(lengths, above_s[None], slack[None])
    return lengths[chosen], above_s[chosen] / exact.groups, floor_s


def _above(
    floor_s: float, together_s: FloatArray, step_s: FloatArray, fits: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray]:
    """For each length the time of a prompt above the floor that fits all batches best, and its largest error.

    Arrays over (batches, lengths): attention of so many prompts, the whole step, and which of them count. The error is
    a share of the step.
    """
    batch = _TOGETHER[:, None]
    candidates = np.maximum((together_s - floor_s) / batch, 0.0)
    errors = np.abs(floor_s + batch[None] * candidates[:, None] - together_s[None]) / step_s[None]
    errors[:, 0] *= _ALONE_WEIGHT
    largest = np.where(fits[:, None] & fits[None], errors, 0.0).max(axis=1)
    best = np.argmin(np.where(fits, largest, np.inf), axis=0)
    columns = np.arange(together_s.shape[1])
    return candidates[best, columns], largest[best, columns]


def _decodes(exact: ExactTimes) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Knots over sequences and their summed context, and the decode attention there."""
    groups = exact.groups
    batches = samples(1.0, _LARGEST_BATCH * groups, 1.1, also=2.0 ** np.arange(10))
    contexts = samples(1.0, _LARGEST_CONTEXT * groups, _RATIO)
    grid = exact.decode_s(batches[:, None], contexts[None])
    real = (contexts >= batches[:, None]) & (contexts <= batches[:, None] * exact.model.max_context)
    step_s = grid + exact.linear_s(batches)[:, None]
    slack = np.where(real, np.maximum(_PART_TOLERANCE * grid, _STEP_TOLERANCE * step_s), np.inf)
    at_context = choose_knots(contexts, grid, slack)
    at_batch = choose_knots(batches, grid.T, slack.T)
    knots = np.append(contexts[at_context], 2.0 * contexts[-1])
    return batches[at_batch], knots, exact.decode_s(batches[at_batch][:, None], knots[None])


def _sampled(exact: ExactTimes) -> tuple[FloatArray, FloatArray]:
    """Knots over the sequences that emit, and the projection to the vocabulary there."""
    sampled = samples(1.0, exact.sampled_limit, _RATIO, also=[*exact.token_steps, *(exact.token_steps + 1.0)])
    logits_s = exact.logits_s(sampled)
    slack = np.maximum(_PART_TOLERANCE * logits_s, _LOGITS_TOLERANCE * exact.linear_s(sampled))
    knots = sampled[choose_knots(sampled, logits_s[None], slack[None])]
    knots = np.append(knots, 2.0 * exact.sampled_limit)
    return knots, exact.logits_s(knots)


# --- knots ------------------------------------------------------------------------------------------------------------


def choose_knots(xs: FloatArray, curves: FloatArray, slack: FloatArray, keep: Iterable[float] = ()) -> NDArray[np.intp]:
    """Indices of knots at which affine interpolation of all curves stays within their slack at every x.

    `xs`: increasing, shape (N,); `curves`, `slack`: (K, N), the values and the error allowed around them, inf: any.
    Each segment reaches as far as it can. First and last x and those in `keep` are knots.
    """
    forced = [*np.flatnonzero(np.isin(xs, list(keep))), len(xs) - 1]
    knots = [0]
    while knots[-1] < len(xs) - 1:
        at = knots[-1]
        stop = next(index for index in forced if index > at)
        knots.append(at + _reach(xs[at : stop + 1], curves[:, at : stop + 1], slack[:, at : stop + 1]))
    return np.asarray(knots)


def _reach(xs: FloatArray, curves: FloatArray, slack: FloatArray) -> int:
    """The largest j for which the line from point 0 to point j passes all points between within their slack."""
    run = xs[1:] - xs[0]
    slopes = (curves[:, 1:] - curves[:, :1]) / run
    room = slack[:, 1:] / run
    lowest = np.maximum.accumulate(slopes - room, axis=1)
    highest = np.minimum.accumulate(slopes + room, axis=1)
    passes = np.all((slopes[:, 1:] >= lowest[:, :-1]) & (slopes[:, 1:] <= highest[:, :-1]), axis=0)
    return int(np.flatnonzero(passes)[-1]) + 2 if np.any(passes) else 1


def samples(first: float, last: float, ratio: float, also: Iterable[float] = ()) -> FloatArray:
    """Whole numbers from first to last: each at least `ratio` times the one before, or the next one; and `also`."""
    spread = np.geomspace(first, last, int(np.ceil(np.log(last / first) / np.log(ratio))) + 1)
    points = np.unique(np.round(np.concatenate([spread, [first, last], np.asarray(list(also), float)])))
    return points[(points >= first) & (points <= last)]
