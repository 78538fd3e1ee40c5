"""Speculative decoding: drafted tokens, accepted tokens, and their cost.

Source: Y. Leviathan et al., "Fast inference from transformers via speculative decoding", arXiv 2211.17192. A draw from
the run's seed, the request and t decides whether draft t of a request (its token number t, from 0) is right. So the
draw does not depend on how steps are formed, where the request decodes or how often it is preempted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from framework.checks import NotNegative, between, check_fields, require_whole, up_to
from framework.compiler.decorators import inner, unlikely
from framework.engine.durations.draws import right_drafts
from framework.engine.kv.kv_cache import free
from framework.engine.memory.kv_blocks import add_kv_tokens, blocks_of
from framework.engine.memory.state import State
from framework.engine.parallel.data_parallel import lengthen
from framework.errors import InputError
from framework.timing.table import StepTables, base_s, decode_s

_DEEPEST = 1_000  # tokens
Depth = int | Literal["adaptive"]


@dataclass(frozen=True)
class Speculation:
    """Speculation with `depth` tokens drafted for each decode of a step, which the model verifies; 0: none.

    `acceptance`: probability that a draft is right if those before it are. `depth=adaptive` picks at each step the
    depth, up to `max_depth`, that gives the most tokens a second. `draft_cost`: seconds to draft one token for each
    request of a batch, as a share of a decode step of that batch; None: one layer of the model. Raises InputError for a
    value out of range.
    """

    depth: Depth = 0
    acceptance: Annotated[float, between(0, 1)] = 0.0
    max_depth: Annotated[int, up_to(_DEEPEST)] = 8
    draft_cost: NotNegative | None = None

    def __post_init__(self) -> None:
        check_fields(self, "engine.speculation.")
        if isinstance(self.depth, str):
            if self.depth != "adaptive":
                raise InputError(f"engine.speculation.depth must be a whole number or adaptive, got {self.depth!r}")
        else:
            require_whole("engine.speculation.depth", self.depth, _DEEPEST)

    @property
    def most(self) -> int:
        """The most tokens drafted for a decode in one step."""
        return self.max_depth if isinstance(self.depth, str) else self.depth

    @property
    def adaptive(self) -> bool:
        """Whether the depth is chosen at each step."""
        return isinstance(self.depth, str)


# --- the compiled part ------------------------------------------------------------------------------------------------


_NEVER = np.iinfo(np.int64).max


# --- before a step ----------------------------------------------------------------------------------------------------


@inner
def draft_s(s: State, i: int, decodes: int, kv: int) -> float:
    """Seconds to draft one token for each of `decodes` decodes of i, which together have `kv` KV tokens."""
    return draft_after_s(s, i, decodes, kv, even_s(s, i, decodes, 0))


@inner
def draft_after_s(s: State, i: int, decodes: int, kv: int, even_s: float) -> float:
    """The same as `draft_s`, given the `even_s` seconds of a step of these decodes."""
    cost_s: float = s.options.draft_cost * (even_s + _attention_s(s, i, decodes, kv + decodes))
    return cost_s


@inner
def even_s(s: State, i: int, decodes: int, depth: int) -> float:
    """Seconds, without attention, of a step that verifies `depth` drafts for each of `decodes` decodes."""
    tokens = decodes * (1 + depth)
    return base_s(StepTables(s.timing_rows, s.timing_data), s.instances[i].row, 0, tokens, tokens, tokens - decodes)


@inner
def _attention_s(s: State, i: int, decodes: int, context: int) -> float:
    value_s, _, _ = decode_s(StepTables(s.timing_rows, s.timing_data), s.instances[i].row, decodes, context)
    return value_s


@inner
def _verify_s(s: State, i: int, decodes: int, kv: int, depth: int) -> float:
    """Seconds of a step that verifies `depth` drafts for each of `decodes` decodes and reads their KV once."""
    return even_s(s, i, decodes, depth) + _attention_s(s, i, decodes, kv + decodes * (1 + depth))


@inner
def decode_step_s(s: State, i: int, depth: int) -> float:
    """Seconds of a step of i's decodes with `depth` drafts for each, all contexts taken as equal."""
    inst = s.instances[i]
    time_s = _verify_s(s, i, inst.running, inst.decode_kv + inst.guests, depth)
    if depth > 0:
        time_s += depth * draft_s(s, i, inst.running, inst.decode_kv)
    return time_s


