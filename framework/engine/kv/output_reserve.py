"""The output reserve: room that admissions leave for future output.

An engine knows the longest possible output of a request, not its actual length. It keeps blocks free for a share of
that maximum. The share falls with each decode step, and a preemption sets it again from the tokens emitted so far.
Source: L. Zheng et al., arXiv 2312.07104, the "new token ratio" of that server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from framework.checks import Count, Whole, between, check_fields, require_count
from framework.compiler.decorators import inner
from framework.engine.memory.state import State
from framework.errors import InputError
from framework.workload import Workload

DeclaredTokens = int | Literal["context", "longest", "output"]
_Ratio = Annotated[float, between(0, 1)]
_CONTEXT, _OUTPUT = 0, -1  # marks that replace a number of tokens


@dataclass(frozen=True)
class OutputReserve:
    """A prompt is admitted if it leaves blocks for a share of the output that decodes may still emit.

    `ratio`: that share at first and after idling; 0: there is no reserve. It falls to `least_ratio` over `decay_steps`
    decode steps. A preemption sets it to the tokens that the remaining decodes have emitted, plus `steps_ahead` tokens
    for each, as a share of what they may emit. `declared_tokens`: the longest output that a client requests, in tokens.
    `context`: clients request none, so the rest of the model's context is the limit. `longest`: the longest output of
    the trace, as if the server limited all outputs to it. `output`: exactly the request's output, as in benchmarks that
    ignore the end of a text. `most_tokens`: the most output tokens of one request that count.

    Raises InputError for a value out of range.
    """

    ratio: _Ratio = 0.0
    least_ratio: _Ratio = 0.0
    decay_steps: Count = 600
    steps_ahead: Whole = 20
    declared_tokens: DeclaredTokens = "context"
    most_tokens: Count = 4096

    def __post_init__(self) -> None:
        check_fields(self, "engine.output_reserve.")
        if self.least_ratio > self.ratio:
            raise InputError(
                f"engine.output_reserve.least_ratio={self.least_ratio} must not be above"
                f" engine.output_reserve.ratio={self.ratio}"
            )
        if not isinstance(self.declared_tokens, str):
            require_count("engine.output_reserve.declared_tokens", self.declared_tokens)
        elif self.declared_tokens not in ("context", "longest", "output"):
            raise InputError(
                "engine.output_reserve.declared_tokens must be a number of tokens, context, longest or output,"
                f" got {self.declared_tokens!r}"
            )

    def on(self, workload: Workload) -> OutputReserve:
        """With a number in place of `longest`."""
        if self.declared_tokens != "longest":
            return self
        return replace(self, declared_tokens=int(workload.output_tokens.max()))

    def engine_options(self) -> Mapping[str, float]:
        """Values of the fields of `OPTIONS` that the compiled part reads."""
        unstated = {"context": _CONTEXT, "output": _OUTPUT}
        declared = self.declared_tokens
        return {
            "reserves": self.ratio > 0,
            "first_ratio": self.ratio,
            "least_ratio": self.least_ratio,
            "ratio_decay": (self.ratio - self.least_ratio) / self.decay_steps,
            "steps_ahead": self.steps_ahead,
            "declared_tokens": unstated[declared] if isinstance(declared, str) else declared,
            "most_to_come": self.most_tokens,
        }


# --- the compiled part ------------------------------------------------------------------------------------------------


@inner
def keeps_reserve(s: State, i: int, r: int, left_blocks: int) -> bool:
    """Whether the blocks left after r's admission to i hold the reserve; always true if nothing else runs."""
    inst, options = s.instances[i], s.options
    if inst.reserve_blocks > 0 or inst.running + inst.prefilling == 0:
        return True
    decoding, others = 0, _to_come(s, r, s.requests[r].emitted)
    for j in range(inst.running):
        decoding += _to_come(s, s.lists[inst.running_at + j], _emitted(s, i, j))
    for j in range(inst.prefilling):
        others += _to_come(s, s.lists[inst.prefilling_at + j], 0)
    left_tokens = (left_blocks - inst.prefilling - 1) * options.block_tokens
    return bool(left_tokens - others > _ratio(s, i) * decoding)


@inner
def close_admission(s: State, i: int) -> None:
    """Close admission while anything decodes, if there is a reserve: the first of i's queue found no seat or room."""
    inst = s.instances[i]
    inst.closed = s.options.reserves and inst.reserve_blocks == 0 and inst.running > 0


@inner
def _to_come(s: State, r: int, emitted: int) -> int:
    """Tokens that r, which has emitted `emitted`, may still emit, up to the limit that counts."""
    return int(min(max(_declared(s, r) - emitted, 0), s.options.most_to_come))


@inner
def _declared(s: State, r: int) -> int:
    """The longest output that r may have, in tokens."""
    declared = s.options.declared_tokens
    if declared == _OUTPUT:
        return s.lists[s.options.output_at + r]
    return s.options.max_context - s.requests[r].input_tokens if declared == _CONTEXT else declared


@inner
def _emitted(s: State, i: int, j: int) -> int:
    """Tokens that number j of i's running order has emitted."""
    inst = s.instances[i]
    q = s.requests[s.lists[inst.running_at + j]]
    if j >= inst.running - inst.paused:
        return q.emitted
    return q.offset + inst.decode_steps - q.input_tokens + 1


@inner
def _ratio(s: State, i: int) -> float:
    """The share of the future output for which admissions to i now leave room."""
    inst = s.instances[i]
    steps = inst.decode_steps - inst.ratio_since
    if steps <= 0:
        return inst.output_ratio
    return max(inst.output_ratio - steps * s.options.ratio_decay, s.options.least_ratio)


@inner
def settle_reserve(s: State, i: int, decodes: int, prefill_tokens: int) -> bool:
    """Set the ratio after i has scheduled a step of this size (0 and 0: none), and open admission if that is due.

    Returns whether i is to schedule again.
    """
    inst = s.instances[i]
    if inst.running + inst.prefilling == 0:
        inst.output_ratio, inst.ratio_since = s.options.first_ratio, inst.decode_steps
    elif inst.preempted:
        _measure(s, i)
    chunks_alone = decodes == 0 and prefill_tokens > 0
    known, late = inst.freed == 1 or inst.freed == 3, inst.freed >= 2
    opens = inst.closed and (inst.preempted or (known and not chunks_alone))
    if opens:
        inst.closed = False
    inst.freed = 1 if late or (known and chunks_alone) else 0  # room that came free late becomes known one step later
    return bool(opens or late)


@inner
def _measure(s: State, i: int) -> None:
    """Set the ratio from the emitted tokens of i's decodes; it falls from the end of the next step on."""
    inst = s.instances[i]
    tokens, most = 0, 1
    for j in range(inst.running):
        tokens += _emitted(s, i, j) + s.options.steps_ahead
        most += _declared(s, s.lists[inst.running_at + j])
    inst.output_ratio = min(1.0, tokens / most)
    inst.ratio_since = inst.decode_steps + 1
