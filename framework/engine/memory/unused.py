"""Fields that keep one value in most runs, from beginning to end: for these runs less of the engine is compiled.

A run whose memory `is_plain` takes `loop.run_plain`, any other run `loop.run`; both come from the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping

from framework.engine.memory.state import Memory

# Fields that are set before the first event. They are 0 if their mechanism is not used.
_SET = {
    "options": (
        "tiers",  # of prefixes, below GPU memory
        *("speculates", "adaptive_depth"),
        "reserves",
        "spans",
        "by_admission",
        *("joins", "overlaps"),  # programs
        *("preemption", "least_urgent", "fewest_tokens"),  # other than recomputing the latest
        "unchunked",
        "layerwise_tokens",
        "limits_fabric",
        "flows",
        "faults",
    ),
    "instances": ("group", "ranks", "stages", "chunk_stages"),
}
# Fields that stay 0 where those are.
_FOLLOWING = {
    "options": ("keeps_outputs", "counts_uses", "writes_back"),
    "sim": ("spanning", "spans_over", "pin_ends"),
    "instances": ("lending", "guests", "loading"),
    "step": ("fixed_depth",),
}
# The values by the names of the fields; no instance has a pinned request.
UNUSED: Mapping[str, int] = {
    **{f"{record}.{field}": 0 for part in (_SET, _FOLLOWING) for record, fields in part.items() for field in fields},
    "instances.pinned_head": -1,
}


def is_plain(memory: Memory) -> bool:
    """Whether a run that has not begun, and whose policy pins no KV, uses none of these mechanisms."""
    return not any(memory._asdict()[record][field].any() for record, fields in _SET.items() for field in fields)
