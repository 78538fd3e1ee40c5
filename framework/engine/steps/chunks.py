"""The size of a prompt's chunk in one step, and the list of a step's chunks."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.kv.prefix_cache import share_chunk
from framework.engine.memory.state import State
from framework.engine.parallel.pipeline_parallel import share


@inner
def largest_chunk(s: State, i: int, done: int, left: int) -> int:
    """Tokens that a request with `done` prefilled tokens may add, by the schedule, if its step's budget has `left`."""
    inst = s.instances[i]
    most = min(left, s.options.longest_chunk)
    if inst.chunk_stages == 0:
        return most
    stage = min(done // inst.stage_tokens, inst.chunk_stages - 1)
    size = s.lists[inst.chunk_sizes_at + stage]
    if unlikely(inst.stages > 0):
        decodes = s.step[i].decode_tokens
        return min(most, share(s, i, size - decodes) - (share(s, i, inst.token_budget - decodes) - left))
    return min(most, size - (inst.token_budget // max(1, inst.ranks) - left))


@inner
def unbroken_chunk(s: State, i: int, tokens: int, left: int) -> int:
    """The first chunk of a prompt with `tokens` tokens to compute and `left` of the budget; 0: not in this step.

    Only the longest chunk cuts it, and it may exceed a budget that is still whole.
    """
    inst = s.instances[i]
    chunk = min(tokens, s.options.longest_chunk)
    whole = share(s, i, inst.token_budget // max(1, inst.ranks))
    return chunk if chunk <= left or 0 < left == whole else 0


@inner
def note_chunk(s: State, i: int, j: int, chunk: int) -> None:
    """Note that the step being formed computes `chunk` tokens of number j of i's prefilling order."""
    inst = s.instances[i]
    r = s.lists[inst.prefilling_at + j]
    s.lists[inst.chunk_at + j] = chunk
    if chunk > 0:
        share_chunk(s, i, r, s.requests[r].prefilled + chunk)
