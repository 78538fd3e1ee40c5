"""The time of a step of one prompt and some decodes, for planning in Python or in compiled code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from framework.compiler.decorators import compiled
from framework.timing.table import StepTables, base_s, chunk_s, decode_s, decode_with_chunks_s, host_s, uneven_s


class StepTimes(NamedTuple):
    """The step times of M instances: the tables of all K pools, as in `StepTables`, and which of them each has.

    `pools` is the table of each instance, that of its pool unless it has lost GPUs, and `stages` the number of its
    pipeline stages, both of shape (M,).
    """

    rows: NDArray[Any]
    data: NDArray[np.float64]
    pools: NDArray[np.int64]
    stages: NDArray[np.int64]


@compiled
def estimate_s(times: StepTimes, i: int, prompt: int, decodes: int, context: int, prefix: int = 0) -> float:
    """Seconds of a step on instance i: one whole prompt and decodes that read `context` tokens together.

    `prompt` is its length in tokens beyond `prefix` cached ones, 0 for a step without one; `decodes` is the number of
    decodes.
    """
    tables = StepTables(times.rows, times.data)
    return step_alone_s(tables, times.pools[i], times.stages[i], prompt, decodes, context, prefix)


@compiled
def step_alone_s(
    tables: StepTables, k: int, stages: int, prompt: int, decodes: int, context: int, prefix: int = 0
) -> float:
    """The seconds by table k, for an instance of `stages` pipeline stages."""
    time_s = base_s(tables, k, stages * prompt, decodes, decodes + (stages if prompt > 0 else 0))
    if prompt > 0:
        time_s += stages * chunk_s(tables, k, prefix, prompt)
    if decodes > 0:
        decoding_s = decode_s(tables, k, decodes, context)[0]
        time_s += decode_with_chunks_s(tables, k, decodes, context, decoding_s) if prompt > 0 else decoding_s
    return time_s


@compiled
def chunked_s(
    times: StepTimes, i: int, prompts: NDArray[np.int64], tokens: int, decodes: int, context: int, longest: int
) -> float:
    """Seconds of a step on instance i that computes `tokens` >= 1 tokens of prompts, in order, with decodes.

    `prompts`, shape (2, P): for each prompt the cached tokens, to which the chunk attends, and those that it lacks. The
    decodes read `context` tokens together, the one with the longest context `longest`. The result is the engine's for
    an instance of one pipeline stage.
    """
    tables, k = StepTables(times.rows, times.data), times.pools[i]
    left, chunks, chunks_s = tokens, 0, 0.0
    for j in range(prompts.shape[1]):
        chunk = min(left, prompts[1, j])
        if chunk > 0:
            chunks_s += chunk_s(tables, k, prompts[0, j], chunk)
            chunks, left = chunks + 1, left - chunk
    time_s = base_s(tables, k, tokens - left, decodes, decodes + chunks) + chunks_s
    if decodes > 0:
        decoding_s = decode_s(tables, k, decodes, context)[0] + uneven_s(tables, k, decodes, context, longest)
        time_s += decode_with_chunks_s(tables, k, decodes, context, decoding_s)
    return max(time_s, host_s(tables, k, tokens - left + decodes, decodes))


@compiled
def prefill_alone_s(tables: StepTables, k: int, stages: int, cached: int, prompt: int, most: int) -> float:
    """Seconds to prefill a prompt beyond its `cached` tokens, alone, by table k, in steps of at most `most` tokens, of
    which it has one of as many micro-batches as there are pipeline stages.
    """
    done, time_s = cached, 0.0
    while done < prompt:
        chunk = min(-(-most // stages), prompt - done)
        time_s += base_s(tables, k, stages * chunk, 0, stages) + stages * chunk_s(tables, k, done, chunk)
        done += chunk
    return time_s


@compiled
def estimates_s(times: StepTimes, prompt: int, decodes: int, context: int, prefix: int = 0) -> NDArray[np.float64]:
    """Seconds of such a step on each of the instances, shape (M,)."""
    times_s = np.empty(len(times.pools))
    for i in range(len(times.pools)):
        times_s[i] = estimate_s(times, i, prompt, decodes, context, prefix)
    return times_s