@inner
def choose_depth(s: State, i: int) -> int:
    """Drafts for each decode of i's next step; an adaptive depth is the one with the most tokens a second."""
    inst = s.instances[i]
    if not s.options.adaptive_depth:
        return inst.most_drafts
    if inst.running == 0:
        return 0
    best, best_tokens, best_s = 0, 1.0, _verify_s(s, i, inst.running, inst.decode_kv, 0)
    all_right, tokens = 1.0, 1.0
    drafting_s = draft_s(s, i, inst.running, inst.decode_kv)
    for depth in range(1, inst.most_drafts + 1):
        all_right *= s.options.acceptance
        tokens += all_right
        time_s = _verify_s(s, i, inst.running, inst.decode_kv, depth) + depth * drafting_s
        if tokens * best_s > best_tokens * time_s:
            best, best_tokens, best_s = depth, tokens, time_s
    return best


@inner
def kv_of_next_step(s: State, i: int, r: int, kv: int) -> int:
    """KV tokens that r, which has `kv`, holds during i's next step; drafts beyond r's last token store nothing."""
    last = s.requests[r].input_tokens + s.lists[s.options.output_at + r] - 1
    return min(kv + 1 + s.step[i].depth, last)


@inner
def blocks_of_next_step(s: State, i: int) -> int:
    """New blocks that i's running requests need for its next step."""
    inst = s.instances[i]
    if unlikely(s.options.speculates):
        return _blocks_with_drafts(s, i)
    return s.lists[inst.growth_at + inst.decode_steps % s.options.block_tokens]


@inner
def _blocks_with_drafts(s: State, i: int) -> int:
    inst = s.instances[i]
    blocks = 0
    for j in range(inst.running - inst.paused):
        blocks += growth_of(s, i, s.lists[inst.running_at + j])
    return blocks


@inner
def growth_of(s: State, i: int, r: int) -> int:
    """New blocks that r, which decodes on i, needs for i's next step."""
    kv = s.requests[r].offset + s.instances[i].decode_steps
    return blocks_of(s, i, kv_of_next_step(s, i, r, kv)) - blocks_of(s, i, kv)


# --- after it ---------------------------------------------------------------------------------------------------------


@inner
def emit_accepted(s: State, i: int) -> int:
    """Emit the drafts that each decode accepted in the step that has ended, and drop the KV of the rejected ones.

    Returns the blocks that the next step takes if it has the same requests and depth.
    """
    inst, step, sim = s.instances[i], s.step[i], s.sim
    if step.decodes == 0:
        return 0
    block = s.options.block_tokens
    emitted = unused = growth = 0
    step.next_finish = _NEVER
    for j in range(inst.running - inst.paused):
        r = s.lists[inst.running_at + j]
        q = s.requests[r]
        kv = q.offset + inst.decode_steps
        last = q.input_tokens + s.lists[s.options.output_at + r] - 1
        accepted = min(right_drafts(s, r, kv - q.input_tokens, step.depth), last - kv)
        if inst.reserve_blocks == 0:
            room = (kv + accepted + block - 1) // block * block
            unused += _blocks_beyond(min(kv + step.depth, last) - room, block)
            growth += _blocks_beyond(min(kv + accepted + 1 + step.depth, last) - room, block)
        q.offset += accepted
        q.accepted = accepted
        if unlikely(inst.ranks > 0):
            lengthen(s, i, r, accepted)
        finish = s.lists[inst.finish_at + j] - accepted
        s.lists[inst.finish_at + j] = finish
        step.next_finish = min(step.next_finish, finish)
        emitted += accepted
    free(s, i, unused)
    inst.decode_kv += emitted
    add_kv_tokens(s, i, emitted, sim.now_s)
    inst.decode_tokens += emitted
    inst.accepted_tokens += emitted
    inst.drafted_tokens += step.depth * step.decodes
    return int(growth)


@inner
def _blocks_beyond(tokens: int, block: int) -> int:
    """Blocks that `tokens` further tokens need when all present blocks are full."""
    if unlikely(tokens > block):
        return (tokens + block - 1) // block
    return 1 if tokens > 0 else 0
