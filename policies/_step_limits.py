"""What prompts and chunks take on an instance, and how long a step may last for its decodes."""

from __future__ import annotations

import numpy as np

from framework.compiler.decorators import compiled
from framework.policy.view import Floats, Integers
from framework.timing.estimate import StepTimes, chunked_s, prefill_alone_s
from framework.timing.table import StepTables

CHUNK = 64  # tokens: the smallest chunk, and the unit of chunks
LOST = 10.0  # a decode that many TPOT limits behind has missed its own


@compiled
def under_way(times: StepTimes, i: int, prompts: Integers, rest: int, most: int) -> tuple[float, int]:
    """The seconds of what is left of prompts under way on i, and the tokens of the first of them that are computed.

    `prompts` are their lengths, in order, of which `rest` tokens are left in all, behind those that are computed.
    """
    tables, computed = StepTables(times.rows, times.data), max(prompts.sum() - rest, 0)
    seconds, prefix = 0.0, -1
    for k in range(len(prompts)):
        done = min(computed, prompts[k])
        computed -= done
        if done < prompts[k]:
            seconds += prefill_alone_s(tables, times.pools[i], times.stages[i], done, prompts[k], most)
            prefix = done if prefix < 0 else prefix
    return seconds, max(prefix, 0)


@compiled
def largest_chunk(
    times: StepTimes, i: int, prefix: int, decodes: int, context: int, limit_s: float, most: int
) -> tuple[int, float]:
    """The prompt tokens after `prefix`, a multiple of `CHUNK` up to `most`, of the longest step of i in `limit_s`, and
    the share of a prefill's speed at which that step computes them.
    """
    low, high = 1, max(most // CHUNK, 1)
    prompt = np.array([[prefix], [most]])
    while low < high:
        middle = (low + high + 1) // 2
        if chunked_s(times, i, prompt, middle * CHUNK, decodes, context, context // decodes) <= limit_s:
            low = middle
        else:
            high = middle - 1
    chunk = low * CHUNK
    step_s = chunked_s(times, i, prompt, chunk, decodes, context, context // decodes)
    return chunk, chunked_s(times, i, prompt, chunk, 0, 0, 0) / step_s


@compiled
def longest_step_s(
    ids: Integers,
    generated: Integers,
    arrival_s: Floats,
    first_token_s: Floats,
    ttft_s: Floats,
    tpot_s: Floats,
    now_s: float,
    margin: float,
    bounds: tuple[float, float],
) -> float:
    """The longest step that decodes `ids` allow, which have `generated` tokens; inf if none has a limit to keep.

    The other columns are of all requests, shapes (N,). `bounds` are those of a decode's part, in its TPOT limits.
    """
    limit_s = np.inf
    for k in range(len(ids)):
        r = ids[k]
        left_s = first_token_s[r] + generated[k] * tpot_s[r] - now_s
        if first_token_s[r] <= arrival_s[r] + ttft_s[r] and left_s > -LOST * tpot_s[r]:
            allowed_s = min(max(margin * left_s, bounds[0] * tpot_s[r]), bounds[1] * tpot_s[r])
            limit_s = min(limit_s, allowed_s)
    return limit_s


@compiled
def prefill_s(times: StepTimes, i: int, tokens: int, most: int) -> float:
    """Seconds in which i prefills so many tokens, alone, from the first on."""
    tables = StepTables(times.rows, times.data)
    return prefill_alone_s(tables, times.pools[i], times.stages[i], 0, tokens, most)
