"""What an ended step adds to the step log and to its instance's totals."""

from __future__ import annotations

from framework.reference.simulation import Simulation
from framework.reference.state import Instance
from framework.reference.steps.step import Step


def count_step(s: Simulation, i: Instance, step: Step) -> None:
    """Write an ended step to the step log and add it to the totals."""
    decodes, step0, stream = len(step.decodes), int(i.totals["decode_steps"]), int(step.is_concurrent)
    prefill_tokens = step.prefill_tokens
    i.steps.append((step.start_s, step.end_s, decodes, prefill_tokens, step.context))
    duration_s = step.end_s - step.start_s
    s.step_log.append(
        (step.start_s, duration_s, step0, step.context, i.id, decodes, prefill_tokens, step.depth, stream)
    )
    fresh_s, computed = s.now_s - i.counted_s, decodes * (1 + step.depth) + prefill_tokens
    unchosen = 1.0 - s.options.chosen_share
    added = {
        "busy_s": fresh_s,
        "steps": 1,
        "decode_steps": decodes > 0,
        "prefill_tokens": prefill_tokens,
        "drafted_tokens": decodes * step.depth,
        "context_tokens": step.context,
        "decode_pairs": step.context * (1 + step.depth),
        "prefill_square": step.prefill_square,
        "bubble_s": step.bubble_s,
        "batch_s": decodes * duration_s,
        "weight_passes": step.micro_batches,
        "expert_reads": expert_reads(unchosen, len(i.group) * computed, step.micro_batches) / len(i.group),
        "extrapolated_s": fresh_s if step.beyond > 1 else 0.0,
    }
    for name, value in added.items():
        i.totals[name] += value
    i.counted_s = s.now_s
    if step.beyond > 1:
        i.extrapolation = max(i.extrapolation, step.beyond)


def expert_reads(unchosen: float, tokens: int, micro_batches: int) -> float:
    """How often all experts are read for `tokens` tokens, dealt evenly to micro-batches that each read their own."""
    each, larger = divmod(tokens, micro_batches)
    return (micro_batches - larger) * (1.0 - unchosen**each) + larger * (1.0 - unchosen ** (each + 1))
