"""The blocks of prompts that a trace names, in its own size or in that of an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from framework.workload.requests import Workload


def ids_in_order(workload: Workload) -> NDArray[np.integer[Any]]:
    """The ids of all prompts' blocks, request by request."""
    if workload.hash_spans is None:
        return workload.hash_ids
    counts = workload.hash_counts
    places = np.arange(counts.sum()) + np.repeat(workload.hash_spans[:, 0] - np.cumsum(counts) + counts, counts)
    return workload.hash_ids[places]


def dense(names: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """The names, renumbered if they are negative or far larger than their number."""
    if len(names) and (names.min() < 0 or names.max() > 4 * len(names) + 1024):
        return np.unique(names, return_inverse=True)[1].astype(np.int64)
    return names


def filled_blocks(workload: Workload, block_tokens: int) -> NDArray[np.int64]:
    """The blocks that prompt and output fill, without the last token, which is never read: (N,)."""
    return (workload.input_tokens + workload.output_tokens - 1) // block_tokens


def block_names(workload: Workload, block_tokens: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Names that are equal if blocks of `block_tokens` tokens hold the same prefix, of prompts and outputs; and
    offsets.

    Block k of request r, which ends with its token (k + 1) * block_tokens, is `names[offsets[r] + k]`; there is one for
    each block that prompt and output fill, without the last token, which is never read. Within blocks of the trace
    (including the last, partial one if the trace has an id for it), names follow their ids. If the prompt of the
    session's next turn has the ids of r's prompt and is at least as long as r's prompt and output, it continues both:
    r's further blocks have the names that they have there (if several calls do, in the first). Any other block is the
    request's alone.
    """
    count = len(workload)
    filled = filled_blocks(workload, block_tokens)
    offsets = np.concatenate([[0], np.cumsum(filled)])
    each, size = workload.hash_block_tokens // block_tokens, workload.hash_block_tokens
    names = np.arange(offsets[-1]) + len(workload.hash_ids) * each
    if workload.hash_spans is None:
        return names, offsets
    named = np.minimum(filled, np.minimum(workload.hash_counts * size, workload.input_tokens) // block_tokens)
    request = np.repeat(np.arange(count), named)
    block = np.arange(len(request)) - np.repeat(np.cumsum(named) - named, named)
    ids = np.unique(workload.hash_ids, return_inverse=True)[1]
    names[offsets[request] + block] = ids[workload.hash_spans[request, 0] + block // each] * each + block % each
    if workload.previous is not None:
        _name_by_next_turn(workload, names, offsets, ids)
    return names, offsets


def _name_by_next_turn(
    workload: Workload, names: NDArray[np.int64], offsets: NDArray[np.int64], ids: NDArray[np.int64]
) -> None:
    """Give blocks behind a prompt's ids the names that the session's next turn gives them."""
    assert workload.previous is not None
    assert workload.hash_spans is not None
    tokens, begins = workload.input_tokens, workload.hash_spans[:, 0]
    full = np.minimum(workload.hash_counts, tokens // workload.hash_block_tokens)
    for later in range(len(workload) - 1, -1, -1):  # a turn follows the previous turn
        r = int(workload.previous[later])
        if r < 0 or tokens[later] < tokens[r] + workload.output_tokens[r] or full[later] < full[r]:
            continue
        own, its = (ids[begins[k] : begins[k] + full[r]] for k in (r, later))
        if np.array_equal(own, its):
            mine = names[offsets[r] : offsets[r + 1]]
            mine[:] = names[offsets[later] :][: len(mine)]
