"""Speculative decoding: how many tokens a step drafts for each decode, how many of them it accepts, what that takes.

Y. Leviathan et al., "Fast inference from transformers via speculative decoding", arXiv 2211.17192. Draft number t of a
request (the token of that index, from 0) is right or wrong by a draw of its own: of the run's seed, the request and t.
So it does not depend on how steps are formed, where the request decodes or how often it is preempted.

Options of speculative decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from framework.compiler.decorators import kernel, unlikely
from framework.engine.kv_cache import give_back, held_blocks, hold
from framework.engine.mechanisms.data_parallel import lengthen
from framework.engine.state import State
from framework.errors import InputError, require_at_least, require_count, require_share, require_whole
from framework.timing.table import StepTables, base_s, decode_s

Depth = int | Literal["adaptive"]


@dataclass(frozen=True)
class Speculation:
    """A decode step drafts `depth` tokens for each decode and has the model verify them; 0: none.

    `acceptance`: probability that a draft is right where those before it are. `depth` may be `adaptive`: at each step
    as many, up to `max_depth`, as give most tokens a second. `draft_cost`: seconds to draft one token for each of a
    batch, as a share of a decode step of that batch; None: one layer of the model. Raises InputError for a value out
    of range.
    """

    depth: Depth = 0
    acceptance: float = 0.0
    max_depth: int = 8
    draft_cost: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.depth, str):
            if self.depth != "adaptive":
                raise InputError(f"engine.speculation.depth must be a whole number or adaptive, got {self.depth!r}")
        else:
            require_whole("engine.speculation.depth", self.depth)
        if self.acceptance != 0:
            require_share("engine.speculation.acceptance", self.acceptance)
        require_count("engine.speculation.max_depth", self.max_depth)
        if self.draft_cost is not None:
            require_at_least("engine.speculation.draft_cost", self.draft_cost, 0)

    @property
    def most(self) -> int:
        """Tokens drafted for a decode in one step, at most."""
        return self.max_depth if isinstance(self.depth, str) else self.depth

    @property
    def adaptive(self) -> bool:
        """Whether each step has a depth of its own."""
        return isinstance(self.depth, str)


# --- the compiled part ------------------------------------------------------------------------------------------------


_NEVER = np.iinfo(np.int64).max
_WORD = (1 << 32) - 1


@kernel
def _scattered(x: int) -> int:
    """A hash of 32 bits: lowbias32 (C. Wellons, "Prospecting for hash functions", 2018). Below 2^63 throughout, where
    int64 and Python's int agree.
    """
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & _WORD
    x = x ^ (x >> 15)
    x = ((((x * 0x846C) & 0xFFFF) << 16) + x * 0xA68B) & _WORD  # x * 0x846CA68B
    return x ^ (x >> 16)


@kernel
def accepted_drafts(s: State, r: int, first: int, depth: int) -> int:
    """Of `depth` drafts of r from token `first` on, those before the first wrong one."""
    sim = s.sim[0]
    of_request = _scattered(_scattered(int(sim.seed) & _WORD) ^ int(r))
    right = 0
    while right < depth and _scattered(of_request ^ _scattered(int(first) + right)) * 2.0**-32 < sim.acceptance:
        right += 1
    return right


# --- before a step ----------------------------------------------------------------------------------------------------


@kernel
def draft_s(s: State, i: int) -> float:
    """Seconds to draft one token for each of i's decodes."""
    cost_s: float = s.sim[0].draft_cost * _verify_s(s, i, 0)
    return cost_s


@kernel
def _verify_s(s: State, i: int, depth: int) -> float:
    """Seconds of a step of i's decodes that passes `depth` drafts of each through the model, KV read once."""
    inst = s.instances[i]
    tables = StepTables(s.timing_rows, s.timing_data)
    tokens = inst.running * (1 + depth)
    value_s, _, _ = decode_s(tables, inst.pool, inst.running, inst.decode_kv + tokens)
    return base_s(tables, inst.pool, 0, tokens, tokens) + value_s


@kernel
def decode_step_s(s: State, i: int, depth: int) -> float:
    """Seconds of a step of i's decodes, contexts taken as even, with `depth` drafts for each."""
    time_s = _verify_s(s, i, depth)
    if depth > 0:
        time_s += depth * draft_s(s, i)
    return time_s


@kernel
def choose_depth(s: State, i: int) -> int:
    """Drafts for each decode of i's next step; where that is adaptive, so many as give most tokens a second."""
    sim = s.sim[0]
    if not sim.adaptive_depth:
        return sim.depth
    if s.instances[i].running == 0:
        return 0
    best, best_tokens, best_s = 0, 1.0, _verify_s(s, i, 0)
    all_right, tokens = 1.0, 1.0
    drafting_s = draft_s(s, i)
    for depth in range(1, sim.depth + 1):
        all_right *= sim.acceptance
        tokens += all_right
        time_s = _verify_s(s, i, depth) + depth * drafting_s
        if tokens * best_s > best_tokens * time_s:
            best, best_tokens, best_s = depth, tokens, time_s
    return best


@kernel
def kv_of_next_step(s: State, i: int, r: int, kv: int) -> int:
    """KV tokens that r, which has `kv`, holds during i's next step: drafts beyond its last token store nothing."""
    last = s.requests[r].input_tokens + s.arena[s.sim[0].output_at + r] - 1
    return min(kv + 1 + s.progress[i].depth, last)


@kernel
def blocks_of_next_step(s: State, i: int) -> int:
    """New blocks that i's running requests need for its next step."""
    inst, sim = s.instances[i], s.sim[0]
    if unlikely(sim.speculates):
        return _blocks_with_drafts(s, i)
    return s.arena[inst.growth_at + inst.decode_steps % sim.block_tokens]


@kernel
def _blocks_with_drafts(s: State, i: int) -> int:
    inst = s.instances[i]
    blocks = 0
    for j in range(inst.running):
        r = s.arena[inst.running_at + j]
        kv = s.requests[r].offset + inst.decode_steps
        blocks += held_blocks(s, i, kv_of_next_step(s, i, r, kv)) - held_blocks(s, i, kv)
    return blocks


# --- after it ---------------------------------------------------------------------------------------------------------


@kernel
def emit_accepted(s: State, i: int) -> None:
    """A step has ended and each decode emitted a token: emit the drafts that it accepted, drop the KV of the others."""
    inst, leap, sim = s.instances[i], s.progress[i], s.sim[0]
    if leap.decodes == 0:
        return
    emitted = unused = 0
    leap.next_finish = _NEVER
    for j in range(inst.running):
        r = s.arena[inst.running_at + j]
        q = s.requests[r]
        kv = q.offset + inst.decode_steps
        first = kv - q.input_tokens
        most = s.arena[sim.output_at + r] - first - 1
        accepted = min(accepted_drafts(s, r, first, leap.depth), most)
        unused += held_blocks(s, i, kv_of_next_step(s, i, r, kv - 1)) - held_blocks(s, i, kv + accepted)
        q.offset += accepted
        if unlikely(inst.ranks > 0):
            lengthen(s, i, r, accepted)
        s.arena[inst.finish_at + j] -= accepted
        leap.next_finish = min(leap.next_finish, s.arena[inst.finish_at + j])
        emitted += accepted
    give_back(s, i, unused)
    inst.decode_kv += emitted
    hold(s, i, emitted, sim.now_s)
    inst.decode_tokens += emitted
    inst.accepted_tokens += emitted
    inst.drafted_tokens += leap.depth * leap.decodes
