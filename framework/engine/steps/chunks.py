"""How large the chunk of a prompt is in one step, and the list of a step's chunks."""

from __future__ import annotations

from framework.compiler.decorators import inner, unlikely
from framework.engine.kv.prefix_cache import share_chunk
from framework.engine.memory.state import State
from framework.engine.parallel.pipeline_parallel import share


@inner
def largest_chunk(s: State, i: int, done: int, left: int) -> int:
    """Tokens that a request with `done` prefilled may add, by the schedule, where its step's budget has `left`."""
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
    """The first chunk of a prompt with `tokens` tokens to compute and `left` left of its budget; 0: not in this step.

    It is cut for the longest chunk alone, and may exceed a budget of which nothing is spent.
    """
    inst = s.instances[i]
    chunk = min(tokens, s.options.longest_chunk)
    whole = share(s, i, inst.token_budget // max(1, inst.ranks))
    return chunk if chunk <= left or 0 < left == whole else 0


@inner
def note_chunk(s: State, i: int, j: int, chunk: int) -> None:
    """The step that is being formed computes so many tokens of number j of i's prefilling order."""
    inst = s.instances[i]
    r = s.lists[inst.prefilling_at + j]
    s.lists[inst.chunk_at + j] = chunk
    if chunk > 0:
        share_chunk(s, i, r, s.requests[r].prefilled + chunk)
