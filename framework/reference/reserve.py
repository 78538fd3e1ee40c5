"""The output reserve (SEMANTICS.md: Output reserve)."""

from __future__ import annotations

from framework.reference.simulation import Simulation
from framework.reference.state import Instance, Request


def keeps_reserve(s: Simulation, i: Instance, r: Request, left_blocks: int) -> bool:
    """Whether the blocks left after r's admission hold the reserve; always true if r is alone."""
    options = s.options.engine.output_reserve
    if not options.ratio or i.spec.reserve_blocks is not None:
        return True
    if not i.running and not i.prefilling:
        return True
    decoding = sum(to_come(s, other) for other in i.running)
    others = to_come(s, r) + sum(min(declared(s, other), options.most_tokens) for other in i.prefilling)
    left_tokens = (left_blocks - len(i.prefilling) - 1) * s.options.block_tokens
    return left_tokens - others > present_ratio(s, i) * decoding


def to_come(s: Simulation, r: Request) -> int:
    """Tokens that r may still emit, up to the limit that counts."""
    return min(max(0, declared(s, r) - r.emitted), s.options.engine.output_reserve.most_tokens)


def declared(s: Simulation, r: Request) -> int:
    """The longest output that r may have."""
    tokens = s.options.engine.output_reserve.declared_tokens
    if tokens == "output":
        return r.output_tokens
    return s.options.max_context - r.input_tokens if isinstance(tokens, str) else tokens


def present_ratio(s: Simulation, i: Instance) -> float:
    """The reserved share of the future output of decoding requests."""
    options = s.options.engine.output_reserve
    ratio, since = i.ratio_set
    steps = int(i.totals["decode_steps"]) - since
    decay = (options.ratio - options.least_ratio) / options.decay_steps
    return ratio if steps <= 0 else max(ratio - steps * decay, options.least_ratio)


def settle_reserve(s: Simulation, i: Instance, preempted: bool, chunks_alone: bool) -> None:
    """Set the ratio after i has scheduled, and open admission if that is due."""
    options = s.options.engine.output_reserve
    if not options.ratio:
        return
    steps = int(i.totals["decode_steps"])
    if not i.running and not i.prefilling:
        i.ratio_set = (options.ratio, steps)
    elif preempted:
        tokens = sum(r.emitted + options.steps_ahead for r in i.running)
        i.ratio_set = (min(1.0, tokens / (1 + sum(declared(s, r) for r in i.running))), steps + 1)
    known, late = 1 in i.opens_after, 2 in i.opens_after
    opens = i.closed and (preempted or (known and not chunks_alone))
    i.closed = i.closed and not opens
    i.opens_after = [1 for count in i.opens_after if count == 2 or chunks_alone]
    if opens or late:
        s.wake(i)
